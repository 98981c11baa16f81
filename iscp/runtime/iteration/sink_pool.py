"""Caches the sinks that are in use, so that what they know of their logs is not read again each time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from iscp.ports.sink import Sink
from iscp.ports.source import ChangeSource
from iscp.ports.system import Clock, Failpoints

SINKS_CACHED_MAX = 10_000
"""Sinks that stay open with the position that they had; the oldest are dropped, and read again when needed."""

S = TypeVar("S")


class SinkPool:
    """Has the sinks that consumers have opened, and what they open them with (port ConsumerEnvironment).

    Safe for threads. `check_target` lets a target pass before anything is opened there, or raises; it may be called for
    it several times. Making a sink touches no storage. The longest unused is given up first.
    """

    def __init__(
        self,
        open_table: Callable[[str], Sink],
        check_target: Callable[[str], str],
        clock: Clock,
        failpoints: Failpoints,
        source: ChangeSource,
        cached_max: int = SINKS_CACHED_MAX,
    ) -> None:
        self.clock, self.failpoints, self.source = clock, failpoints, source
        self._open_table, self._check_target = open_table, check_target
        self._cached_max = cached_max
        self._sinks: OrderedDict[tuple[Hashable, str], object] = OrderedDict()
        self._lock = threading.Lock()

    def sink(self, target_uri: str) -> Sink:
        return self.keep("table", target_uri, self._open_table)

    def keep(self, name: Hashable, target_uri: str, make: Callable[[str], S]) -> S:
        key = (name, target_uri)
        with self._lock:
            known = key in self._sinks
        if not known:  # without the lock, as the target's storage may hang
            target_uri = self._check_target(target_uri)
        with self._lock:
            # Made under the lock: two sinks of one target would each remember a position of its own.
            sink = self._sinks.pop(key, None) or make(target_uri)
            self._sinks[key] = sink
            if len(self._sinks) > self._cached_max:
                self._sinks.popitem(last=False)
            return cast(S, sink)
