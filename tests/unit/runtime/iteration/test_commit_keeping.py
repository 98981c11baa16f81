"""What a node does for a task that keeps commits: in order, each once, and whose build begins again if one is gone."""

from __future__ import annotations

import pytest

from iscp.core.build.build_task import StagingBatch, StagingTask
from iscp.core.values.errors import Canceled, PlanOutdated, StorageError
from iscp.core.values.progress import NOTHING, TableSize
from iscp.ports.sink import BuildEnd
from iscp.runtime.iteration.range_staging import SnapshotRangeBuilder
from tests.fakes.bench import URI
from tests.fakes.guards import OpenGuard
from tests.fakes.kept_commits import KEPT, FakeKeptCommits
from tests.fakes.pipeline import fake_ports

from .test_range_staging import Builds, plan


@pytest.fixture
def builds() -> Builds:
    return Builds()


@pytest.fixture
def kept() -> FakeKeptCommits:
    return FakeKeptCommits()


def keep(builds: Builds, kept: FakeKeptCommits, after: int, until: int, guard: OpenGuard | None = None) -> TableSize:
    ports = fake_ports(builds.source, lambda name: builds.kind, builds.engine, builds.failpoints, kept=kept)
    task = StagingTask("s-1", "t", URI, after, until, "n1")
    batch = StagingBatch(task, tuple(plan(row, 1) for row in builds.jobs))
    try:
        return SnapshotRangeBuilder(ports, builds.reader).build(batch, guard or OpenGuard())
    finally:
        assert builds.engine.open_sessions == 0


def ends(builds: Builds) -> list[BuildEnd | None]:
    return [builds.staged(row).state().end for row in builds.jobs]


def test_all_commits_of_a_task_are_kept_in_order(builds: Builds, kept: FakeKeptCommits) -> None:
    assert keep(builds, kept, 1, 4) == TableSize(3 * KEPT.rows, 3 * KEPT.bytes)
    assert kept.versions == [2, 3, 4]


def test_an_empty_task_deletes_all(builds: Builds, kept: FakeKeptCommits) -> None:
    keep(builds, kept, 1, 3)
    assert keep(builds, kept, 3, 3) == NOTHING
    assert kept.versions == []


def test_builds_that_need_a_commit_that_is_gone_begin_again(builds: Builds, kept: FakeKeptCommits) -> None:
    kept.gone = {3}
    with pytest.raises(PlanOutdated, match="version 3"):
        keep(builds, kept, 1, 4)
    assert kept.versions == [2]
    assert ends(builds) == [BuildEnd.OUTDATED] * 2


def test_a_commit_that_no_build_needs_is_passed_over(builds: Builds, kept: FakeKeptCommits) -> None:
    kept.gone = {1}
    assert keep(builds, kept, 0, 2) == KEPT
    assert ends(builds) == [None] * 2


def test_a_fault_of_the_storage_is_no_reason_to_begin_again(builds: Builds, kept: FakeKeptCommits) -> None:
    kept.faults = [StorageError("it does not answer")]
    with pytest.raises(StorageError, match="does not answer"):
        keep(builds, kept, 1, 2)
    assert ends(builds) == [None] * 2


def test_who_is_stopped_keeps_and_ends_nothing(builds: Builds, kept: FakeKeptCommits) -> None:
    guard = OpenGuard()
    kept.gone = {2}
    builds.failpoints.once("keep.before", lambda: setattr(guard, "shut", True))
    with pytest.raises(Canceled):
        keep(builds, kept, 1, 2, guard)
    assert ends(builds) == [None] * 2
