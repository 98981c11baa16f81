"""Waiting for what other threads or processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 0.003


def until(true: Callable[[], object], within_s: float = 20.0) -> float:
    """Wait until it is true; the seconds that it took. Fails after `within_s`."""
    begin_s = time.monotonic()
    while not true():
        assert time.monotonic() - begin_s < within_s, f"it did not come true within {within_s} s"
        time.sleep(PAUSE_S)
    return time.monotonic() - begin_s
