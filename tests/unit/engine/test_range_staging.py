"""A range is read once and staged for all jobs of its batch that lack it, and what stops one of them stops no other.

Ranges take over from each other exactly once, however a table is split and merged, and whoever commits late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from iscp.engine.apply_run import IterationRetriever
from iscp.engine.iteration_ports import JobRun
from iscp.engine.range_staging import RangePosition, SnapshotRangeBuilder, read_position
from iscp.model.build.build_task import BuildPlan, RangeBatch
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import Deaths
from iscp.model.job.watermark_record import WatermarkRecord, parse_record
from iscp.model.rows import key_ranges
from iscp.model.rows.key_ranges import children
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import (
    Canceled,
    Conflict,
    EngineError,
    ErrorCode,
    InvalidRequest,
    IscpError,
    PermanentError,
    PlanOutdated,
    StorageError,
    Superseded,
)
from iscp.model.values.ids import JobKey, ranged_job_id
from iscp.model.values.progress import UNCOUNTED, TableSize
from iscp.model.values.watermark import NOTHING_APPLIED, Position, Watermark
from iscp.ports.sink import BuildEnd
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.bench import URI, job
from tests.fakes.deaths import FakeDeaths
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.fakes.pipeline import FakeConsumer, FakeEngine, FakeKind, FakeSource, FakeTarget, fake_ports
from tests.fakes.staged_builds import ROW_BYTES, FakeRangeKind, FakeRangeReader, FakeStagedRanges, rows_in_range

ROWS = {i: f"v{i}" for i in range(40)}
LEFT = 2


class Builds:
    """A source of 40 rows at version 1, a node, and jobs whose builds of it have begun."""

    def __init__(self) -> None:
        self.source, self.kind, self.engine = FakeSource(), FakeRangeKind(), FakeEngine()
        self.reader, self.failpoints, self.guard = FakeRangeReader(self.source), ScriptedFailpoints(), OpenGuard()
        self.elsewhere: list[str] = []
        self.deaths = FakeDeaths()
        ports = fake_ports(
            *(self.source, lambda name: self.kind, self.engine, self.failpoints),
            require_places=self._require_places,
            deaths=self.deaths,
        )
        self.node = SnapshotRangeBuilder(ports, self.reader)
        self.source.commit(ROWS)
        self.jobs = [job("x"), job("y")]
        for each in self.jobs:
            self.staged(each).begin()

    def _require_places(self, row: JobRow) -> None:
        if row.key.job_name in self.elsewhere:
            raise InvalidRequest("lies elsewhere", field="table", code=ErrorCode.OUTSIDE_ROOTS)

    def staged(self, row: JobRow) -> FakeStagedRanges:
        return self.kind.staged(row.spec.consumer.target)

    def batch(self, range_id: int = LEFT, version: int = 1) -> RangeBatch:
        return RangeBatch(range_id, tuple(plan(row, version) for row in self.jobs))

    def build(self, range_id: int = LEFT) -> TableSize:
        size = self.node.build(self.batch(range_id), self.guard)
        assert self.engine.open_sessions == 0
        return size

    def ranges(self) -> list[list[int]]:
        """What is staged of each job."""
        return [sorted(self.staged(each).rows) for each in self.jobs]


def plan(row: JobRow, version: int) -> BuildPlan:
    key = row.key
    return BuildPlan(row.job_id, key.account, key.table_id, key.job_name, URI, version, row.spec_json, 1 << 30, 1)


@pytest.fixture
def builds() -> Builds:
    return Builds()


def test_a_range_is_read_once_and_staged_for_every_job(builds: Builds) -> None:
    builds.kind.keeps = lambda i: i % 2 == 0
    rows = rows_in_range(ROWS, LEFT)
    assert builds.build() == TableSize(len(rows), ROW_BYTES * len(rows)), "all that it has of the source"
    for each in builds.jobs:
        assert builds.staged(each).rows == {LEFT: {i: value for i, value in rows.items() if i % 2 == 0}}
    assert builds.reader.reads == [LEFT]
    assert builds.reader.once == [rows]


def test_a_job_that_the_node_has_died_of_twice_is_built_without_ranges(builds: Builds) -> None:
    """Its iteration says why it does not run; what is staged for the others counts."""
    x, y = builds.jobs
    builds.deaths.known = {x.job_id: Deaths(1), y.job_id: Deaths(2)}
    builds.build()
    assert builds.ranges() == [[LEFT], []]
    assert (builds.staged(x).state().end, builds.staged(y).state().end) == (None, BuildEnd.REFUSED)
    assert builds.deaths.begun == [[x.job_id, y.job_id]]
    assert builds.deaths.at == []
    builds.deaths.known[x.job_id] = Deaths(2)
    with pytest.raises(PlanOutdated):
        builds.build()


def test_a_range_without_rows_is_staged_as_that(builds: Builds) -> None:
    builds.source.commit(dict.fromkeys(ROWS))
    builds.node.build(builds.batch(version=2), builds.guard)
    assert [builds.staged(each).rows for each in builds.jobs] == [{LEFT: {}}] * 2


def test_what_is_staged_is_not_read_again(builds: Builds) -> None:
    """Nor what it was cut into; and a job that has it costs another one nothing."""
    builds.staged(builds.jobs[0]).rows = {LEFT: {}}
    builds.build()
    assert builds.staged(builds.jobs[0]).rows == {LEFT: {}}
    assert builds.reader.once == [], "for one job alone"
    builds.staged(builds.jobs[1]).rows = {half: {} for half in children(LEFT)}
    reads = list(builds.reader.reads)
    assert builds.build().rows == len(rows_in_range(ROWS, LEFT))
    assert builds.reader.reads == reads
    assert builds.failpoints.reached == ["range.before"]


def test_of_what_is_staged_nothing_is_needed_but_its_size_where_that_is_known(builds: Builds) -> None:
    builds.build()
    builds.reader.lists = False
    assert builds.build() == UNCOUNTED


def test_few_rows_need_no_spark_where_the_target_takes_them_so(builds: Builds) -> None:
    """They are read once for all jobs, and by Spark for those whose targets need that."""
    builds.reader.small = True
    builds.staged(builds.jobs[1]).describes = False
    builds.build()
    assert [builds.staged(each).direct for each in builds.jobs] == [[LEFT], []]
    assert builds.ranges() == [[LEFT], [LEFT]]
    assert builds.reader.reads == [LEFT, LEFT]


def test_few_rows_are_not_read_without_spark_where_spark_has_to_choose_them(builds: Builds) -> None:
    builds.reader.small = builds.kind.by_spark = True
    builds.build()
    assert [builds.staged(each).direct for each in builds.jobs] == [[], []]
    assert builds.ranges() == [[LEFT], [LEFT]]
    assert builds.reader.reads == [LEFT]


def test_a_version_that_is_gone_stages_nothing(builds: Builds) -> None:
    builds.source.gone.add(1)
    with pytest.raises(PlanOutdated, match="version 1 of /tables/t-1 is gone"):
        builds.build()
    assert builds.ranges() == [[], []]


def test_rows_that_vanish_while_they_are_read_end_the_builds_of_all(builds: Builds) -> None:
    builds.reader.faults = [ChangesUnavailableError("a file is gone")]
    with pytest.raises(PlanOutdated, match="cannot be read: a file is gone"):
        builds.build()
    assert [builds.staged(each).ended for each in builds.jobs] == [BuildEnd.OUTDATED] * 2
    with pytest.raises(PlanOutdated, match="is over"):
        builds.build()


def test_a_build_that_is_over_is_left_alone_and_others_go_on(builds: Builds) -> None:
    builds.staged(builds.jobs[0]).end(BuildEnd.REFUSED)
    builds.build()
    assert builds.ranges() == [[], [LEFT]]
    builds.staged(builds.jobs[1]).remove()
    with pytest.raises(PlanOutdated, match="is over"):
        builds.build()


@pytest.mark.parametrize("fault", [InvalidRequest("a value that it cannot keep"), EngineError("no such function")])
def test_a_job_whose_rows_cannot_be_kept_is_built_without_ranges(builds: Builds, fault: IscpError) -> None:
    builds.staged(builds.jobs[0]).faults = [fault]
    builds.build()
    assert [builds.staged(each).ended for each in builds.jobs] == [BuildEnd.REFUSED, None]
    assert builds.ranges() == [[], [LEFT]]


@pytest.mark.parametrize("fault", [PermanentError("a type that nobody reads"), EngineError("no such field")])
def test_a_table_whose_ranges_cannot_be_read_is_left_to_what_its_jobs_report(builds: Builds, fault: IscpError) -> None:
    builds.reader.faults = [fault]
    assert builds.build() == UNCOUNTED
    assert [builds.staged(each).ended for each in builds.jobs] == [BuildEnd.REFUSED] * 2
    with pytest.raises(PlanOutdated, match="is over"):
        builds.build(LEFT + 1)


def test_a_table_whose_reading_fails_as_it_is_cancelled_is_built_on(builds: Builds) -> None:
    builds.reader.faults = [EngineError("the executors are gone")]
    builds.failpoints.once("range.before", lambda: setattr(builds.guard, "shut", True))
    with pytest.raises(Canceled):
        builds.build()
    assert [builds.staged(each).ended for each in builds.jobs] == [None, None]


def test_a_job_whose_places_are_none_of_its_accounts_is_left_out_and_others_go_on(builds: Builds) -> None:
    builds.elsewhere = ["x"]
    builds.build()
    assert builds.ranges() == [[], [LEFT]]
    builds.elsewhere = ["x", "y"]
    builds.build()
    assert builds.ranges() == [[], [LEFT]]


def test_a_build_that_was_removed_meanwhile_holds_up_no_other(builds: Builds) -> None:
    first = builds.staged(builds.jobs[0])
    builds.failpoints.once("range.before", first.remove)
    builds.build()
    assert (first.ended, builds.ranges()) == (None, [[], [LEFT]])


def test_a_storage_that_fails_is_tried_again(builds: Builds) -> None:
    builds.staged(builds.jobs[1]).faults = [StorageError("no space")]
    with pytest.raises(StorageError):
        builds.build()
    assert [builds.staged(each).ended for each in builds.jobs] == [None, None]
    builds.build()
    assert builds.ranges() == [[LEFT], [LEFT]]


def test_who_is_cancelled_stages_nothing_more(builds: Builds) -> None:
    builds.staged(builds.jobs[0]).before_stage = lambda: setattr(builds.guard, "shut", True)
    with pytest.raises(Canceled):
        builds.build()
    assert builds.ranges() == [[LEFT], []]
    with pytest.raises(Canceled):
        builds.build()
    assert builds.reader.reads == [LEFT], "nothing is read for who is cancelled before"


def test_what_fails_as_it_is_cancelled_says_nothing_of_the_rows(builds: Builds) -> None:
    def fail() -> None:
        builds.guard.shut = True
        raise EngineError("the executors are gone")

    builds.staged(builds.jobs[0]).before_stage = fail
    with pytest.raises(Canceled):
        builds.build()
    assert builds.staged(builds.jobs[0]).ended is None


def test_the_engines_work_is_cancelled_by_a_label_that_no_other_batch_has(builds: Builds) -> None:
    labels: list[str] = []

    def cancel() -> None:
        labels.extend(builds.engine.labels.values())
        builds.node.cancel(builds.guard)

    builds.node.cancel(builds.guard)
    for range_id in children(1):
        builds.failpoints.once("range.before", cancel)
        builds.build(range_id)
        builds.node.cancel(builds.guard)
    assert builds.engine.cancelled == labels, "nothing before it begins, nor once it has ended"
    assert len(set(labels)) == 2


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch_that_has_ended_is_forgotten(builds: Builds, fails: bool) -> None:
    builds.staged(builds.jobs[0]).faults = [StorageError("no space")] if fails else []
    attempt: Callable[[], object] = lambda: builds.node.build(builds.batch(), builds.guard)  # noqa: E731
    if fails:
        with pytest.raises(StorageError):
            attempt()
    else:
        attempt()
    builds.node.cancel(builds.guard)
    assert builds.engine.cancelled == []


def test_jobs_of_one_batch_read_what_their_plan_says(builds: Builds) -> None:
    builds.source.commit({1: "later"})
    batch = builds.batch()
    builds.node.build(replace(batch, plans=batch.plans[:1]), builds.guard)
    assert builds.staged(builds.jobs[0]).rows == {LEFT: rows_in_range(ROWS, LEFT)}


SPEC = JobSpec(ConsumerSpec("custom", "/target", ("id",))).to_json()
LEAVES = range(key_ranges.RANGES_MAX, 2 * key_ranges.RANGES_MAX)


@dataclass
class Plan:
    """What an iteration has read, and is to commit: the versions (`since`, `to`] for the keys of `range_id`."""

    row: JobRow
    stands: RangePosition
    range_id: int
    since: int
    to: int


@dataclass
class Sink:
    """`at`: the version that the rows of each of the smallest ranges have reached; -1: there are none."""

    texts: dict[str, str] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=lambda: dict.fromkeys(LEAVES, NOTHING_APPLIED))
    now: int = 0

    def records(self, keys: Sequence[str]) -> dict[str, str | None]:
        return {key: self.texts.get(key) for key in keys}

    def plan(self, row: JobRow) -> Plan:
        stands = read_position(row, self, {})  # type: ignore[arg-type]
        part = stands.lagging(())
        if part is not None:
            return Plan(row, stands, part.range_id, part.record.watermark.version, stands.goal)
        snapshot = stands.position.job_id != row.job_id
        since = NOTHING_APPLIED if snapshot else stands.position.watermark.version
        return Plan(row, stands, row.key.range_id, since, self.now)

    def commit(self, plan: Plan) -> None:
        """Raises Conflict, and then has changed nothing."""
        before, row = dict(self.texts), plan.row._replace(key=plan.row.key.of_range(plan.range_id))
        seq = max(plan.stands.position.seq, row.seq) + 1
        record = WatermarkRecord(seq, Watermark(plan.to), row.job_id, "t", plan.since, 1, "x", row.origin)
        base_seq, takeover = plan.stands.position.base_version, plan.stands.takeover
        kind, position = FakeKind(sharded=True), Position(base_version=base_seq)
        work = JobRun(row, kind, FakeConsumer(FakeTarget()), position, takeover)
        handed = IterationRetriever(
            DataType.TAIL, work, record, fake_ports(FakeSource(), lambda name: kind), OpenGuard()
        )
        try:
            handed.update_watermark(self)
        except Conflict:
            self.texts = before
            raise
        for leaf in LEAVES:
            if key_ranges.overlaps(leaf, plan.range_id):
                assert plan.since in (NOTHING_APPLIED, self.at[leaf]), "a change is lost, or applied twice"
                self.at[leaf] = plan.to

    def get(self, key: str) -> str | None:
        return self.texts.get(key)

    def put(self, key: str, value: str) -> None:
        self.texts[key] = value


class Table:
    """One job's rows, as splits and merges make them."""

    def __init__(self) -> None:
        self.number = 1
        self.rows = [JobRow(JobKey("a", "t", "j"), "000001", SPEC, "t", "/t")]
        self.ended: list[JobRow] = []

    def reshard(self, gone: Sequence[int], come: Sequence[int]) -> None:
        self.number += 1
        before = [row for row in self.rows if row.key.range_id in gone]
        self.rows = [row for row in self.rows if row not in before]
        self.ended += before
        for range_id in come:
            job_id = ranged_job_id(f"{self.number:06}", range_id)
            self.rows.append(
                before[0]._replace(key=JobKey("a", "t", "j", range_id), job_id=job_id, origin=before[0].registration)
            )

    def somehow(self, draw: random.Random) -> None:
        ranges = {row.key.range_id for row in self.rows}
        range_id = draw.choice(sorted(ranges))
        if draw.random() < 0.5 and key_ranges.may_split(range_id):
            self.reshard([range_id], key_ranges.children(range_id))
        elif range_id > 1 and key_ranges.sibling(range_id) in ranges:
            self.reshard(key_ranges.children(key_ranges.parent(range_id)), [key_ranges.parent(range_id)])

    def anew(self) -> None:
        """The job is registered again on the same target."""
        self.number += 1
        self.ended += self.rows
        self.rows = [JobRow(JobKey("a", "t", "j"), f"{self.number:06}", SPEC, "t", "/t")]


