"""A job's holds are in place before it reads, and a table's properties are read for them now and then alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from iscp.engine.iteration_ports import HOLD_CHECK_S, HOLDS_CACHED_MAX, HoldPlacer
from iscp.model.job.job_row import JobRow
from iscp.model.job.source_holds import holder_of
from iscp.model.values.errors import Conflict, LeaseLost
from iscp.model.values.watermark import Position, SourceMark, Watermark
from tests.fakes.guards import OpenGuard
from tests.fakes.holds import FakeHolds
from tests.fakes.owned_jobs import row

OWN, OTHER = "/lake/t", "/lake/u"
BOTH = {OWN: 60.0, OTHER: 120.0}


class Bench:
    """One job of a node, which reads its own table and another one."""

    def __init__(self) -> None:
        self.holds = FakeHolds()
        self.placer = HoldPlacer(self.holds)
        self.row: JobRow = row("x")._replace(table_uri=OWN)
        marks = {OTHER: SourceMark("id-u", Watermark(1, 1.0))}
        self.position = Position(seq=1, job_id=self.row.job_id, source_id="id-t", sources=marks)
        self.now_s = 100.0

    def place(self, wanted: Mapping[str, float] = BOTH) -> list[str]:
        """Place the holds, and return the tables whose properties were read for them."""
        self.holds.placed.clear()
        self.placer.place(self.row, wanted, self.position, OpenGuard(), self.now_s)
        return list(self.holds.placed)


def test_each_table_is_held_for_the_job_by_its_name() -> None:
    bench = Bench()
    assert bench.place() == [OWN, OTHER]
    holder = holder_of(bench.row.key)
    assert bench.holds.held == {(OWN, holder): 60.0, (OTHER, holder): 120.0}


def test_a_hold_that_is_in_place_is_not_read_again_for_an_hour() -> None:
    bench = Bench()
    bench.place()
    bench.now_s += HOLD_CHECK_S - 1
    assert bench.place() == []
    bench.now_s += 1
    assert bench.place() == [OWN, OTHER]
    assert bench.place() == []


def test_another_registration_another_time_and_another_table_are_placed_at_once() -> None:
    bench = Bench()
    bench.place()
    assert bench.place(BOTH | {OTHER: 121.0}) == [OTHER]
    bench.position = replace(bench.position, sources={OTHER: SourceMark("id-of-another", Watermark(1, 1.0))})
    assert bench.place() == [OTHER]
    bench.position = replace(bench.position, source_id="id-of-another")
    assert bench.place() == [OWN]
    bench.row = bench.row._replace(job_id="later")
    assert bench.place() == [OWN, OTHER]


def test_a_hold_that_failed_is_not_taken_to_be_there() -> None:
    bench = Bench()
    bench.holds.refusals[OTHER] = Conflict("another writer was first")
    with pytest.raises(Conflict):
        bench.place()
    bench.holds.refusals.clear()
    assert bench.place() == [OTHER]


def test_no_table_is_altered_without_the_lease() -> None:
    bench = Bench()

    class LostGuard(OpenGuard):
        def check(self) -> None:
            raise LeaseLost("the lease is over")

    with pytest.raises(LeaseLost):
        bench.placer.place(bench.row, BOTH, bench.position, LostGuard(), bench.now_s)
    assert bench.holds.held == {}


def test_what_is_known_of_holds_is_bounded_and_the_least_used_goes() -> None:
    bench = Bench()
    many = {f"/lake/{number:05}": 60.0 for number in range(HOLDS_CACHED_MAX)}
    bench.place(many)
    assert bench.place({"/lake/00000": 60.0}) == []
    bench.place({OWN: 60.0})
    assert bench.place({"/lake/00000": 60.0}) == []
    assert bench.place({"/lake/00001": 60.0}) == ["/lake/00001"]
