"""A commit of an index fails after another writer's, however long its own writer slept before it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iscp.adapters.delta.storage.dataset_names import VERSIONS, manifest_name
from iscp.core.values.errors import Conflict
from iscp.index.lance.index_columns import dataset_schema
from iscp.index.lance.index_head import IndexHead
from iscp.index.maintenance.clean_up import clean_up
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.maintained_index import MaintainedIndex, Row, rows_of, same_rows

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
