"""The machine's clocks, behind the port Clock."""

from __future__ import annotations

import time


class SystemClock:
    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()
