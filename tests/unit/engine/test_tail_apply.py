"""Changes that are gone from the source are read from what was kept; only where nothing was, rows are compared.

A job's first snapshot of a large table: it requests a build, waits for it, and publishes what is staged, or does
without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from iscp.engine.tail_apply import PIECE_RANGES
from iscp.model.job.iteration import Bounds, DataType, Iteration, JobOutcome
from iscp.model.settings.config import BuildConfig
from iscp.model.spec.spec import ChangeMode
from iscp.model.values.errors import StorageError
from iscp.model.values.progress import SnapshotSize
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.sink import BuildEnd
from iscp.ports.source import ChangesUnavailableError
from iscp.schedule.runner import Runner
from tests.fakes.bench import NUMBERS, URI, Bench, job
from tests.fakes.build_driver import after
from tests.fakes.guards import OpenGuard
from tests.fakes.pipeline import FakeSource, FakeTarget, fake_ports
from tests.fakes.staged_builds import FakeRangeKind, FakeStagedRanges, rows_in_range, sink_rows


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_as_long_as_the_source_has_its_changes_nothing_else_is_read(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    bench.retained.retain_all_of(bench.source)
    assert bench.run(x)[0].data_type is DataType.TAIL
    assert bench.retained.reads == 0


def test_jobs_of_one_watermark_share_one_read_of_what_was_kept(bench: Bench) -> None:
    jobs = bench.built("x", "y")
    bench.source.commit({3: "c"})
    bench.source.commit({1: None})
    bench.retained.retain_all_of(bench.source)
    bench.source.gone = {2}
    outcomes = bench.run(*jobs)
    assert [(each.data_type, each.from_version, each.watermark.version) for each in outcomes] == [
        (DataType.TAIL, 1, 3)
    ] * 2
    assert (bench.retained.reads, bench.source.snapshots) == (1, [])
    bench.assert_fresh(*jobs)


def test_changes_that_turn_out_to_be_gone_when_they_are_read_are_those_that_were_kept(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    bench.retained.retain_all_of(bench.source)
    bench.source.net_faults = {("id",): ChangesUnavailableError("a file is gone")}
    assert bench.retained.origin is not None
    bench.retained.origin.net_faults = {}
    assert bench.run(x)[0].data_type is DataType.TAIL
    assert bench.retained.reads == 1
    bench.assert_fresh(x)


def test_what_was_kept_goes_as_far_as_it_goes_and_the_rest_is_compared(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    bench.retained.retain_all_of(bench.source)
    bench.source.commit({4: "d"})
    bench.source.gone = {2, 3}
    bench.source.commit({5: "e"})
    (first,) = bench.run(x)
    assert (first.data_type, first.watermark.version) == (DataType.TAIL, 2)
    (second,) = bench.run(x._replace(seq=first.seq, watermark=first.watermark))
    assert (second.data_type, second.watermark.version) == (DataType.DIFFERENCE, 4)
    bench.assert_fresh(x)


@pytest.mark.parametrize("what", ["nothing is kept", "another table", "the policy"])
def test_all_rows_are_compared_where_what_was_kept_does_not_do(bench: Bench, what: str) -> None:
    policies = {"change_source": ChangeMode.DIFF} if what == "the policy" else {}
    (x,) = bench.built("x", **policies)
    bench.source.commit({3: "c"})
    if what != "nothing is kept":
        bench.retained.retain_all_of(bench.source)
    if what == "another table":
        assert bench.retained.origin is not None
        bench.retained.origin.ids = ["t-2"] * 3
    bench.source.gone = {2}
    bench.source.commit({4: "d"})
    assert bench.run(x)[0].data_type is DataType.DIFFERENCE
    assert bench.retained.reads == 0
    bench.assert_fresh(x)


ROWS = {i: f"v{i}" for i in range(40)}
LARGE = BuildConfig(table_bytes_min=100, range_bytes=25)
"""The table of a FakeSource has 100 bytes."""


class Large:
    """A table of 40 rows at version 1, and a job on it."""

    def __init__(self, config: BuildConfig = LARGE) -> None:
        self.source, self.kind, self.row = FakeSource(), FakeRangeKind(), job("x")
        self.configure(config)
        self.source.commit(ROWS)

    def configure(self, config: BuildConfig) -> None:
        self.runner = Runner(replace(fake_ports(self.source, lambda name: self.kind), builds=config), Bounds())

    def run(self) -> JobOutcome:
        (outcome,) = self.runner.run(Iteration(next(NUMBERS), "t-1", URI, (self.row,)), OpenGuard())
        self.row = after(self.row, outcome)
        return outcome

    def stage_all(self) -> None:
        """As nodes do."""
        assert self.row.build is not None
        for range_id in range(4, 8):
            self.staged.stage(range_id, sink_rows(rows_in_range(self.source.states[self.row.build.version], range_id)))

    @property
    def staged(self) -> FakeStagedRanges:
        return self.kind.staged(self.row.spec.consumer.target)

    @property
    def target(self) -> FakeTarget:
        return self.kind.target(self.row.spec.consumer.target)

    def assert_built_at_once(self, outcome: JobOutcome, *commits: str) -> None:
        """`commits`: those before the snapshot."""
        assert (outcome.ok, outcome.build, outcome.data_type) == (True, None, DataType.SNAPSHOT)
        assert [kind for kind, _ in self.target.commits] == [*commits, "snapshot"]
        assert self.target.rows == self.source.states[-1]


@pytest.fixture
def large() -> Large:
    return Large()


def test_the_sink_is_claimed_and_a_build_requested_with_the_size_of_the_snapshot(large: Large) -> None:
    outcome = large.run()
    assert outcome.build is not None
    assert (outcome.ok, outcome.committed, outcome.watermark.version) == (True, False, -1)
    assert (outcome.build.version, outcome.build.depth, outcome.build.piece_bytes) == (1, 2, PIECE_RANGES * 25)
    assert outcome.build.size == SnapshotSize(40, 100, 1)
    assert large.target.commits == [("claim", 1)]
    assert large.staged.begun


def test_it_waits_without_reading_anything_until_all_is_staged_and_publishes_that_in_one_commit(large: Large) -> None:
    first = large.run()
    large.source.snapshots.clear()
    assert large.run().build == first.build
    large.staged.stage(4, sink_rows(rows_in_range(ROWS, 4)))
    assert large.run().build == first.build
    large.source.commit({1: "later"})
    large.stage_all()
    outcome = large.run()
    assert (outcome.ok, outcome.build, outcome.rows, outcome.watermark.version) == (True, None, 40, 1)
    assert large.target.commits == [("claim", 1), ("publish", 2)]
    assert (large.target.rows, large.source.snapshots) == (ROWS, [])
    assert not large.staged.begun, "what marks it is removed"
    assert large.run().data_type is DataType.TAIL


def test_what_is_staged_in_other_ranges_is_published_too(large: Large) -> None:
    large.run()
    for range_id in (2, 6, 7, 5):
        large.staged.stage(range_id, sink_rows(rows_in_range(ROWS, range_id)))
    assert large.run().ok
    assert large.target.rows == ROWS


@pytest.mark.parametrize(
    "change",
    [
        lambda large: large.configure(replace(LARGE, table_bytes_min=101)),
        lambda large: large.configure(replace(LARGE, table_bytes_min=0)),
        lambda large: setattr(large.kind, "takes_ranges", False),
        lambda large: setattr(large.kind, "is_built_by_ranges", False),
    ],
    ids=["small", "none is built so", "the sink does not take them", "the kind does not"],
)
def test_what_is_not_built_by_ranges_takes_one_snapshot(large: Large, change: Callable[[Large], None]) -> None:
    change(large)
    large.assert_built_at_once(large.run(), "claim")
    assert not large.staged.begun


def test_a_table_whose_size_nobody_knows_takes_one_snapshot(large: Large) -> None:
    def fail(uri: str, version: int) -> SnapshotSize:
        raise StorageError("only Spark opens it")

    large.source.size_of = fail
    large.assert_built_at_once(large.run(), "claim")


def test_a_table_without_files_is_built_at_once() -> None:
    """Whatever is configured: it has less than any table that is built by ranges."""
    empty = Large(replace(LARGE, table_bytes_min=1))
    empty.source.commit(dict.fromkeys(ROWS))
    empty.source.size_of = lambda uri, version: SnapshotSize(0, 0, 0)
    empty.assert_built_at_once(empty.run(), "claim")
    assert empty.target.rows == {}


def test_a_target_that_was_built_before_is_rebuilt_at_once(large: Large) -> None:
    large.row, large.target.position = large.row._replace(watermark=Watermark(0, 1.0), seq=3), Position(3)
    large.assert_built_at_once(large.run(), "claim")


@pytest.mark.parametrize("lost", [True, False])
def test_what_cannot_be_published_takes_one_snapshot_and_no_build_again(large: Large, lost: bool) -> None:
    """Its staged files are gone, or rows of two ranges share a key."""
    large.run()
    large.stage_all()
    large.staged.lost, large.kind.shares_keys = lost, not lost
    large.assert_built_at_once(large.run(), "claim")


def test_a_build_that_was_refused_takes_one_snapshot(large: Large) -> None:
    large.run()
    large.staged.end(BuildEnd.REFUSED)
    large.assert_built_at_once(large.run(), "claim")


def test_a_version_that_cannot_be_read_any_more_is_followed_by_a_newer_one(large: Large) -> None:
    large.run()
    large.staged.end(BuildEnd.OUTDATED)
    large.source.commit({1: "later"})
    large.staged.remove()
    outcome = large.run()
    assert outcome.build is not None
    assert outcome.build.version == 2


def test_a_version_whose_log_is_gone_is_followed_by_a_newer_one(large: Large) -> None:
    large.run()
    large.source.commit({1: "later"})
    large.source.gone.add(1)
    outcome = large.run()
    assert outcome.build is not None
    assert outcome.build.version == 2


def test_the_same_version_is_not_built_twice(large: Large) -> None:
    """It cannot be read by ranges, and nothing has come since."""
    large.run()
    large.staged.end(BuildEnd.OUTDATED)
    large.assert_built_at_once(large.run(), "claim")


def test_marks_that_cannot_be_removed_hold_up_no_job(large: Large) -> None:
    large.run()
    large.stage_all()
    large.staged.stuck = StorageError("read-only")
    assert large.run().ok
    assert large.target.rows == ROWS
