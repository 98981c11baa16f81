"""What a sink knows of its target for as long as nobody else has it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, Schema, Transaction, write_deltalake

from iscp.adapters.delta.commits import APP_ID
from iscp.adapters.delta.position import tag_json
from iscp.adapters.delta.sink import DeltaSink
from iscp.core.ids import JobKey
from iscp.core.job import JobRow
from iscp.core.watermark import Watermark
from iscp.ports.pipeline import CommitTag
from tests.fakes.guards import ScriptedFailpoints

SPEC = '{"iteration":{"consumer":{"kind":"replica","target":"/x"}}}'
NARROW, WIDE = pa.table({"id": [1]}), pa.table({"id": ["one"], "v": ["x"]})


def row(job_id: str) -> JobRow:
    return JobRow(JobKey("default", "t-1", "copy"), job_id, SPEC, "orders", "/orders")


def tag(seq: int, job_id: str, base_version: int) -> CommitTag:
    return CommitTag(seq, job_id, "t-1", -1, Watermark(0, 1.0), 1, base_version, f"try-{seq}", "claim")


def schema(rows: pa.Table) -> str:
    return Schema.from_arrow(rows.schema).to_json()


def test_columns_are_looked_at_again_once_another_job_has_had_the_target(tmp_path: Path) -> None:
    uri = str(tmp_path)
    sink, other = DeltaSink(uri, ScriptedFailpoints()), DeltaSink(uri, ScriptedFailpoints())
    sink.claim(schema(NARROW), tag(1, "job-1", -1))
    assert sink.schema_matches(schema(NARROW))
    other.claim(schema(NARROW), tag(2, "job-2", 0))
    write_deltalake(
        uri,
        WIDE,
        mode="overwrite",
        schema_mode="overwrite",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": tag_json(tag(3, "job-2", 1))}, app_transactions=[Transaction(APP_ID, 3)]
        ),
    )
    position = sink.position(row("job-1"))
    assert (position.seq, position.job_id, position.void) == (3, "job-2", "")
    assert sink.schema_matches(schema(WIDE))
    assert not sink.schema_matches(schema(NARROW))
