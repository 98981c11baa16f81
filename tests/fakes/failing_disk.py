"""A disk that takes writes and fails to sync them: the kernel itself answers so, to one thread."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")

# By architecture: what the kernel calls it, and the numbers of fsync and fdatasync.
_CALLS = {"x86_64": (0xC000003E, (74, 75)), "aarch64": (0xC00000B7, (82, 83))}
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ANSWER_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def on_a_failing_disk(work: Callable[[], R], fault: int = errno.EIO) -> R:
    """What `work` answers or raises in a thread of its own, for which each fsync fails (seccomp(2))."""
    results: list[R] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            _fail_syncs_of_this_thread(fault)
            results.append(work())
        except BaseException as error:  # noqa: BLE001  (raised below)
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return results[0]


def _fail_syncs_of_this_thread(fault: int) -> None:
    architecture, (fsync, fdatasync) = _CALLS[platform.machine()]
    steps = [
        (_LOAD | 0x00, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_IF_EQUAL, 0, 4, architecture),
        (_LOAD | 0x00, 0, 0, _NUMBER_AT),
        (_JUMP_IF_EQUAL, 1, 0, fsync),
        (_JUMP_IF_EQUAL, 0, 1, fdatasync),
        (_RETURN, 0, 0, _ANSWER_ERRNO | fault),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = _Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
