"""Compose what emits events of OpenLineage."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from iscp import __version__
from iscp.adapters.delta.log.column_types import read_column_types
from iscp.adapters.telemetry.bounded_sender import BoundedSender, SenderBounds
from iscp.adapters.telemetry.event_receivers import append_events, post_events
from iscp.adapters.telemetry.http_target import HttpTarget, read_headers
from iscp.coordination.jobs.book_index import target_of
from iscp.core.job.job_row import JobRow
from iscp.core.lineage.run_events import EventEmitter, JobRunState, KnownTables, run_event
from iscp.core.settings.config import NodeConfig
from iscp.core.values.untrusted_values import error_text
from iscp.ports.engine import IterationRunner
from iscp.ports.system import Clock
from iscp.runtime.worker.lineage_runner import LineageRunner

if TYPE_CHECKING:
    from iscp.runtime.node.node import Closes

log = logging.getLogger(__name__)

EVENTS_WAITING_MAX = 10_000
"""Events that wait for their receiver; one more is dropped, and counted."""

EVENTS_AT_ONCE_MAX = 100
"""Events that are appended to a file at once; more follow. Those for a URL are posted one by one."""

EVENTS_LINGER_S = 0.5
"""Seconds that an event for a file waits for others, to be written together with them."""

EVENTS_ATTEMPTS_MAX = 5
"""Attempts to hand an event to its receiver; after the last it is dropped, and counted."""

EVENTS_PAUSE_S = 1.0
"""Seconds between the first attempt to hand over an event and the second; it doubles with each."""

EVENTS_CLOSE_S = 3.0
"""Seconds that a stopping node waits for the receiver of its last events; then they are dropped, and counted."""

Receive = Callable[[Sequence[Mapping[str, Any]]], int]
DescribeTables = Callable[[JobRow, str], KnownTables]


@dataclass(frozen=True, slots=True)
class LineageSide:
    """The emission of events. Where nothing is emitted it is empty, and nothing is wrapped."""

    sender: BoundedSender[JobRunState] | None = None

    @property
    def connections(self) -> Sequence[Closes]:
        return [self] if self.sender is not None else []

    def counters(self) -> Mapping[str, int]:
        """Return what is counted of events; empty where none is emitted."""
        sender = self.sender
        return {"events_sent": sender.sent, "events_dropped": sender.dropped} if sender is not None else {}

    def observed(self, runner: IterationRunner, clock: Clock) -> IterationRunner:
        """Return the runner, reported if anything is."""
        if self.sender is None:
            return runner
        return LineageRunner(runner, self.sender.put, clock, lambda: str(uuid.uuid4()))

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close(EVENTS_CLOSE_S)


def compose_lineage(config: NodeConfig, clock: Clock) -> LineageSide:
    """Raises ConfigurationError if the file of headers cannot be used."""
    lineage = config.openlineage
    if not lineage.used:
        return LineageSide()
    receive: Receive
    if lineage.url:
        headers = read_headers(lineage.headers_file, "openlineage.headers_file")
        receive, at_once, linger_s = partial(post_events, HttpTarget(lineage.url, headers, "application/json")), 1, 0.0
    else:
        receive, at_once, linger_s = partial(append_events, lineage.path), EVENTS_AT_ONCE_MAX, EVENTS_LINGER_S
    from iscp.views.analysis.job_lineage import JobLineage

    describe = JobLineage(read_column_types, clock).known_tables
    emitter = EventEmitter(lineage.namespace or config.cluster, __version__)
    bounds = SenderBounds(EVENTS_WAITING_MAX, at_once, linger_s, EVENTS_ATTEMPTS_MAX, EVENTS_PAUSE_S)
    return LineageSide(BoundedSender("openlineage", partial(send_runs, receive, describe, emitter), bounds))


def send_runs(receive: Receive, describe: DescribeTables, emitter: EventEmitter, runs: Sequence[JobRunState]) -> int:
    """Hand the events of `runs` over, and return how many were not taken. The storage is read here, on no other's time.

    Raises as `receive` does.
    """
    events = []
    for run in runs:
        try:
            target = target_of(run.row.spec_json)
            events.append(run_event(run, target, describe(run.row, target), emitter))
        except Exception as error:  # noqa: BLE001  (what is wrong with one job costs the events of no other)
            log.info("lineage.not_made", extra={"job_id": run.row.job_id, "error": error_text(error)})
    return len(runs) - len(events) + receive(events)
