"""Records what the schedule alone knows of an iteration: how long it waited, and whether it was a retry."""

from __future__ import annotations

from iscp.coordination.protocol.events import Reports
from iscp.core.metrics.iteration_metrics import RETRIES, WAIT
from iscp.ports.system import Meter


class HistoryMeter:
    """Reads the history that a node reports. An iteration counts once for each of its jobs."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def take(self, news: Reports) -> None:
        for entry in news.history:
            if entry.usage is not None:
                self._meter.record(WAIT, entry.usage.wait_s, {})
                self._meter.record(RETRIES, 1 if entry.usage.retries else 0, {})
