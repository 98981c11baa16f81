"""A mount whose file system never answers, as that of a server that has gone: whoever touches a path in it waits.

It is a FUSE file system without a program behind it (Linux, root). What waits is released when the mount ends.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MNT_DETACH = 2
_DEVICE = Path("/dev/fuse")


def can_hang() -> bool:
    """Return whether this machine lets this process mount such a file system."""
    return _DEVICE.exists() and os.access(_DEVICE, os.R_OK | os.W_OK) and os.geteuid() == 0


@contextmanager
def hung(directory: Path) -> Iterator[None]:
    """Mount one over a directory. Raises OSError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open(_DEVICE, os.O_RDWR)
    try:
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"hung", bytes(directory), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), f"{directory} cannot be mounted over")
        try:
            yield
        finally:
            libc.umount2(bytes(directory), _MNT_DETACH)
    finally:
        os.close(device)  # and with it the connection: all that waits fails
