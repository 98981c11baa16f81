"""A commit of an index fails after another writer's, however long its own writer slept before it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from iscp.index.lance.index_columns import IndexHead, dataset_schema
from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.maintenance.index_shape import clean_up
from iscp.model.values.errors import Conflict
from iscp.storage.locations import VERSIONS, manifest_name
from iscp.system.threads import SystemClock
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.maintained_index import MaintainedIndex, Row, random_row, rows_of, same_rows

LATE = {"late": Row((" late ", None))}


def written(path: Path, points: ScriptedFailpoints | None = None) -> MaintainedIndex:
    index = MaintainedIndex(str(path / "index"), failpoints=points)
    index.create()
    index.change({"a": Row((" one ", " two "))}, [])
    return index


@pytest.mark.parametrize("replace", [False, True])
def test_a_writer_that_slept_for_longer_than_versions_are_kept_is_refused(tmp_path: Path, replace: bool) -> None:
    points = ScriptedFailpoints()
    index, others = written(tmp_path, points), MaintainedIndex(str(tmp_path / "index"))

    def write_and_clean() -> None:
        others.model = dict(index.model)
        for number in range(3):
            others.change({str(number): Row((" more ", None))}, [])
        clean_up(others.store.open(), 0.0, ScriptedFailpoints())

    points.once("index.commit.before", write_and_clean)
    with pytest.raises(Conflict, match="the version that was read is gone"):
        index.change(LATE, [], replace=replace)
    assert same_rows(rows_of(others.store.open()), others.model)


def test_a_version_that_fences_refuses_all_before_it_where_its_manifest_alone_is_left(tmp_path: Path) -> None:
    points = ScriptedFailpoints()
    index, others = written(tmp_path, points), MaintainedIndex(str(tmp_path / "index"))

    def fence() -> None:
        for number in range(3):
            others.change({str(number): Row((" more ", None))}, [])
        commit = others.store.begin()
        commit.replace_all(dataset_schema((), 0, 0), IndexHead("", ()), fences=True)
        newest = commit.commit().version
        for version in range(1, newest):
            if version != 2:  # that of the late writer, so that Lance has to refuse it
                os.unlink(f"{others.store.root}/{VERSIONS}/{manifest_name(version)}")

    points.once("index.commit.before", fence)
    with pytest.raises(Conflict, match="another writer was first"):
        index.change(LATE, [])
    assert (others.store.open().head.rows, others.store.open().dataset.count_rows()) == (0, 1)


@pytest.mark.parametrize("point", ["maintain.compact.written", "maintain.segments.built"])
def test_maintenance_that_slept_for_longer_than_versions_are_kept_changes_nothing(tmp_path: Path, point: str) -> None:
    """A compaction that commits after rows were deleted of its fragments would bring them back."""
    chance, points = random.Random(3), ScriptedFailpoints()
    index = MaintainedIndex(str(tmp_path / "index"))
    index.create()
    for number in range(24):
        index.change({f"{number}-{each}": random_row(chance) for each in range(100)}, [])
    if point == "maintain.compact.written":
        maintain(index.store, MaintenanceLimits(keep_s=600.0), SystemClock(), ScriptedFailpoints(), 0.0)

    def write_and_clean() -> None:
        index.change({}, [f"{number}-7" for number in range(24)])
        index.change({"more": random_row(chance)}, [])
        clean_up(index.store.open(), 0.0, ScriptedFailpoints())

    points.once(point, write_and_clean)
    done = maintain(index.store, MaintenanceLimits(keep_s=600.0), SystemClock(), points, 0.0)
    assert done.lost
    assert same_rows(rows_of(index.store.open()), index.model)
