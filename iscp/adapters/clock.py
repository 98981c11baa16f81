"""The machine's clocks."""

from __future__ import annotations

import time


class SystemClock:
    """Stands behind `iscp.ports.system.Clock`."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()
