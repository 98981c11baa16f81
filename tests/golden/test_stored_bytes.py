"""Each record that is stored somewhere, byte for byte: what a release writes the next one has to read, and others too.

A file in `stored` has the bytes of one record with all of its fields, and another one of a record with none that may be
left out. Rewritten by `ISCP_REGENERATE=1 pytest tests/golden`; look at the difference before committing it: a file that
changes is another format, which releases before cannot read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from iscp.algebra.algebra import Expr, Filter, Table, TypedColumn
from iscp.algebra.stored_query import QueryOrigin, StoredQuery, query_from_json, query_to_json
from iscp.changefeed.model.ulid import Cursor
from iscp.delta.joblog.log_backup import BackupManifest, parse_manifest
from iscp.delta.sink.sink_position import tag_json
from iscp.etcd.keys import KeyValue, encoded, snapshot_of
from iscp.etcd.watched_keys import BuildKeys, TokenKeys, value_of
from iscp.index.lance.index_columns import FieldTotals, IndexHead, parse_head
from iscp.index.model.definition_parsing import parse_definition
from iscp.model.access.authorization import TokenRecord
from iscp.model.access.service_table import Role
from iscp.model.build.build_state import (
    BeginTable,
    Change,
    CountDone,
    MarkBuilt,
    PutPlan,
    PutRetained,
    PutStaging,
    PutTask,
    SetPriority,
)
from iscp.model.build.build_task import (
    BuildPlan,
    BuildRequest,
    BuildTask,
    BuildTerms,
    RetainedSpan,
    StagingTask,
    TaskType,
    parse_terms,
)
from iscp.model.job.job_row import Deletion, JobStatus, Notification, NotificationKind, parse_status
from iscp.model.job.watermark_record import WatermarkRecord, parse_record
from iscp.model.spec.spec import ConsumerSpec, JobSpec, OnReplace, Tag, TriggerSpec, TriggerType
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.ids import NodeRecord
from iscp.model.values.progress import SnapshotSize, TableSize
from iscp.model.values.watermark import DeadLetters, QueryTotals, SourceMark, Total, Watermark
from iscp.ports.sink import CommitTag
from iscp.views.duck.duck_refresh import schema_json_of
from iscp.views.refresh.refresh_choice import (
    RefreshHistory,
    RefreshSample,
    Strategy,
    Trials,
    refreshes_from_json,
    refreshes_to_json,
)

HERE = Path(__file__).parent / "stored"
MARKS = {
    "/lake/a": SourceMark("t-a", Watermark(7, 1_700_000_000.5)),
    "/lake/b": SourceMark("t-b", Watermark(3, 1_700_000_001.25, 1, 4)),
}
K, TAGS = TypedColumn(1, "k", "long"), TypedColumn(2, "tags", "array<string>")
SCHEMA = schema_json_of([K, TAGS])
ORIGIN = QueryOrigin("SELECT k FROM t", {"t": "/lake/a"}, {"iscp": "1.2.3"}, {"t": SCHEMA})
QUERY = Filter((Table((), (K, TAGS), "t"),), Expr("IsNotNull", (K.value,), "boolean"))


@dataclass(frozen=True, slots=True)
class Stored:
    """A record, by what it is stored as: `read` gives of the bytes what equals `value`; None: others read it."""

    name: str
    value: object
    written: bytes
    read: Callable[[bytes], object] | None = None


def specs() -> Iterator[Stored]:
    whole = JobSpec(
        ConsumerSpec("replica", "/lake/copy", ("id",), ("id", "v"), "v > 1", {"deletion_vectors": "true"}),
        TriggerSpec(TriggerType.PERIODIC, cron="30 6 * * *", time_zone="Europe/Berlin"),
        target_lag_s=60.0,
        priority=5,
        on_replace=OnReplace.FOLLOW,
        enable_cdf=True,
        adopt_from=3,
        set="nightly",
        tags=(Tag("eu"), Tag("gold")),
    )
    for name, spec in (("spec", whole), ("spec.least", JobSpec(ConsumerSpec("changefeed", "")))):
        yield Stored(name, spec, spec.to_json().encode(), lambda content: parse_spec(content.decode()))


def statuses() -> Iterator[Stored]:
    whole = JobStatus(
        from_version=3,
        to_version=7,
        start_at_s=1_700_000_000.5,
        end_at_s=1_700_000_002.0,
        error_code=10_001,
        error_msg="the disk \u201cé\u201d is full",
        rows=1_234,
        bytes=56_789,
        dead_letters=2,
        warning="a column was added",
        step=1,
        steps=4,
        source_id="t-a",
        doubted_at_s=1_700_000_003.0,
        failures=2,
        retry_at_s=1_700_000_060.0,
        due_at_s=1_700_086_400.0,
        waits_for="/lake/b",
        waits_until_s=1_700_000_010.0,
        sources=MARKS,
        build=BuildRequest(7, 1_048_576, 3, SnapshotSize(1_000, 2_000, 4), "0123456789abcdef"),
        deletion=Deletion.WANTED,
    )
    for name, status in (("status", whole), ("status.least", JobStatus())):
        yield Stored(name, status, status.to_json().encode(), lambda content: parse_status(content.decode()))


def sink_records() -> Iterator[Stored]:
    least = WatermarkRecord(5, Watermark(7, 1_700_000_000.5), "job-2", "t-a", 3, 4, "attempt-1")
    whole = replace(least, watermark=Watermark(7, 1_700_000_000.5, 1, 4), origin="job-1", fenced_by="job-3")
    for name, record in (("watermark-record", whole), ("watermark-record.least", least)):
        yield Stored(name, record, record.to_json().encode(), lambda content: parse_record(content.decode()))
    tag = CommitTag(5, "job-2", "t-a", 3, Watermark(7, 1_700_000_000.5), 4, 11, "attempt-1", "tail")
    more = replace(
        tag,
        watermark=Watermark(7, 1_700_000_000.5, 1, 4),
        kind="repair",
        dead=DeadLetters(2, 3),
        column_ids={"id": "c-1"},
        sources=MARKS,
        as_of_s=1_700_000_000.25,
        totals=QueryTotals("0123", ((Total(3, 10**30, -5), Total(1)),)),
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        table_uri="/lake/a",
    )
    for name, each in (("commit-tag", more), ("commit-tag.least", tag)):
        yield Stored(name, each, tag_json(each).encode())  # `tests/integration` reads it, of targets


def etcd_values() -> Iterator[Stored]:
    node = NodeRecord("node-1", 4, "10.0.0.1:7000", 42, "1.2.3", 1_700_000_000.5, 9, 3, True, 15.0, True)

    def read_node(content: bytes) -> object:
        return snapshot_of([KeyValue("/iscp/nodes/node-1", content, 1, 1, 1, 9)])[0]

    yield Stored("etcd.node", node, encoded(node), read_node)
    token = TokenRecord("ab12", "0" * 64, "acme", Role.OPERATOR, 1_700_000_000.5, 1_800_000_000.0, "root", "of the CI")
    keys = TokenKeys("/iscp/access/")

    def read_token(content: bytes) -> object:
        return keys.read_token(KeyValue(keys.token("ab12"), content, 1, 1, 1, 0))

    yield Stored("etcd.token", token, value_of(token), read_token)
    builds = BuildKeys("/iscp/builds/")
    plan = BuildPlan(
        *("job-1", "acme", "t-a", "copy", "/lake/a", 7, "{}", 1_048_576, 3),
        SnapshotSize(1_000, 2_000, 4),
        "0123456789abcdef",
    )
    changes: dict[str, Change] = {
        "task": PutTask(BuildTask("task-1", TaskType.BUILD_RANGE, True, "t-a", "job-1", 5, "node-1")),
        "done": CountDone("job-1", "node-1", TableSize(10, 20)),
        "plan": PutPlan(plan),
        "built": MarkBuilt("job-1", 7),
        "table": BeginTable("t-a"),
        "priority": SetPriority("t-a", 5),
        "staging": PutStaging(StagingTask("task-2", "t-a", "/lake/a", 3, 7, "node-1")),
        "retained": PutRetained(RetainedSpan("t-a", "/lake/a", 3, 7, 99)),
    }
    for name, change in changes.items():
        put = next(iter(builds.writes_of(change)))

        def read_change(content: bytes, key: str = put.key) -> object:
            return builds.read_change(KeyValue(key, content, 1, 1, 1, 0))

        yield Stored(f"etcd.build-{name}", change, getattr(put, "value", b""), read_change)


def files_beside_targets() -> Iterator[Stored]:
    terms = BuildTerms(MARKS, 1_700_000_000.25, "groups", True)
    yield Stored(
        "build-terms", terms, json.dumps(terms.document()).encode(), lambda content: parse_terms(json.loads(content))
    )
    content = query_to_json(StoredQuery(QUERY), ORIGIN)
    assert content is not None

    def read_query(content: bytes) -> object:  # the numbers of operators are those of one reading
        found = query_from_json(content, ORIGIN)
        return None if found is None else query_to_json(found, ORIGIN)

    yield Stored("view-query", content, content, read_query)
    history = RefreshHistory(
        (RefreshSample(Strategy.FULL, 1_000, 2.5), RefreshSample(Strategy.DIRECT, 10, 0.125)),
        Trials(3, 1),
        Trials(5, 0),
        Trials(2, 1),
        Trials(1, 1),
    )
    yield Stored("view-refreshes", history, refreshes_to_json(history), refreshes_from_json)


def index_records() -> Iterator[Stored]:
    least = IndexHead("{}", ("id",))
    whole = IndexHead(
        *("{}", ("id", "day"), {"job-1": "{}"}, 7, 1_700_000_000.5, 3, 10, 1, 8),
        (FieldTotals(10, 99),),
        ("counts-1",),
        *("model-1", {"id": "c-1"}, 4, 2, 1_000, "IVF_PQ"),
    )
    for name, head in (("index-head", whole), ("index-head.least", least)):
        yield Stored(name, head, head.to_json().encode(), lambda content: parse_head(content.decode()))

    def read_definition(content: bytes) -> object:
        found = json.loads(content)
        return parse_definition(found["kind"], found["options"])

    for kind, options in (
        (
            "fulltext",
            {"columns": {"title": 2.0, "body": 1.0}, "language": "english", "stem": True},
        ),
        ("vector", {"column": "v", "metric": "cosine"}),
    ):
        definition = parse_definition(kind, options)
        yield Stored(f"index-definition-{kind}", definition, definition.to_json().encode(), read_definition)


def other_documents() -> Iterator[Stored]:
    backup = BackupManifest(
        *("prod", "t-log", 9, 100, 4, 12, 345, "rows-1.parquet", 6_789, "0" * 64),
        *('{"type":"struct","fields":[]}', {"iscp.log_format": "9"}, 1_700_000_000.5, "1.2.3"),
    )
    yield Stored("backup-manifest", backup, backup.to_bytes(), lambda content: parse_manifest(content, "manifest.json"))
    cursor = Cursor("orders", {0: "01HF2Q3V5T0000000000000000", 3: "01HF2Q3V5T0000000000000001"})
    yield Stored("feed-cursor", cursor, cursor.text.encode(), lambda content: Cursor.parse(content.decode()))
    sent = Notification(
        kind=NotificationKind.RECOVERED,
        id="n-2",
        at_s=1_700_000_000.5,
        cluster="prod",
        owner="node-1",
        owner_rev=7,
        alert_id="n-1",
        recovered_from="late",
        account="acme",
        table="/lake/a",
        table_id="t-a",
        job="copy",
        job_id="job-1",
        state="completed",
        reason="",
        error_code=0,
        error_message="",
        lag_s=1.5,
        applied_version=7,
        source_version=8,
    )
    yield Stored("notification", sent, sent.to_json())


SOURCES = (specs, statuses, sink_records, etcd_values, files_beside_targets, index_records, other_documents)
STORED = {each.name: each for source in SOURCES for each in source()}


@pytest.mark.parametrize("name", STORED)
def test_a_record_is_written_as_it_always_was(name: str) -> None:
    path = HERE / f"{name}.txt"
    if os.environ.get("ISCP_REGENERATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(STORED[name].written)
    assert STORED[name].written == path.read_bytes()


@pytest.mark.parametrize("name", [name for name, each in STORED.items() if each.read is not None])
def test_what_was_stored_is_read(name: str) -> None:
    read = STORED[name].read
    assert read is not None
    assert read((HERE / f"{name}.txt").read_bytes()) == STORED[name].value


def test_each_file_is_of_a_record() -> None:
    assert {path.stem for path in HERE.iterdir()} == STORED.keys()
