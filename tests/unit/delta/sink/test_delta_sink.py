"""What a sink caches of its target, and when it reads that again; and which targets it refuses to claim."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake

from iscp.delta.log.commits import APP_ID
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.sink.sink_position import tag_json
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import Conflict, ErrorCode, PermanentError, StorageError
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Watermark
from iscp.ports.sink import CommitTag
from tests.fakes.guards import ScriptedFailpoints

SPEC = '{"iteration":{"consumer":{"kind":"replica","target":"/x"}}}'
NARROW, WIDE = pa.table({"id": [1]}), pa.table({"id": ["one"], "v": ["x"]})


def row(job_id: str) -> JobRow:
    return JobRow(JobKey("default", "t-1", "copy"), job_id, SPEC, "orders", "/orders")


def tag(seq: int, job_id: str, base_version: int) -> CommitTag:
    return CommitTag(seq, job_id, "t-1", -1, Watermark(0, 1.0), 1, base_version, f"try-{seq}", "claim")


def schema(rows: pa.Table) -> str:
    return Schema.from_arrow(rows.schema).to_json()


@pytest.mark.parametrize("theirs", ["job-1", "job-2"], ids=["on another node", "another job"])
def test_columns_are_read_again_once_another_has_had_the_target(tmp_path: Path, theirs: str) -> None:
    uri = str(tmp_path)
    sink, other = DeltaSink(uri, ScriptedFailpoints()), DeltaSink(uri, ScriptedFailpoints())
    sink.claim(schema(NARROW), tag(1, "job-1", -1))
    assert sink.schema_matches(schema(NARROW))
    other.claim(schema(NARROW), tag(2, theirs, 0))
    write_deltalake(
        uri,
        WIDE,
        mode="overwrite",
        schema_mode="overwrite",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": tag_json(tag(3, theirs, 1))}, app_transactions=[Transaction(APP_ID, 3)]
        ),
    )
    position = sink.position(row("job-1"))
    assert (position.seq, position.job_id, position.void) == (3, theirs, "")
    assert sink.schema_matches(schema(WIDE))
    assert not sink.schema_matches(schema(NARROW))


def test_a_directory_that_is_not_there_is_not_created_for_a_target(tmp_path: Path) -> None:
    """It may be a volume's that is not mounted."""
    sink = DeltaSink(str(tmp_path / "volume" / "target"), ScriptedFailpoints())
    with pytest.raises(StorageError, match=r"the directory of the target .*/volume/target is not there"):
        sink.position(row("job-1"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "volume").mkdir()
    assert sink.position(row("job-1")).seq == 0


def test_a_first_claim_never_takes_a_table_that_came_to_be_meanwhile(tmp_path: Path) -> None:
    """Neither one with somebody else's rows nor one that was created after the check."""
    uri = str(tmp_path / "target")
    sink = DeltaSink(uri, ScriptedFailpoints())
    assert sink.position(row("job-1")).base_version == -1
    write_deltalake(uri, NARROW)
    with pytest.raises(Conflict):
        sink.claim(schema(NARROW), tag(1, "job-1", -1), first=True)
    base = sink.position(row("job-1")).base_version
    with pytest.raises(PermanentError, match="iscp did not write") as refused:
        sink.claim(schema(NARROW), tag(1, "job-1", base), first=True)
    assert (refused.value.code, bool(refused.value.remedy)) == (ErrorCode.TARGET_UNUSABLE, True)
    assert (DeltaTable(uri).version(), DeltaTable(uri).to_pyarrow_table().num_rows) == (0, 1)
    assert sink.claim(schema(NARROW), tag(1, "job-1", base)).seq == 1, "one that is adopted, or was the job's before"


def test_a_first_claim_takes_what_is_empty_or_iscps(tmp_path: Path) -> None:
    uri = str(tmp_path / "target")
    DeltaTable.create(uri, Schema.from_arrow(NARROW.schema))
    sink = DeltaSink(uri, ScriptedFailpoints())
    sink.claim(schema(NARROW), tag(1, "job-1", 0), first=True)
    write_deltalake(uri, NARROW, mode="append")
    assert sink.claim(schema(NARROW), tag(2, "job-2", 2), first=True).job_id == "job-2"
    sink = DeltaSink(str(tmp_path / "new"), ScriptedFailpoints())
    sink.claim(schema(NARROW), tag(1, "job-1", -1), first=True)
    # Dead before it could report: the next attempt finds its own table.
    assert sink.claim(schema(NARROW), tag(2, "job-1", 0), first=True).seq == 2


def test_columns_are_read_once_as_long_as_nobody_changes_them(tmp_path: Path) -> None:
    uri = str(tmp_path)
    sink = DeltaSink(uri, ScriptedFailpoints())
    sink.claim(schema(NARROW), tag(1, "job-1", -1))
    sink.position(row("job-1"))
    assert sink.schema_matches(schema(NARROW))
    sink.claim(schema(NARROW), tag(2, "job-1", 0))
    write_deltalake(uri, NARROW, mode="append")
    DeltaTable(uri).optimize.compact()
    sink.position(row("job-1"))
    # Who opened the table now would find its first commit missing, and no checkpoint.
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    assert sink.schema_matches(schema(NARROW))


def test_a_target_that_was_set_to_expire_transactions_is_written_to_no_more(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path), ScriptedFailpoints())
    sink.claim(schema(NARROW), tag(1, "job-1", -1))
    sink.position(row("job-1"))
    assert sink.schema_matches(schema(NARROW))
    table = DeltaTable(str(tmp_path))
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 hours"})
    assert not sink.position(row("job-1")).void
    with pytest.raises(PermanentError, match="expires transaction ids") as refused:
        sink.schema_matches(schema(NARROW))
    assert refused.value.code == ErrorCode.TARGET_UNUSABLE
