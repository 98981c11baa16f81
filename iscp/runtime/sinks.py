"""Keeps the sinks that are in use, so that what they know of their logs is not read again each time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from iscp.ports.feed import FeedSink
from iscp.ports.pipeline import Sink

SINKS_KEPT_MAX = 10_000

S = TypeVar("S")


class SinkPool:
    """One sink for each target, and for each range of a feed (port SinkFactory)."""

    def __init__(
        self, open_sink: Callable[[str], Sink], open_feed: Callable[[str], FeedSink], kept_max: int = SINKS_KEPT_MAX
    ) -> None:
        self._open_sink, self._open_feed = open_sink, open_feed
        self._sinks: _Kept[Sink] = _Kept(kept_max)
        self._feeds: _Kept[FeedSink] = _Kept(kept_max)

    def __call__(self, target_uri: str) -> Sink:
        return self._sinks.get(target_uri, lambda: self._open_sink(target_uri))

    def feed(self, target_uri: str, range_id: int) -> FeedSink:
        return self._feeds.get((target_uri, range_id), lambda: self._open_feed(target_uri))


class _Kept(Generic[S]):
    """The longest unused is given up first."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._sinks: OrderedDict[Hashable, S] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable, opened: Callable[[], S]) -> S:
        with self._lock:
            sink = self._sinks.pop(name, None) or opened()
            self._sinks[name] = sink
            if len(self._sinks) > self._kept_max:
                self._sinks.popitem(last=False)
            return sink
