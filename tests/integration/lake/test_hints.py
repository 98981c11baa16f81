"""Whatever `_last_checkpoint` says: it is a hint, and tables with all of their commits are read and written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import iscp
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.job.job_row import LogEntry
from iscp.model.run.run_plan import ResultState, RunResult
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.model.values.errors import ErrorCode, IscpError
from iscp.spark.session import SparkRuntime
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.both_ways.keepers import NodeKeeper
from tests.fakes.log_program import job
from tests.selection import in_full

Hint = Callable[[Path, int], object]
"""Written to a path, in a log with this newest version."""


def naming(ahead: int, **fields: object) -> Hint:
    return lambda path, newest: path.write_text(json.dumps({"version": newest + ahead, "size": 3} | fields))


def saying(text: str) -> Hint:
    return lambda path, _: path.write_text(text)


HINTS: dict[str, Hint] = {
    "the next version": naming(1),
    "a version of the future": naming(100),
    "a version without a checkpoint": naming(0),
    "an earlier one": naming(-1),
    "a negative one": saying('{"version": -1, "size": 1}'),
    "a text": saying('{"version": "2", "size": 1}'),
    "a long number": saying(f'{{"version": {10**400}, "size": 1}}'),
    "other fields": saying('{"checkpoint": 1}'),
    "nothing": saying(""),
    "half of it": saying('{"version": 1,'),
    "parts that are missing": naming(0, parts=3),
    "another checksum": naming(0, checksum="0" * 32),
    "sidecars that are away": naming(0, v2Checkpoint={"path": "x.parquet", "sidecarFiles": [{"path": "y.parquet"}]}),
    "a directory": lambda path, _: path.mkdir(),
}


def sparse_file(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


REFUSED: dict[str, Hint] = {
    "a pipe": lambda path, _: os.mkfifo(path),
    "a link": lambda path, _: path.symlink_to("/etc/hostname"),
    "a gigabyte": lambda path, _: sparse_file(path, 1 << 30),
}
EACH_TIME = ("a version of the future", "parts that are missing")


def put(uri: str, hint: Hint) -> Path:
    log = Path(uri, "_delta_log")
    path = log / "_last_checkpoint"
    path.unlink(missing_ok=True)
    hint(path, max(int(each.stem) for each in log.glob("*.json")))
    return path


def append(source: str, *ids: int) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{each}" for each in ids]})
    write_deltalake(DeltaTable(source) if Path(source).exists() else source, rows, mode="append")


def refresh(spark: SparkSession, kind: str, source: str, target: str) -> RunResult:
    with iscp.local(spark) as lake:
        made = lake.replica if kind == "replica" else lake.changefeed
        return made(source, target, key=["id"]).refresh()


@pytest.fixture
def spark(spark_runtime: SparkRuntime) -> SparkSession:
    return spark_runtime.new_session()


@pytest.fixture
def source(tmp_path: Path) -> str:
    uri = str(tmp_path / "source")
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["v1", "v2"]})
    write_deltalake(uri, rows, configuration={"delta.enableChangeDataFeed": "true"})
    append(uri, 3)
    return uri


@pytest.mark.parametrize(("kind", "where"), [("replica", "source"), ("replica", "target"), ("changefeed", "target")])
@pytest.mark.parametrize("hint", in_full(HINTS, but=EACH_TIME))
def test_a_hint_keeps_no_table_from_being_read_and_written(
    spark: SparkSession, source: str, tmp_path: Path, kind: str, where: str, hint: str
) -> None:
    target = str(tmp_path / "target")
    assert refresh(spark, kind, source, target).state is ResultState.UPDATED
    append(source, 4)
    path = put(source if where == "source" else target, HINTS[hint])
    assert refresh(spark, kind, source, target).rows == 1
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    found = pa.table(DeltaTable(target).scan())
    ids = found["id"] if kind == "replica" else pa.chunked_array(found["row"]).combine_chunks().field("id")
    assert sorted(ids.to_pylist()) == [1, 2, 3, 4]


@pytest.mark.parametrize("where", ["source", "target"])
@pytest.mark.parametrize("hint", in_full(REFUSED))
def test_a_hint_that_may_not_be_opened_is_refused_by_its_name(
    spark: SparkSession, source: str, tmp_path: Path, where: str, hint: str
) -> None:
    target = str(tmp_path / "target")
    refresh(spark, "replica", source, target)
    append(source, 4)
    path = put(source if where == "source" else target, REFUSED[hint])
    with pytest.raises(IscpError, match="_last_checkpoint") as refused:
        refresh(spark, "replica", source, target)
    assert refused.value.code is ErrorCode.LOG_CORRUPT
    path.unlink()
    assert refresh(spark, "replica", source, target).state is ResultState.UPDATED


@pytest.mark.spark
@pytest.mark.parametrize("suffix", ["", VIEW_STATE_SUFFIX], ids=["target", "state"])
@pytest.mark.parametrize("hint", in_full(HINTS | REFUSED, but=("a version of the future", "a pipe")))
def test_a_hint_keeps_no_view_from_its_groups(
    source: str, tmp_path: Path, spark_runtime: SparkRuntime, suffix: str, hint: str
) -> None:
    target, keeper = str(tmp_path / "target"), NodeKeeper(lambda: spark_runtime)
    sql = {"sql": "SELECT v, count(*) AS n, sum(id) AS s FROM t GROUP BY v", "tables": {"t": source}}
    spec = JobSpec(ConsumerSpec("view", target, options=sql | {"refresh": "incremental"}))
    request = RegisterRequest(JobName(source, "groups", "default"), spec.to_json())
    (first,) = keeper.bring_up([request])
    assert first.ok, first.error
    append(source, 4)
    path = put(target + suffix, (HINTS | REFUSED)[hint])
    (said,) = keeper.bring_up([request])
    # A node that remembers the table has no need of the hint, and so does not open it.
    assert said.ok or (hint in REFUSED and "_last_checkpoint" in said.error), said.error
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    (after,) = keeper.bring_up([request])
    assert after.ok, after.error
    found = pa.table(DeltaTable(target).scan())
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [(f"v{n}", 1, n) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("hint", in_full(HINTS, but=EACH_TIME))
def test_a_hint_keeps_no_owner_from_the_job_log(tmp_path: Path, hint: str) -> None:
    uri = str(tmp_path)
    early = DeltaJobLog(uri, SystemClock(), EnvironmentFailpoints())
    early.claim_term()
    early.append([LogEntry(job(0), "r0")])
    put(f"{uri}/iscp_log", HINTS[hint])
    later = DeltaJobLog(uri, SystemClock(), EnvironmentFailpoints())
    assert later.claim_term() == 2
    for number in range(1, 24):  # over a checkpoint
        later.append([LogEntry(job(number), f"r{number}")])
    last = DeltaJobLog(uri, SystemClock(), EnvironmentFailpoints())
    last.claim_term()
    assert len({row.key.job_name for row in last.load()}) == 24
