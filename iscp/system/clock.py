"""The machine's clocks, behind the port Clock."""

from __future__ import annotations

import time

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux the one that counts the time for which the machine was suspended: leases run out then too."""


class SystemClock:
    def now_s(self) -> float:
        """Return whole microseconds, as tables store them: a time is the same before and after it is written there."""
        return time.time_ns() // 1000 / 1e6

    def monotonic_s(self) -> float:
        return time.clock_gettime(_STEADY)
