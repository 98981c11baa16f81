"""A temporary directory that a killed process leaves only until another one of ours starts."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUFFIX = ".iscp-scratch"
"""The end of the names of such directories: what a user has called by the same beginning is never removed."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def scratch_directory(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a directory in `parent`, by default the system's for temporary files; it is removed at the end.

    Removes those of the same prefix, suffix and user whose processes are gone. Raises OSError.
    """
    parent = parent or Path(tempfile.gettempdir())
    for left in parent.glob(f"{prefix}*{SUFFIX}"):
        _remove_left(left)
    made, hold = _make(prefix, parent)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(hold)


def _make(prefix: str, parent: Path) -> tuple[Path, int]:
    """Return a new directory and the lock that shows that it is in use; the kernel frees it however the process
    ends.
    """
    while True:
        made = Path(tempfile.mkdtemp(SUFFIX, prefix, parent))
        try:
            hold = os.open(made, _FLAGS)
        except FileNotFoundError:
            continue
        fcntl.flock(hold, fcntl.LOCK_EX)
        # One that starts at the same time may have taken it for a left one before it was locked.
        if os.fstat(hold).st_nlink:
            return made, hold
        os.close(hold)


def _remove_left(left: Path) -> None:
    try:
        hold = os.open(left, _FLAGS)
    except OSError:  # another user's, no directory, or gone
        return
    try:
        if os.fstat(hold).st_uid == os.geteuid():
            fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    except BlockingIOError:  # in use
        pass
    finally:
        os.close(hold)