@pytest.mark.parametrize("seed", range(200))
def test_each_change_is_applied_once_whatever_is_split_merged_and_late(seed: int) -> None:
    draw, table, sink = random.Random(seed), Table(), Sink()
    under_way: list[Plan] = []
    for _ in range(draw.randrange(20, 120)):
        sink.now += draw.randrange(2)
        step = draw.random()
        if step < 0.25:
            table.somehow(draw)
        elif step < 0.27:
            table.anew()
        elif step < 0.65:
            row = draw.choice(table.rows if draw.random() < 0.8 or not table.ended else table.ended)
            try:
                under_way.append(sink.plan(row))
            except Superseded:
                assert row in table.ended
        elif under_way:
            plan = under_way.pop(draw.randrange(len(under_way)))
            try:
                sink.commit(plan)
            except Conflict:
                continue
    for row in table.rows:
        while (plan := sink.plan(row)).since != sink.now or plan.stands.apart:
            sink.commit(plan)
    assert set(sink.at.values()) == {sink.now}
    for row in table.ended:
        with pytest.raises(Superseded):
            sink.plan(row)


def test_a_parent_that_commits_late_fails_and_both_children_find_where_it_was() -> None:
    table, sink = Table(), Sink()
    (whole,) = table.rows
    sink.commit(sink.plan(whole))
    sink.now = 3
    late = sink.plan(whole)
    table.reshard([1], [2, 3])
    low, high = table.rows
    sink.commit(sink.plan(high))
    with pytest.raises(Conflict):
        sink.commit(late)
    assert (sink.plan(low).since, sink.plan(low).to) == (0, 3)
    assert parse_record(sink.texts["iscp:/target"]).watermark == Watermark(0)
    sink.commit(sink.plan(low))
    assert sorted(sink.texts) == ["iscp:/target", "iscp:/target#2", "iscp:/target#3"]


def test_what_lags_is_brought_on_before_a_merged_range_begins() -> None:
    table, sink = Table(), Sink()
    sink.commit(sink.plan(table.rows[0]))
    table.reshard([1], [2, 3])
    low, high = table.rows
    sink.now = 1
    sink.commit(sink.plan(low))
    sink.now = 5
    sink.commit(sink.plan(high))
    table.reshard([2, 3], [1])
    sink.now = 9
    (whole,) = table.rows
    part = sink.plan(whole)
    assert (part.range_id, part.since, part.to) == (2, 1, 5)
    sink.commit(part)
    with pytest.raises(Superseded):
        sink.plan(high)
    both = sink.plan(whole)
    assert (both.range_id, both.since, both.to) == (1, 5, 9)


def test_a_range_that_was_never_applied_is_rebuilt_as_a_whole() -> None:
    table, sink = Table(), Sink()
    table.reshard([1], [2, 3])
    sink.commit(sink.plan(table.rows[0]))
    table.reshard([2, 3], [1])
    assert sink.plan(table.rows[0]).since == NOTHING_APPLIED
