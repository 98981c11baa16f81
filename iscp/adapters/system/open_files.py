"""The limit of files that this process may have open: whoever leads has a connection to every node of the cluster."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

from iscp.core.values.errors import ConfigurationError

OPEN_FILES_BESIDE_NODES = 512
"""Open files left for all but the nodes' streams: users' connections, tables, etcd, Spark's gateway, logs."""


def files_needed(nodes: int) -> int:
    """Return how many files an owner of so many nodes may have open."""
    return nodes + OPEN_FILES_BESIDE_NODES


def raise_open_files_limit() -> int:
    """Raise the soft limit to the hard one, if the system lets it; the limit that holds from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems say more than they allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_limit()


def open_files_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def refuse_too_few_files(limit: int, nodes: int) -> None:
    """Raise ConfigurationError where this process could not lead a cluster of so many nodes."""
    if limit < (needed := files_needed(nodes)):
        raise ConfigurationError(
            f"this process may have {limit} files open, and an owner of {nodes} nodes needs {needed}",
            about="ulimit -n",
            remedy=f"Raise the hard limit to {needed} or more: `ulimit -Hn` in a shell, `LimitNOFILE=` of systemd, "
            "`ulimits` of a container",
        )
