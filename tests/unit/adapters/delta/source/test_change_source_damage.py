"""A source's damaged log: a range is resolved correctly, or refused by an error that names table and file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.source.arrow_read import Shape
from iscp.adapters.delta.source.change_source import DeltaChangeSource
from iscp.core.job.iteration import Bounds
from iscp.core.values.errors import EngineError, ErrorCode, StorageError
from iscp.core.values.watermark import Watermark
from iscp.ports.source import ChangesUnavailableError, SourceRange
from tests.fakes.checkpoints import ANOTHER_ID, another_table_with, edit_checkpoint
from tests.fakes.commit_files import commit_path
from tests.fakes.damages import CONTENT, Damage, delete, link_to_itself, replaced_by
from tests.fakes.replayed_states import replay_state

APPLIED, CHECKPOINT, NEWEST = 4, 2, 7


def write(uri: str) -> str:
    for version in range(NEWEST + 1):
        rows = pa.table({"id": [version]})
        write_deltalake(uri, rows, mode="append", configuration={"delta.enableChangeDataFeed": "true"})
        if version == CHECKPOINT:
            DeltaTable(uri).create_checkpoint()
    return uri


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table and another one."""
    lake = tmp_path_factory.mktemp("lake")
    write(str(lake / "orders"))
    write(str(lake / "other"))
    return lake


@pytest.fixture
def lake(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "lake"))


def resolved(lake: Path, source: DeltaChangeSource) -> tuple[SourceRange, tuple[str, ...]]:
    uri = str(lake / "orders")
    span = source.resolve(uri, Watermark(APPLIED, 0.0), None, Bounds())
    return replace(span, from_at_s=0.0), source.columns(uri, span.last_version)


def commit(version: int) -> Callable[[Path], Path]:
    def path(lake: Path) -> Path:
        return lake / "orders" / "_delta_log" / f"{version:020d}.json"

    path.__name__ = f"commit {version}"
    return path


def checkpoint(lake: Path) -> Path:
    return lake / "orders" / "_delta_log" / f"{CHECKPOINT:020d}.checkpoint.parquet"


def last_checkpoint(lake: Path) -> Path:
    return lake / "orders" / "_delta_log" / "_last_checkpoint"


FILES = (commit(NEWEST), commit(NEWEST - 1), commit(APPLIED), commit(0), checkpoint, last_checkpoint)
DAMAGES = (*CONTENT, delete, link_to_itself)
MATRIX = [(file, damage) for file in FILES for damage in DAMAGES]


@pytest.mark.parametrize("knows", [False, True], ids=["opened again", "known before"])
@pytest.mark.parametrize(("file", "damage"), MATRIX, ids=[f"{f.__name__}-{d.__name__}" for f, d in MATRIX])
def test_a_damaged_log(lake: Path, file: Callable[[Path], Path], damage: Damage, knows: bool) -> None:
    source, whole = DeltaChangeSource(), resolved(lake, DeltaChangeSource())
    if knows:
        source.at(str(lake / "orders"), APPLIED)
    path = file(lake)
    kept = path.read_bytes()
    damage(path)
    try:
        found = resolved(lake, source)
    except StorageError as error:
        said = str(error)
        assert path.name in said or str(lake / "orders") in said
        if error.code == ErrorCode.LOG_CORRUPT:
            assert str(path) in said
    except ChangesUnavailableError:
        if damage is not delete:
            raise
    else:
        if damage is delete and path.name == f"{NEWEST:020d}.json":
            assert found[0].to.version == NEWEST - 1, "that there was another one nobody knows"
        else:
            assert found == whole, "what is passed over must not matter"
    path.unlink(missing_ok=True)
    path.write_bytes(kept)
    assert resolved(lake, source) == whole


@pytest.mark.parametrize("version", [NEWEST, NEWEST - 1])
@pytest.mark.parametrize("damage", [*CONTENT, link_to_itself])
def test_a_commit_that_is_outstanding_is_named_by_its_file(lake: Path, version: int, damage: Damage) -> None:
    path, source = commit(version)(lake), DeltaChangeSource()
    source.at(str(lake / "orders"), APPLIED)
    damage(path)
    with pytest.raises(StorageError, match=str(path)):
        resolved(lake, source)
    assert source.resolve(str(lake / "other"), Watermark(APPLIED, 0.0), None, Bounds()).to.version == NEWEST


def test_a_first_commit_of_another_table_is_another_table(lake: Path) -> None:
    """It has another table id, at which the jobs of the former table stop."""
    whole = resolved(lake, DeltaChangeSource())
    replaced_by(lake / "other" / "_delta_log" / f"{0:020d}.json")(commit(NEWEST)(lake))
    span, _ = resolved(lake, DeltaChangeSource())
    assert span.table_id != whole[0].table_id
    assert span.table_id == str(DeltaTable(str(lake / "other")).metadata().id)
    assert span.reshapes


def test_a_checkpoint_that_contradicts_the_commits_counts_as_for_every_other_reader(lake: Path) -> None:
    uri, source = str(lake / "orders"), DeltaChangeSource()
    assert source.at(uri, NEWEST).table_id == str(DeltaTable(uri).metadata().id)
    write_deltalake(uri, pa.table({"id": [8]}), mode="append")
    edit_checkpoint(uri, another_table_with("missing"))
    span, columns = resolved(lake, source)
    assert (span.table_id, columns) == (ANOTHER_ID, ("id", "missing"))
    assert resolved(lake, DeltaChangeSource()) == (span, columns)


@pytest.mark.parametrize("faults", [1, 2], ids=["for a moment", "for good"])
def test_a_range_is_given_up_for_a_version_that_never_opens_alone(tmp_path: Path, faults: int) -> None:
    uri = str(tmp_path / "orders")
    for columns in ({"id": [1]}, {"id": [2]}, {"id": [3], "added": [3]}):
        write_deltalake(uri, pa.table(columns), mode="append", schema_mode="merge")
    shape = Shape.of(DeltaTable(uri, version=1))
    DeltaTable(uri).create_checkpoint()
    (tmp_path / "orders" / "_delta_log" / f"{0:020}.json").unlink()  # from here on only Spark opens version 1
    opened: list[int] = []

    def by_spark(_: str, version: int) -> Shape:
        opened.append(version)
        if len(opened) <= faults:
            raise EngineError("Spark is gone")
        return shape

    source = DeltaChangeSource(by_spark=by_spark, list_files=lambda *_: [])
    with pytest.raises(ChangesUnavailableError) if faults > 1 else nullcontext():
        assert source.resolve(uri, Watermark(1), None, Bounds()).reshapes
    assert opened == [1, 1]


def test_a_table_that_deltalake_does_not_open_has_the_size_that_its_log_says(tmp_path: Path) -> None:
    uri = str(tmp_path / "orders")
    write_deltalake(uri, pa.table({"id": [1, 2]}))
    sized = DeltaChangeSource().size(uri, 0)
    first = commit_path(uri, 0)
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["ofTomorrow"]}
    protocol = json.dumps({"protocol": features | {"writerFeatures": ["ofTomorrow"]}})
    lines = [protocol if '"protocol"' in line else line for line in first.read_text().splitlines()]
    first.write_text("\n".join(lines))
    with pytest.raises(StorageError):
        DeltaChangeSource().size(uri, 0)
    assert DeltaChangeSource(load_state=replay_state).size(uri, 0) == sized
