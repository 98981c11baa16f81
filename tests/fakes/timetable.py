"""A world around the schedule alone: sources, a queue of iterations, and a clock, all in the test's hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from iscp.model.job.iteration import HistoryEntry, Iteration, JobOutcome
from iscp.model.job.job_row import JobReport, JobRow
from iscp.model.job.start_rule import TriggerFacts
from iscp.model.protocol.events import (
    Reports,
    Seen,
    ShardStarted,
    ShardStopped,
    StartShard,
    StopShard,
    Tick,
    UpdateShard,
)
from iscp.model.settings.config import BackoffConfig, ProbeConfig
from iscp.model.values.errors import Canceled, ErrorCode, IscpError
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.model.values.watermark import Watermark
from iscp.schedule.iteration_outcomes import ScheduleTimes
from iscp.schedule.lag import FurtherAnswer
from iscp.schedule.probe_pool import probe_source
from iscp.schedule.schedule_events import (
    CancelIteration,
    Interrupted,
    IterationEnded,
    IterationRejected,
    IterationStarted,
    Notified,
    Probe,
    ProbeAnswered,
    ScheduleEffect,
    ScheduleEvent,
    Submit,
    TargetAnswer,
    VerifyAnswered,
)
from iscp.schedule.schedule_machine import Schedule
from tests.fakes.clock import FakeClock
from tests.fakes.probe import FakeProbe
from tests.fakes.targets import FakeTargets

PROBE = ProbeConfig(interval_min_s=10, interval_max_s=300)
BACKOFF = BackoffConfig(base_s=5, cap_s=300, quarantine_after=4, quarantine_s=3_600)
SHARD = ShardId("t-1")
URI = "/tables/t-1"
EPOCH = TableEpoch(1, 1)
SPEC = '{"iteration":{"consumer":{"kind":"replica","target":"/x"}}}'


def job(
    name: str, version: int = -1, *, account: str = "a", job_id: str = "", uri: str = URI, shard: ShardId = SHARD
) -> JobRow:
    key = JobKey(account, shard.table_id, name)
    return JobRow(key, job_id or f"id-{name}", SPEC, "t", uri, watermark=Watermark(version, 0.0), seq=version + 1)


def outcome(
    row: JobRow, version: int, *, code: int = ErrorCode.OK, committed: bool = True, message: str = ""
) -> JobOutcome:
    """Of a job that came to `version`, or that failed where it stands."""
    seq = row.seq + (committed and code == ErrorCode.OK)
    mark = Watermark(version, float(version))
    since = row.watermark.version
    return JobOutcome(row, mark, seq, code, message, rows=1, from_version=since, committed=seq > row.seq)


class Timetable:
    """Probes are answered at once from `source` unless `hold_probes`; iterations end when the test says so.

    `triggers` are those of the user's own, by name; `asked` are the facts that they were handed.
    """

    def __init__(self, times: ScheduleTimes | None = None, draw: Callable[[], float] = lambda: 0.0) -> None:
        self.clock = FakeClock()
        self.source, self.targets = FakeProbe(), FakeTargets()
        self.schedule = Schedule("n-1", PROBE, BACKOFF, draw, times, self.ask)
        self.triggers: dict[str, Callable[[TriggerFacts], object]] = {}
        self.asked: list[TriggerFacts] = []
        self.running: dict[int, Iteration] = {}
        self.submitted: list[Iteration] = []
        self.cancelled: list[int] = []
        self.news: list[ShardStarted | ShardStopped | Seen | VerifyAnswered] = []
        self.reports: list[JobReport] = []
        self.history: list[HistoryEntry] = []
        self.hold_probes = False
        self.probes: list[Probe] = []

    # --- what happens --------------------------------------------------------------------------------------------

    def step(self, event: ScheduleEvent) -> list[ScheduleEffect]:
        effects = self.schedule.step(event, self.clock.monotonic_s(), self.clock.now_s())
        for effect in effects:
            match effect:
                case Submit(iteration):
                    self.submitted.append(iteration)
                    self.running[iteration.number] = iteration
                case CancelIteration(number):
                    self.cancelled.append(number)
                case Reports(_, reports, history):
                    self.reports += reports
                    self.history += history
                case Probe():
                    self.probes.append(effect)
                case _:
                    self.news.append(effect)
        while self.probes and not self.hold_probes:
            self.answer()
        return effects

    def ask(self, name: str, facts: TriggerFacts) -> object:
        self.asked.append(facts)
        return self.triggers[name](facts)

    def answer(self) -> None:
        probe = self.probes.pop(0)
        try:
            state = probe_source(self.source, probe.uri, probe.seen)
            targets, further = self.look_at_targets(probe), self.look_further(probe)
            self.step(ProbeAnswered(probe.shard, probe.uri, state, targets=targets, further=further))
        except IscpError as error:
            self.step(ProbeAnswered(probe.shard, probe.uri, None, error))

    def look_at_targets(self, probe: Probe) -> tuple[TargetAnswer, ...]:
        answers = []
        for ask in probe.targets:
            try:
                seen = self.targets.probe(ask.row, ask.seen)
                if seen is not ask.seen:
                    answers.append(TargetAnswer(ask.row.job_id, seen))
            except IscpError as error:
                answers.append(TargetAnswer(ask.row.job_id, None, error))
        return tuple(answers)

    def look_further(self, probe: Probe) -> tuple[FurtherAnswer, ...]:
        answers = []
        for ask in probe.further:
            try:
                seen, source = ask.seen, self.source
                state = source.first_probe(ask.uri) if seen is None else source.probe(ask.uri, seen)
                if state is not seen:
                    answers.append(FurtherAnswer(ask.uri, state))
            except IscpError:
                answers.append(FurtherAnswer(ask.uri, None))
        return tuple(answers)

    def start(self, *rows: JobRow, shard: ShardId = SHARD) -> None:
        self.step(StartShard(shard, EPOCH, rows))

    def update(self, *rows: JobRow, shard: ShardId = SHARD) -> None:
        self.step(UpdateShard(shard, EPOCH, rows))

    def stop(self, shard: ShardId = SHARD) -> None:
        self.step(StopShard(shard))

    def notify(self, shard: ShardId = SHARD, targets: bool = False) -> None:
        self.step(Notified(shard, targets))

    def interrupt(self, row: JobRow) -> None:
        """An update with --interrupt made this row, which may not be here yet."""
        self.step(Interrupted(SHARD, row.job_id, row.spec_json))

    def started(self, number: int) -> None:
        self.step(IterationStarted(number))

    def end(self, number: int, *outcomes: JobOutcome, error: IscpError | None = None) -> None:
        del self.running[number]
        self.step(IterationEnded(number, outcomes, error))

    def reject(self, number: int) -> None:
        del self.running[number]
        self.step(IterationRejected(number))

    def succeed(self, number: int, version: int | None = None) -> None:
        """It brings all its jobs to its goal, or the newest, or `version`."""
        iteration = self.running[number]
        goal = iteration.to_version if version is None else version
        goal = self.source.versions[iteration.table_uri] if goal is None else goal
        self.end(number, *(outcome(row, goal, committed=goal > row.watermark.version) for row in iteration.jobs))

    def fail(self, number: int, code: int = ErrorCode.ENGINE, names: Iterable[str] | None = None) -> None:
        """It fails for the jobs of these names (None: all), and succeeds for the others."""
        iteration = self.running[number]
        newest = self.source.versions.get(iteration.table_uri, -1)
        goal = newest if iteration.to_version is None else iteration.to_version
        results = []
        for row in iteration.jobs:
            bad = names is None or row.key.job_name in names
            version = row.watermark.version if bad else goal
            results.append(outcome(row, version, code=code if bad else ErrorCode.OK, message="no" if bad else ""))
        self.end(number, *results)

    def end_cancelled(self, number: int) -> None:
        self.end(number, error=Canceled("cancelled"))

    def wait(self, seconds: float) -> None:
        """Time passes, and the schedule is woken when it wants to be."""
        end_s = self.clock.monotonic_s() + seconds
        for _ in range(100_000):
            due_s = self.schedule.next_due_s()
            if due_s is None or due_s > end_s:
                break
            self.clock.advance(max(0.0, due_s - self.clock.monotonic_s()))
            self.step(Tick())
        else:
            raise AssertionError("the schedule wants to be woken without end")
        self.clock.advance(max(0.0, end_s - self.clock.monotonic_s()))

    # --- what is seen --------------------------------------------------------------------------------------------

    @property
    def now_running(self) -> list[tuple[tuple[str, ...], int | None]]:
        """Names and goals of what runs."""
        return [(tuple(r.key.job_name for r in i.jobs), i.to_version) for i in self.running.values()]

    @property
    def last(self) -> Iteration:
        return self.submitted[-1]

    def told(self, name: str) -> list[tuple[str, str]]:
        """States and reasons reported of a job, in order; those that only moved its watermark left out."""
        return [
            (report.state.value, (report.reason or "none"))
            for report in self.reports
            if report.key.job_name == name and report.state is not None
        ]

    def forget(self) -> None:
        self.reports, self.history, self.news, self.submitted = [], [], [], []
        self.source.looks.clear()
        self.targets.looks.clear()


def repairs(world: Timetable) -> list[int]:
    return [news.seen.repair_version for news in world.news if isinstance(news, Seen)]


def seen(world: Timetable) -> list[tuple[int, float]]:
    return [(news.seen.source_version, news.seen.lag_s) for news in world.news if isinstance(news, Seen)]


def specified(row: JobRow, **spec: object) -> JobRow:
    return row._replace(spec_json=json.dumps(json.loads(row.spec_json) | spec))


def greedy(row: JobRow) -> JobRow:
    return specified(row, trigger={"job_type": "greedy"})


def periodic(row: JobRow, interval_s: float = 60.0, *, share: bool = False) -> JobRow:
    return specified(row, trigger={"job_type": "periodic", "schedule": {"interval": interval_s, "share": share}})


def custom(row: JobRow, name: str = "own", **options: object) -> JobRow:
    return specified(row, trigger={"job_type": "custom", "name": name, "options": options})


def stopped(world: Timetable) -> list[ShardId]:
    return [news.shard for news in world.news if isinstance(news, ShardStopped)]
