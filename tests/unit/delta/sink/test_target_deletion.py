"""Which files of a target go with it, in which order, what stays, and what is refused: with real tables on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake

from iscp.delta.log.commits import APP_ID
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.sink.sink_position import tag_json
from iscp.model.job.job_row import JobRow
from iscp.model.sql.sql_names import WEIGHT
from iscp.model.values.errors import ErrorCode, LeaseLost, PermanentError, StorageError
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Watermark
from iscp.ports.sink import CommitTag, Deleted, DeletionOrder
from tests.fakes.guards import EndingGuard, OpenGuard, ScriptedFailpoints

SPEC = '{"iteration":{"consumer":{"kind":"replica","target":"/x"}}}'
ROWS = pa.table({"id": [1, 2], "part": ["a", "b"]})
STEPS = (
    "deletion.began",
    "deletion.rows_gone",
    "deletion.beside_gone",
    "deletion.log_gone",
    "deletion.over",
)


class Died(BaseException):
    """Ends a deletion as the end of its process would."""


def die() -> None:
    raise Died


def order(job_id: str = "job-1") -> DeletionOrder:
    row = JobRow(JobKey("default", "t-1", "copy"), job_id, SPEC, "orders", "/orders")
    return DeletionOrder(row, 1, OpenGuard())


def commit(uri: Path, seq: int, job_id: str = "job-1", rows: pa.Table = ROWS, mode: str = "append") -> None:
    """Commit rows as a sink does; the table is made by the first."""
    base = DeltaTable(uri).version() if uri.exists() else -1
    tag = CommitTag(seq, job_id, "t-1", -1, Watermark(seq, 1.0), 1, base, f"try-{seq}", "tail")
    properties = CommitProperties({"userMetadata": tag_json(tag)}, app_transactions=[Transaction(APP_ID, seq)])
    write_deltalake(uri, rows, mode=mode, commit_properties=properties)  # type: ignore[call-overload]


def delete(
    uri: Path, beside: Sequence[Path] = (), failpoints: ScriptedFailpoints | None = None, job_id: str = "job-1"
) -> Deleted:
    return DeltaSink(str(uri), failpoints or ScriptedFailpoints()).delete(order(job_id), [*map(str, beside)])


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target with all that iscp and others leave in a table's directory."""
    uri = tmp_path / "target"
    for seq in (1, 2, 3):
        commit(uri, seq)
    DeltaTable(uri).create_checkpoint()
    for name in (
        "_iscp-ways.json",
        "_change_data/cdc-1.parquet",
        "deletion_vector_5c5ea81e-7b9b-4a3e-8d7a-0123456789ab.bin",
        "iscp-staged-4-abc/part-0.snappy.parquet",
        "iscp-staged-4-abc/_delta_log/00000000000000000000.json",
        "iscp-staged-job-1-digest/3-0123/part-0.snappy.parquet",
        "_iscp-build/job-1/4-digest/begun.json",
        ".part-0.snappy.parquet.crc",
        "part-of-a-writer-that-died.parquet",
        "_delta_log/.00000000000000000001.json.crc",
        "_delta_log/_commit_0f0e.json.tmp",
    ):
        (uri / name).parent.mkdir(parents=True, exist_ok=True)
        (uri / name).write_bytes(b"{}")
    return uri


def test_all_that_is_a_tables_own_goes_with_its_directory(target: Path) -> None:
    assert delete(target) == Deleted(seq=4)
    assert not target.exists()


def test_what_others_have_put_there_stays_and_is_named(target: Path) -> None:
    foreign = {"notes.txt", "sub/readme.md", "data/part-0.parquet", "sub/.hidden"}
    for name in foreign:
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_text("mine")
    deleted = delete(target)
    assert files_in(target) == foreign
    assert deleted.left == (
        f"{target}/data/part-0.parquet",
        f"{target}/notes.txt",
        f"{target}/sub/.hidden",
        f"and 1 more files in {target}",
    )


def test_a_link_is_not_followed(target: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "part-0.parquet").write_text("mine")
    (target / "_change_data").rename(tmp_path / "away")
    (target / "_change_data").symlink_to(elsewhere)
    assert delete(target).left == (f"{target}/_change_data",)
    assert files_in(elsewhere) == {"part-0.parquet"}


def test_a_file_that_is_younger_than_the_deletion_stays(target: Path) -> None:
    """Somebody writes it for a commit which nobody has seen yet."""
    late = target / "part-late.parquet"
    late.write_bytes(b"mine")
    os.utime(late, (2e9, 2e9))
    assert delete(target).left == (str(late),)
    assert late.exists()


@pytest.mark.parametrize("step", STEPS)
def test_a_deletion_that_died_is_carried_on_by_the_next(target: Path, tmp_path: Path, step: str) -> None:
    state = tmp_path / "target_view_state_2"
    commit(state, 1)
    for deaths in (1, 2, 1, 2):  # at the step of one of the two tables, and at the other's after it
        points = ScriptedFailpoints()
        points.once(step, die if deaths == 1 else partial(points.once, step, die))
        with suppress(Died):
            delete(target, [state], points)
    assert delete(target, [state]).left == ()
    assert not (state / "_delta_log" / "00000000000000000001.json").exists()
    assert (files_in(tmp_path), step == STEPS[-1] or not target.exists()) == (set(), True)


