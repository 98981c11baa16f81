"""Ranges take over from each other exactly once, however a table is split and merged, and whoever commits late."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from iscp.core.job.iteration import DataType
from iscp.core.job.job_row import JobRow
from iscp.core.job.watermark_record import WatermarkRecord, parse_record
from iscp.core.rows import key_ranges
from iscp.core.spec.spec import ConsumerSpec, JobSpec
from iscp.core.values.errors import Conflict, Superseded
from iscp.core.values.ids import JobKey, ranged_job_id
from iscp.core.values.watermark import NOTHING_APPLIED, Position, Watermark
from iscp.runtime.iteration.apply.change_reader import IterationRetriever
from iscp.runtime.iteration.job_run import JobRun
from iscp.runtime.iteration.range_position import RangePosition, read_position
from tests.fakes.guards import OpenGuard
from tests.fakes.pipeline import FakeConsumer, FakeKind, FakeSource, FakeTarget, fake_ports

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
