"""Waiting for what other threads or processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PAUSE_S = 0.003


def until(true: Callable[[], object], within_s: float = 20.0) -> float:
    """Wait until it is true; the seconds that it took. Fails after `within_s`."""
    begin_s = time.monotonic()
    while not true():
        assert time.monotonic() - begin_s < within_s, f"it did not come true within {within_s} s"
        time.sleep(PAUSE_S)
    return time.monotonic() - begin_s


def process_state(pid: int) -> str:
    """Return the letter by which the kernel names a process's state, as "S" for a sleeping one; "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
