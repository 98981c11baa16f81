"""What a node does for a task that keeps commits: in order, each once, and whose build begins again if one is gone."""

from __future__ import annotations

import pytest

from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.model.build.build_task import StagingBatch, StagingTask
from iscp.model.values.errors import Canceled, PlanOutdated, StorageError
from iscp.model.values.progress import NOTHING, TableSize
from iscp.ports.sink import BuildEnd
from tests.fakes.bench import URI
from tests.fakes.guards import OpenGuard
from tests.fakes.pipeline import fake_ports
from tests.fakes.retained_commits import RETAINED, FakeRetainedCommits

from .test_range_staging import Builds, plan


@pytest.fixture
def builds() -> Builds:
    return Builds()


@pytest.fixture
def retained() -> FakeRetainedCommits:
    return FakeRetainedCommits()


def keep(
    builds: Builds, retained: FakeRetainedCommits, after: int, until: int, guard: OpenGuard | None = None
) -> TableSize:
    ports = fake_ports(builds.source, lambda name: builds.kind, builds.engine, builds.failpoints, retained=retained)
    task = StagingTask("s-1", "t", URI, after, until, "n1")
    batch = StagingBatch(task, tuple(plan(row, 1) for row in builds.jobs))
    try:
        return SnapshotRangeBuilder(ports, builds.reader).build(batch, guard or OpenGuard())
    finally:
        assert builds.engine.open_sessions == 0


def ends(builds: Builds) -> list[BuildEnd | None]:
    return [builds.staged(row).state().end for row in builds.jobs]


def test_all_commits_of_a_task_are_kept_in_order(builds: Builds, retained: FakeRetainedCommits) -> None:
    assert keep(builds, retained, 1, 4) == TableSize(3 * RETAINED.rows, 3 * RETAINED.bytes)
    assert retained.versions == [2, 3, 4]


def test_an_empty_task_deletes_all(builds: Builds, retained: FakeRetainedCommits) -> None:
    keep(builds, retained, 1, 3)
    assert keep(builds, retained, 3, 3) == NOTHING
    assert retained.versions == []


def test_builds_that_need_a_commit_that_is_gone_begin_again(builds: Builds, retained: FakeRetainedCommits) -> None:
    retained.gone = {3}
    with pytest.raises(PlanOutdated, match="version 3"):
        keep(builds, retained, 1, 4)
    assert retained.versions == [2]
    assert ends(builds) == [BuildEnd.OUTDATED] * 2


def test_a_commit_that_no_build_needs_is_passed_over(builds: Builds, retained: FakeRetainedCommits) -> None:
    retained.gone = {1}
    assert keep(builds, retained, 0, 2) == RETAINED
    assert ends(builds) == [None] * 2


def test_a_fault_of_the_storage_is_no_reason_to_begin_again(builds: Builds, retained: FakeRetainedCommits) -> None:
    retained.faults = [StorageError("it does not answer")]
    with pytest.raises(StorageError, match="does not answer"):
        keep(builds, retained, 1, 2)
    assert ends(builds) == [None] * 2


def test_who_is_stopped_keeps_and_ends_nothing(builds: Builds, retained: FakeRetainedCommits) -> None:
    guard = OpenGuard()
    retained.gone = {2}
    builds.failpoints.once("keep.before", lambda: setattr(guard, "shut", True))
    with pytest.raises(Canceled):
        keep(builds, retained, 1, 2, guard)
    assert ends(builds) == [None] * 2
