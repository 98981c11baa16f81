"""Traces that begin at a node: with a source's commit that was noticed, or with the call of who has made it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from iscp.coordination.schedule.schedule_events import ProbeAnswered
from iscp.core.job.iteration import Iteration, Purpose
from iscp.core.job.start_rule import ProbeState
from iscp.core.values.ids import ShardId
from iscp.ports.system import Clock
from iscp.ports.tracing import Attribute, Tracer, current_trace

CALLERS_MAX = 10_000
"""Shards of which a node remembers who has notified it last; beyond them the oldest is forgotten, and a trace begins
without its caller.
"""

CALLER_S = 60.0
"""Seconds for which a call that notifies a node is taken for the reason of what a probe then finds."""


@dataclass(slots=True)
class _SeenTable:
    """The newest version of a table that was seen, and the trace of what woke its jobs last; empty: nothing has.

    `further`: that was another table that they read, and no iteration was queued since.
    """

    version: int
    trace: str = ""
    further: bool = False


class NoticedCommits:
    """The scheduler's thread calls it, but for `note_caller`, which any thread may call."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock
        self._tables: dict[ShardId, dict[str, _SeenTable]] = {}
        self._lock = threading.Lock()
        self._callers: OrderedDict[ShardId, tuple[str, float]] = OrderedDict()

    def note_caller(self, shard: ShardId) -> None:
        """Remember the current context as that of who has notified the shard."""
        if not (trace := current_trace()):
            return
        with self._lock:
            self._callers.pop(shard, None)
            self._callers[shard] = trace, self._clock.monotonic_s()
            if len(self._callers) > CALLERS_MAX:
                self._callers.popitem(last=False)

    def note_answer(self, event: ProbeAnswered) -> None:
        """Record a notice of each table that has moved: the shard's own, and further ones that its jobs read."""
        for uri, state in _states(event):
            trace = self._note_state(event.shard, uri, state)
            if uri != event.uri and trace and (own := self._tables[event.shard].get(event.uri)) is not None:
                own.trace, own.further = trace, True

    def _note_state(self, shard: ShardId, uri: str, state: ProbeState) -> str:
        """Return the trace of a notice; empty if the table is as it was, or was not seen before."""
        tables = self._tables.setdefault(shard, {})
        if (known := tables.get(uri)) is None:
            # It may have moved before it was seen here, as whoever has called says.
            tables[uri] = _SeenTable(state.version, self._caller(shard, forget=True))
            return ""
        if state.version == known.version:
            return ""
        attributes: dict[str, Attribute] = {
            "iscp.table": uri,
            "iscp.version.from": known.version,
            "iscp.version": state.version,
        }
        now_s = self._clock.now_s()
        # The notice lasts from the commit on, as far as the clocks of node and storage agree.
        start_s = state.since_s if 0 < state.since_s < now_s else now_s
        caller = self._caller(shard, forget=True)
        with self._tracer.span("iscp.notice", attributes, parent=caller, start_s=start_s) as span:
            known.version, known.trace = state.version, span.trace
            return span.trace

    def traced(self, iteration: Iteration) -> Iteration:
        """Return the iteration that is queued now, as a part of what led to it, if that is known."""
        shard, trace = iteration.jobs[0].key.shard, ""
        known = self._tables.get(shard, {}).get(iteration.table_uri)
        if known is not None and iteration.purpose is Purpose.APPLY:
            # Others are repeated, or due by time: the last commit is no reason for them.
            if known.further or any(row.watermark.version < known.version for row in iteration.jobs):
                trace = known.trace
            known.further = False
        if not trace and iteration.purpose is Purpose.APPLY:
            trace = self._caller(shard, forget=False)  # who has jobs checked at once does not wait for a probe
        return replace(iteration, trace=trace, submitted_at_s=self._clock.now_s())

    def forget(self, shard: ShardId) -> None:
        """Forget a shard that has stopped here."""
        self._tables.pop(shard, None)
        with self._lock:
            self._callers.pop(shard, None)

    def _caller(self, shard: ShardId, *, forget: bool) -> str:
        with self._lock:
            trace, at_s = self._callers.get(shard, ("", 0.0))
            if forget:
                self._callers.pop(shard, None)
        return trace if trace and self._clock.monotonic_s() - at_s <= CALLER_S else ""


def _states(event: ProbeAnswered) -> Iterator[tuple[str, ProbeState]]:
    if event.state is not None:
        yield event.uri, event.state
    for further in event.further:
        if further.state is not None:
            yield further.uri, further.state
