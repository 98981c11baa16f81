"""What tests check about processes that are not their children."""

from __future__ import annotations

import os
import time
from pathlib import Path

POLL_S = 0.02


def gone(pid: int) -> bool:
    """Whether the process has ended: also if nobody has collected it, as where PID 1 is no init."""
    try:
        os.kill(pid, 0)
        if not Path("/proc/self/stat").exists():
            return False
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return True


def gone_within(pid: int, wait_s: float) -> bool:
    deadline_s = time.monotonic() + wait_s
    while not gone(pid):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True
