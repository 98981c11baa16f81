"""Refuses forks of a process that has used tables: the threads of the libraries that read them are not in a fork."""

from __future__ import annotations

import os

from iscp.core.values.errors import InvalidRequest


class _FirstUse:
    """The process that has used tables first, which is this one or, in a fork, one that it comes from; 0: none."""

    pid = 0


def refuse_fork(what: str) -> None:
    """Note that this process uses tables from now on, by `what`.

    Raises InvalidRequest if a process that it was forked from has used them: each use would panic in Rust.
    """
    pid = os.getpid()
    _FirstUse.pid = _FirstUse.pid or pid
    if _FirstUse.pid != pid:
        raise InvalidRequest(
            f"cannot be used in the process {pid}: it was forked from {_FirstUse.pid}, which had read tables by then",
            field=what,
            remedy="Start processes by `spawn` or `forkserver`, or read no table before the fork",
        )