def test_rows_are_gone_for_readers_before_a_file_is(target: Path) -> None:
    points = ScriptedFailpoints()
    points.once("deletion.began", die)
    with pytest.raises(Died):
        delete(target, failpoints=points)
    assert DeltaTable(target).to_pyarrow_table().num_rows == 0


def replaced(target: Path) -> None:
    write_deltalake(target, pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite")


def later_registration(target: Path) -> None:
    commit(target, 4, "job-2")


def table_within(target: Path) -> None:
    write_deltalake(target / "sub" / "table", ROWS)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        (replaced, "others have written to"),
        (later_registration, "was kept last by the registration job-2"),
        (table_within, "/target/sub/table lies within"),
    ],
)
def test_what_is_not_the_jobs_alone_is_left_as_it_is(target: Path, others: Callable[[Path], None], why: str) -> None:
    others(target)
    before = files_in(target)
    with pytest.raises(PermanentError, match=why) as refused:
        delete(target)
    assert (refused.value.code, bool(refused.value.remedy)) == (ErrorCode.TARGET_UNUSABLE, True)
    assert files_in(target) == before


def test_a_table_that_was_never_the_jobs_is_left_as_it_is(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "target", ROWS)
    with pytest.raises(PermanentError, match="was never the job's"):
        delete(tmp_path / "target")
    assert DeltaTable(tmp_path / "target").to_pyarrow_table().num_rows == 2


def test_a_target_that_was_never_made_is_gone_already(tmp_path: Path) -> None:
    assert delete(tmp_path / "target").left == ()


def test_a_new_table_in_the_place_of_a_deleted_one_is_not_touched(target: Path) -> None:
    delete(target)
    write_deltalake(target, ROWS)
    with pytest.raises(PermanentError, match="was never the job's"):
        delete(target)
    assert DeltaTable(target).to_pyarrow_table().num_rows == 2


@pytest.mark.parametrize("step", STEPS[:-1])
def test_rows_that_others_write_while_a_target_is_deleted_end_the_deletion(target: Path, step: str) -> None:
    points = ScriptedFailpoints()
    theirs = target / "_delta_log" / "00000000000000000004.json"
    added = {"path": "part-theirs.parquet", "size": 1, "partitionValues": {}, "modificationTime": 1, "dataChange": True}
    points.once(step, lambda: theirs.write_text(json.dumps({"add": added})))
    with pytest.raises(PermanentError, match="others have written to"):
        delete(target, failpoints=points)
    with pytest.raises(StorageError if step == "deletion.log_gone" else PermanentError):
        delete(target)
    assert theirs.exists()


def test_a_table_beside_that_is_another_registrations_stays_and_is_named(target: Path, tmp_path: Path) -> None:
    state = tmp_path / "target_view_state"
    commit(state, 1, "job-0")
    (left,) = delete(target, [state]).left
    assert f"{state} was kept last by the registration job-0" in left
    assert (state.exists(), target.exists()) == (True, False)


def test_nothing_more_is_deleted_once_the_lease_is_gone(target: Path) -> None:
    lost = LeaseLost("the lease is gone")
    for checks in range(20):
        try:
            guard = EndingGuard(checks + 1, lost)
            DeltaSink(str(target), ScriptedFailpoints()).delete(DeletionOrder(order().row, 1, guard), [])
            break
        except LeaseLost:
            assert files_in(target / "_delta_log")
    assert not target.exists()
    assert checks == 3, "each goes on where the one before it ended: the commit, the rows, the log"


def test_a_table_with_deletion_vectors_goes_too(tmp_path: Path) -> None:
    uri = tmp_path / "view"
    sink = DeltaSink(str(uri), ScriptedFailpoints())
    rows = pa.table({"id": list(range(5_000))})
    tag = CommitTag(1, "job-1", "t-1", -1, Watermark(0, 1.0), 1, -1, "try-1", "claim")
    sink.claim(Schema.from_arrow(rows.schema).to_json(), tag, first=True, with_cdf=True, marks_rows=True)
    for seq, changed, weight in ((2, rows, 1), (3, rows.slice(7, 3), -1)):
        weighted = changed.append_column(WEIGHT, pa.array([weight] * len(changed), pa.int64()))
        following = replace(tag, seq=seq, base_version=seq - 2, attempt=f"try-{seq}")
        assert sink.change_rows(weighted, following, OpenGuard()) is not None
    assert [*uri.glob("deletion_vector_*.bin")]
    assert delete(uri) == Deleted(seq=4)
    assert not uri.exists()


def test_a_table_whose_log_is_a_link_is_left_as_it_is(target: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (target / "_delta_log").rename(log)
    (target / "_delta_log").symlink_to(log)
    before = files_in(target), files_in(log)
    with pytest.raises(PermanentError, match=r"the log of .*/target is a link"):
        delete(target)
    assert (files_in(target), files_in(log)) == before
