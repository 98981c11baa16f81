"""What a commit says of its trace: anybody may have written anything there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from iscp.adapters.delta.log.commit_head import COMMIT_INFO_BYTES_MAX, read_commit_trace
from iscp.adapters.delta.storage.locations import commit_name
from tests.fakes.tracing import traceparent


def written(directory: Path, content: str) -> str:
    log = directory / "_delta_log"
    log.mkdir(exist_ok=True)
    (log / commit_name(0)).write_text(content)
    return str(directory)


def said(metadata: object) -> str:
    return json.dumps({"commitInfo": {"userMetadata": metadata}})


def test_the_trace_that_a_real_writer_gave_is_read(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    properties = CommitProperties(custom_metadata={"userMetadata": json.dumps({"traceparent": traceparent(3)})})
    write_deltalake(table, pa.table({"a": [1]}), commit_properties=properties)
    write_deltalake(table, pa.table({"a": [1]}), mode="append")
    assert [read_commit_trace(table, version) for version in (0, 1, 2)] == [traceparent(3), "", ""]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "traceparent",
        "{" * 10_000 + "traceparent",
        '{"commitInfo":["traceparent"]}',
        '{"commitInfo":{"userMetadata":{"traceparent":"00"}}}',
        said("traceparent"),
        said('["traceparent"]'),
        said("[" * 60_000 + "traceparent"),
        said(json.dumps({"traceparent": "x"})),
        said(json.dumps({"traceparent": [traceparent(1)]})),
        said(json.dumps({"traceparent": traceparent(1) + "\r\nx: y"})),
        said(json.dumps({"other": {"traceparent": traceparent(1)}})),
        said(json.dumps({"padding": "x" * COMMIT_INFO_BYTES_MAX, "traceparent": traceparent(1)})),
    ],
)
def test_what_is_no_trace_is_none(tmp_path: Path, content: str) -> None:
    assert read_commit_trace(written(tmp_path, content), 0) == ""
