"""First rows that are computed of several tables are built by ranges of a large one, at one version of each table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.engine.applier import FIRST_BUILD
from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.model.job.iteration import Bounds, DataType, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import BuildConfig
from iscp.model.values.errors import EngineError, ErrorCode, FileLost, PermanentError
from iscp.ports.sink import BuildEnd
from iscp.ports.source import ChangesUnavailableError
from iscp.schedule.runner import Runner
from tests.fakes.bench import NUMBERS, URI, job
from tests.fakes.build_driver import BuildDriver
from tests.fakes.guards import OpenGuard
from tests.fakes.pipeline import FakeSource, FakeTarget, fake_ports
from tests.fakes.ranged_counts import RangedCountingKind
from tests.fakes.refreshing import FakeTables
from tests.fakes.staged_builds import FakeRangeReader, FakeStagedRanges

OTHER = "/tables/t-2"
ROWS = {i: f"v{i}" for i in range(40)}
LARGE = BuildConfig(table_bytes_min=100, range_bytes=25)
"""The table of a FakeSource has 100 bytes."""


class Views:
    """A large table at version 1, another one, and a view of how many rows they have, not computed yet."""

    def __init__(self) -> None:
        self.other = FakeSource("t-2")
        self.own = FakeTables({OTHER: self.other})
        self.kind = RangedCountingKind(self.own)
        self.reader = FakeRangeReader(self.own)
        ports = replace(fake_ports(self.own, lambda name: self.kind), builds=LARGE)
        self.runner, self.node = Runner(ports, Bounds()), SnapshotRangeBuilder(ports, self.reader)
        self.own.commit(ROWS)
        self.other.commit({1: "x"})
        row = job("v", kind="view", key=(), options={"sql": "…", "tables": {"own": URI, "other": OTHER}})
        self.driver = BuildDriver([row], [self.node], self._run)

    def _run(self, row: JobRow) -> JobOutcome:
        (outcome,) = self.runner.run(Iteration(next(NUMBERS), "t-1", URI, (row,)), OpenGuard())
        return outcome

    def iterate(self) -> JobOutcome:
        (outcome,) = self.driver.iterate()
        return outcome

    def stage_all(self) -> None:
        for range_id in self.driver.waiting:
            assert self.driver.work(range_id) is None

    @property
    def row(self) -> JobRow:
        return self.driver.rows[0]

    @property
    def target(self) -> FakeTarget:
        return self.kind.target(self.row.spec.consumer.target)

    @property
    def build(self) -> FakeStagedRanges:
        (begun,) = [each for each in self.kind.builds if each.begun and each.ended is None]
        return begun

    def assert_built_at_once(self, outcome: JobOutcome) -> None:
        assert (outcome.ok, outcome.build, outcome.strategy_reason) == (True, None, FIRST_BUILD)
        assert self.target.commits == [("claim", 1), ("full", 2)]


@pytest.fixture
def views() -> Views:
    return Views()


def test_all_ranges_are_computed_at_the_versions_of_the_request_and_published_in_one_commit(views: Views) -> None:
    waits = views.iterate()
    assert waits.build is not None
    assert (waits.ok, waits.committed, waits.build.version, bool(waits.build.pin)) == (True, False, 1, True)
    agreed = views.build.agreed
    views.driver.work(views.driver.waiting[0])
    views.other.commit({2: "y"})
    views.own.commit({100: "late"})
    assert views.iterate().build == waits.build, "it goes on as it was begun"
    views.stage_all()
    assert views.target.commits == [("claim", 1)]
    outcome = views.iterate()
    assert (outcome.ok, outcome.build, outcome.data_type) == (True, None, DataType.SNAPSHOT)
    assert outcome.strategy_reason == f"{FIRST_BUILD}, by ranges"
    assert set(map(id, views.kind.computed)) == {id(agreed)}
    assert outcome.sources == agreed.sources
    assert {uri: mark.watermark.version for uri, mark in outcome.sources.items()} == {URI: 1, OTHER: 1}
    assert views.target.commits == [("claim", 1), ("ranges", 2)]
    assert views.target.rows == {0: "40", 1: "1"}
    assert not any(each.begun for each in views.kind.builds), "what marks it is removed"
    (outcome,) = [views._run(views.row)]
    assert (outcome.strategy, views.target.rows) == ("incremental", {0: "41", 1: "2"})


def test_a_query_that_takes_no_ranges_is_computed_at_once(views: Views) -> None:
    views.kind.takes_ranges = False
    views.assert_built_at_once(views.iterate())


def test_a_small_table_is_not_built_by_ranges(views: Views) -> None:
    ports = replace(fake_ports(views.own, lambda name: views.kind), builds=replace(LARGE, table_bytes_min=101))
    views.runner = Runner(ports, Bounds())
    views.assert_built_at_once(views.iterate())
    assert views.kind.builds == []


@pytest.mark.parametrize("fault", [ChangesUnavailableError("a version is gone"), FileLost("a file is gone")])
def test_another_table_that_is_cleaned_away_has_the_build_begin_again_at_newer_versions(
    views: Views, fault: Exception
) -> None:
    """Though the view's own table has not moved."""
    first = views.iterate()
    views.other.commit({2: "y"})
    views.kind.faults = [fault]
    views.driver.work(views.driver.waiting[0])
    again = views.iterate()
    assert first.build is not None
    assert again.build is not None
    assert (again.build.version, again.build.pin != first.build.pin) == (first.build.version, True)
    assert "a version of a table that it reads was cleaned away (VACUUM)" in again.warning
    views.stage_all()
    outcome = views.iterate()
    assert {uri: mark.watermark.version for uri, mark in outcome.sources.items()} == {URI: 1, OTHER: 2}
    assert views.target.rows == {0: "40", 1: "2"}


