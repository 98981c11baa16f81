"""Keeps the sinks that are in use, so that what they know of their logs is not read again each time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from iscp.ports.pipeline import Sink

SINKS_KEPT_MAX = 10_000


class SinkPool:
    """One sink for each target, the longest unused given up first (port SinkFactory)."""

    def __init__(self, open_sink: Callable[[str], Sink]) -> None:
        self._open_sink = open_sink
        self._sinks: OrderedDict[str, Sink] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, target_uri: str) -> Sink:
        with self._lock:
            sink = self._sinks.pop(target_uri, None) or self._open_sink(target_uri)
            self._sinks[target_uri] = sink
            if len(self._sinks) > SINKS_KEPT_MAX:
                self._sinks.popitem(last=False)
            return sink
