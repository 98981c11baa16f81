"""Every case of jobs by a node, by runs, and by both in turns: the same rows, by the same commits, in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.model.job.iteration import UNNAMED
from iscp.model.values.errors import ErrorCode
from iscp.model.values.watermark import Position
from iscp.spark.session import SparkRuntime
from tests.both_ways.cases import CASES, Case, CaseJob, Step
from tests.both_ways.held_rows import assert_holds, assert_left_out
from tests.both_ways.keepers import BY_TURNS, Brought, Keeper, NodeKeeper, RunKeeper, Start, position_of
from tests.both_ways.model_lake import Bag, ModelLake
from tests.selection import in_full

pytestmark = pytest.mark.spark

WAYS = {"node": (Keeper.NODE,), "run": (Keeper.RUN,), "in turns": BY_TURNS}
"""Who keeps the targets, over and over again: the first builds them, the second brings them up to date, and so on."""

FIRST_ROWS = 60
DIRECT = {"", "tail", "groups", "changes", "difference"}
"""The ways of work that need no Spark for small changes; but a view that is taken over is checked by Spark."""

ALL_ROWS = ("full", "snapshot", "difference")
"""The ways of work that read all rows."""

Figures = list[tuple[str, str, int]]
"""Of each step and job the rows that were written."""


class Played:
    """A case while it is played, with who keeps its targets."""

    def __init__(self, case: Case, lake: ModelLake, start: Start, way: str) -> None:
        self.case, self.lake, self.turns = case, lake, cycle(WAYS[way])
        self.requests = [each.request(lake.root) for each in case.jobs]
        self.node, self.runs = NodeKeeper(start), RunKeeper(start)
        self.keeper: Keeper | None = None
        self.positions = [Position() for _ in case.jobs]
        self.held: list[Bag] = [Bag() for _ in case.jobs]
        self.figures: Figures = []

    def play(self) -> None:
        for step in (None, *self.case.steps):
            for change in step.changes if step is not None else ():
                change(self.lake)
            try:
                self._bring_up(step)
            except BaseException as failure:
                failure.add_note(f"after {step.name if step else 'the first build'}, by {self.keeper}")
                raise

    def _bring_up(self, step: Step | None) -> None:
        """Have the keeper whose turn it is bring all up to date, and check what has come of it."""
        keeper = next(self.turns)
        taken = self.keeper not in (None, keeper)
        self.keeper = keeper
        brought = self._by_keeper(taken=taken)
        for place, (job, each) in enumerate(zip(self.case.jobs, brought, strict=True)):
            self._check(place, job, each, step, taken=taken)
        if keeper is Keeper.RUN:
            self._check_needs()
        direct = {each.strategy for each in brought} <= DIRECT and not taken
        if keeper is Keeper.RUN and step is not None and not step.by_spark and direct:
            assert not self.runs.started, "a run has started Spark for a small change"
        again = self._by_keeper(taken=False)
        assert [(each.error, each.strategy) for each in again] == [("", "")] * len(again), "there is nothing more to do"
        assert self._read() == self.positions
        if taken and keeper is Keeper.RUN:
            late = self.node.bring_up(self.requests)
            assert {each.error_code for each in late} == {ErrorCode.SUPERSEDED}
            assert self._read() == self.positions

    def _check_needs(self) -> None:
        """Check that a run says of each use of Spark why it was, and of which job it was the first."""
        runs = self.runs
        assert runs.started == bool(runs.first), "somebody has started Spark, and it is known who"
        assert runs.first <= runs.needs.keys()
        assert UNNAMED not in runs.needs.values()

    def _by_keeper(self, *, taken: bool) -> list[Brought]:
        if self.keeper is Keeper.NODE:
            return self.node.bring_up(self.requests, again=taken)
        return self.runs.bring_up(self.requests, take_over=taken)

    def _read(self) -> list[Position]:
        return [position_of(self.node.row_of(each)) for each in self.requests]

    def _check(self, place: int, job: CaseJob, brought: Brought, step: Step | None, *, taken: bool) -> None:
        """Check what one target holds, and by how many commits it has come to that."""
        assert brought.error == "", job.name
        row = self.node.row_of(self.requests[place])
        names, rows = self.lake.answer(job.holds)
        assert_holds(row.spec.consumer, names, rows)
        if job.left_out:
            names, left_out = self.lake.answer(job.left_out)
            assert_left_out(row.spec.consumer, names, left_out)
            assert brought.dead_letters == left_out.total()
        before, after = self.positions[place], position_of(row)
        assert (after.void, after.watermark.version) == ("", DeltaTable(row.table_uri).version()), job.name
        if step is not None:
            commits = after.seq - before.seq - taken
            assert commits in ((0, 1) if rows == self.held[place] else (1,)), job.name
            rebuilt = brought.strategy in ALL_ROWS
            assert job.compared or rebuilt == (job.name in step.rebuilds), (job.name, brought)
        self.positions[place], self.held[place] = after, rows
        self.figures.append((step.name if step else "", job.name, brought.rows))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ModelLake]:
    made = ModelLake(tmp_path)
    made.orders.create([(each, f"c{each % 4}", each) for each in range(FIRST_ROWS)])
    made.customers.create([(f"c{each}", ("east", "west")[each % 2]) for each in range(4)])
    yield made
    made.close()


@pytest.fixture(scope="module")
def figures() -> dict[str, Figures]:
    """What was done in each case by the way that was played first: all others do the same."""
    return {}


@pytest.mark.parametrize(
    ("case", "way"),
    in_full(
        [(case, way) for case in CASES for way in WAYS],
        but=[*((CASES[0], way) for way in WAYS), *((case, "in turns") for case in CASES[1:] if case.each_time)],
        unpack=True,
    ),
    ids=lambda each: each.name if isinstance(each, Case) else each,
)
@pytest.mark.slow(but=2)
def test_targets_hold_what_they_are_to_hold(
    case: Case, way: str, lake: ModelLake, spark_runtime: SparkRuntime, figures: dict[str, Figures]
) -> None:
    for job in case.jobs:
        lake.define(job.name, job.holds)
    played = Played(case, lake, lambda: spark_runtime, way)
    played.play()
    assert played.figures == figures.setdefault(case.name, played.figures)