def test_a_build_that_would_read_the_same_again_is_not_begun_again(views: Views) -> None:
    """What is gone of the newest versions is gone for whoever reads them."""
    views.iterate()
    views.kind.faults = [FileLost("a file is gone")]
    views.driver.work(views.driver.waiting[0])
    views.assert_built_at_once(views.iterate())


def test_a_range_whose_values_have_no_result_is_left_to_the_whole_query(views: Views) -> None:
    views.iterate()
    views.kind.faults = [EngineError("division by zero")]
    views.driver.work(views.driver.waiting[0])
    assert [each.ended for each in views.kind.builds] == [BuildEnd.REFUSED]
    views.assert_built_at_once(views.iterate())


def test_terms_that_nobody_can_read_end_the_build(views: Views) -> None:
    views.iterate()
    views.build.terms = lambda: None  # type: ignore[method-assign]
    views.driver.work(views.driver.waiting[0])
    assert [each.ended for each in views.kind.builds] == [BuildEnd.REFUSED]
    views.assert_built_at_once(views.iterate())


@pytest.mark.parametrize("lost", ["files", "terms", "rows", "another table"])
def test_what_is_staged_and_cannot_be_published_is_computed_at_once(views: Views, lost: str) -> None:
    views.iterate()
    views.stage_all()
    match lost:
        case "files":
            views.build.lost = True
        case "terms":
            views.build.terms = lambda: None  # type: ignore[method-assign]
        case "rows":
            views.kind.misfits = True
        case _:
            views.kind.faults = [ChangesUnavailableError("a version is gone")]
    views.assert_built_at_once(views.iterate())


def test_a_fault_of_the_publication_is_the_jobs_and_what_is_staged_stays(views: Views) -> None:
    views.iterate()
    views.stage_all()
    views.kind.faults = [PermanentError("not now", code=ErrorCode.TARGET_UNUSABLE)]
    assert views.iterate().error_msg == "not now"
    outcome = views.iterate()
    assert (outcome.ok, outcome.strategy_reason) == (True, f"{FIRST_BUILD}, by ranges")


def test_a_view_that_was_built_before_is_computed_at_once(views: Views) -> None:
    """Its rows are there at once, for whoever reads it."""
    views.iterate()
    views.stage_all()
    views.iterate()
    row = views.row._replace(job_id="0000000000f1")
    outcome = views._run(row)
    assert (outcome.build, outcome.strategy) == (None, "full")
