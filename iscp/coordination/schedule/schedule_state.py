"""The state of a node's schedule, which its modules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iscp.coordination.protocol.events import Reports, Seen
from iscp.coordination.schedule.due_tables import DueTables
from iscp.coordination.schedule.in_flight import InFlightIterations
from iscp.coordination.schedule.probe_deadlines import ProbeDeadlines
from iscp.coordination.schedule.schedule_events import (
    CancelIteration,
    ScheduleEffect,
)
from iscp.coordination.schedule.seen_reports import report_seen
from iscp.coordination.schedule.table_state import TrackedTable
from iscp.coordination.schedule.trigger_timing import EvaluateTrigger
from iscp.coordination.schedule.verify_queue import VerifyQueue
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobReport
from iscp.core.settings.config import BackoffConfig, ProbeConfig
from iscp.core.values.ids import ShardId


@dataclass(frozen=True, slots=True)
class ScheduleTimes:
    """Limits of how often the schedule reports, and of how much one of its steps does."""

    announce_s: float = 1.0
    """Time after which an iteration is reported as pending or running; most are over before."""

    seen_every_s: float = 60.0
    """Seconds between two reports that a source has not moved, at most."""

    seen_per_lag: float = 4.0
    """Reports that a source has not moved within the smallest target lag of its jobs, about: so that the owner knows
    that none is late.
    """

    due_max: int = 1_000
    """Due tables that one Tick visits; the next one goes on with the others."""


@dataclass(slots=True)
class ScheduleState:
    """The state of the schedule. `out` gathers the effects of the step at `now_s` (monotonic), which is `at_s` in Unix
    time.

    `shards` has the tables of each shard that runs here, until it has stopped; `stopping` has the shards that are to
    stop. `postponed` has the tables that would have been visited while iterations are postponed, and is None while they
    are not.
    """

    node_id: str
    probe: ProbeConfig
    backoff: BackoffConfig
    draw: Callable[[], float]
    pacing: ScheduleTimes
    evaluate_trigger: EvaluateTrigger
    in_flight: InFlightIterations
    probes_out: ProbeDeadlines
    shards: dict[ShardId, tuple[TrackedTable, ...]] = field(default_factory=dict)
    due: DueTables = field(default_factory=DueTables)
    stopping: set[ShardId] = field(default_factory=set)
    verify_queue: VerifyQueue = field(default_factory=VerifyQueue)
    postponed: dict[TrackedTable, None] | None = None
    now_s: float = 0.0
    at_s: float = 0.0
    out: list[ScheduleEffect] = field(default_factory=list)

    def report(self, table: TrackedTable, reports: Sequence[JobReport], history: Sequence[HistoryEntry] = ()) -> None:
        if reports or history:
            self.out.append(Reports(table.shard, tuple(reports), tuple(history)))

    def report_seen(self, table: TrackedTable) -> None:
        news = report_seen(table, self.now_s, self.at_s, self.seen_every_s(table))
        if news is not None:
            self.out.append(Seen(news))

    def seen_every_s(self, table: TrackedTable) -> float:
        return min(self.pacing.seen_every_s, table.target_lag_s / self.pacing.seen_per_lag)

    def cancel(self, number: int) -> None:
        run = self.in_flight.get(number)
        if run is not None and not run.canceled:
            run.canceled = True
            self.out.append(CancelIteration(number))
