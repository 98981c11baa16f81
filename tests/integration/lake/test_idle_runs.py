"""A run with nothing to do opens no table: it lists the logs, and reads the newest commits of sources and targets."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import iscp
from iscp.model.run.run_plan import ResultState, RunResult
from iscp.spark.session import SparkRuntime


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{each}" for each in ids]})


def refresh(root: Path) -> RunResult:
    """Refresh a replica as another process does, which knows nothing yet."""
    with iscp.local() as lake:
        return lake.replica(str(root / "source"), str(root / "copy"), key=["id"]).refresh()


def test_what_has_not_changed_is_not_opened_and_what_has_is(tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    write_deltalake(source, rows(1, 2), configuration={"delta.enableChangeDataFeed": "true"})
    write_deltalake(source, rows(3), mode="append")
    assert refresh(tmp_path).state is ResultState.UPDATED
    idle = refresh(tmp_path)
    assert (idle.state, idle.from_version, idle.to_version) == (ResultState.CURRENT, 1, 1)

    first = Path(source, "_delta_log", f"{0:020d}.json")
    content = first.read_bytes()
    first.write_bytes(b"torn")  # no reader opens the table now
    assert refresh(tmp_path).state is ResultState.CURRENT
    first.write_bytes(content)
    write_deltalake(source, rows(4), mode="append")
    assert refresh(tmp_path).to_version == 2


@pytest.mark.parametrize("kind", ["changefeed", "index"])
def test_feeds_and_indexes_with_nothing_to_do_open_no_table_either(
    spark_runtime: SparkRuntime, tmp_path: Path, kind: str
) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    write_deltalake(source, rows(1, 2), configuration={"delta.enableChangeDataFeed": "true"})

    def refresh_once() -> RunResult:
        with iscp.local(spark_runtime.new_session()) as lake:
            if kind == "changefeed":
                return lake.changefeed(source, target, key=["id"]).refresh()
            return lake.index(source, target, "fulltext", key=["id"], options={"columns": "v"}).refresh()

    assert refresh_once().state is ResultState.UPDATED
    write_deltalake(source, rows(3), mode="append")
    assert refresh_once().state is ResultState.UPDATED
    first = Path(source, "_delta_log", f"{0:020d}.json")
    content = {path: path.read_bytes() for path in (first, Path(target, "_delta_log", first.name)) if path.exists()}
    for path in content:
        path.write_bytes(b"torn")
    idle = refresh_once()
    assert (idle.state, idle.from_version, idle.to_version) == (ResultState.CURRENT, 1, 1)
    for path, kept in content.items():
        path.write_bytes(kept)
    write_deltalake(source, rows(4), mode="append")
    assert refresh_once().to_version == 2


def test_a_target_that_others_have_written_to_is_compared_though_its_source_stays(tmp_path: Path) -> None:
    source, copy = str(tmp_path / "source"), str(tmp_path / "copy")
    write_deltalake(source, rows(1, 2), configuration={"delta.enableChangeDataFeed": "true"})
    assert refresh(tmp_path).state is ResultState.UPDATED
    write_deltalake(copy, rows(9), mode="append")
    assert refresh(tmp_path).state is ResultState.UPDATED
    found = DeltaTable(copy).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == [1, 2]
