"""The commit files of the job log: what is acknowledged outlives a power loss too, not only the process.

After an fsync that failed another one of the same pages proves nothing: the kernel may count them as written. So the
file is replaced by a copy, whose pages are new. An object store makes what it takes durable by itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from iscp.adapters.delta.storage.files import write_beside
from iscp.adapters.delta.storage.table_files import sync
from iscp.ports.system import Failpoints

FAILPOINT_SYNC = "log.sync"
FAILPOINT_REWRITE = "log.rewrite"


class DurableCommits:
    """Of the table at `path`; None: it is not local."""

    def __init__(self, path: Path | None, failpoints: Failpoints) -> None:
        self._log = path / "_delta_log" if path is not None else None
        self._failpoints = failpoints

    def sync(self, version: int) -> None:
        """Raises OSError where it cannot be had, also by a copy."""
        if self._log is None:
            return
        try:
            self._failpoints.reach(FAILPOINT_SYNC)
            sync(self._log / f"{version:020d}.json")
            sync(self._log)
        except FileNotFoundError:
            return  # cleaned away, far behind the log's end: whoever looks sees that
        except OSError:
            self.rewrite(version)

    def rewrite(self, version: int) -> None:
        """Replace a commit's file by a copy, as nobody knows whether it was synced. Raises OSError."""
        if self._log is None:
            return
        self._failpoints.reach(FAILPOINT_REWRITE)
        with suppress(FileNotFoundError):  # a checkpoint has made it unneeded
            _replace_by_copy(self._log / f"{version:020d}.json")


def _replace_by_copy(path: Path) -> None:
    """Put a copy in the file's place that outlives a power loss. Raises OSError."""
    with write_beside(str(path), path.read_bytes()) as hidden:
        os.replace(hidden, path)
    sync(path.parent)
