"""Names that rows are given themselves while they are worked on are no columns of a job's tables, whatever its kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from iscp.consumers.changefeed.changefeed_kind import ChangefeedKind
from iscp.consumers.custom import CustomConsumer, ShardedConsumer
from iscp.consumers.custom.custom_kind import CustomKind
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.consumers.view.view_kind import ViewKind
from iscp.model.query_plan import Operator, OperatorKind, QueryShape
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.model.values.watermark import Position
from iscp.ports.consumer import ConsumeContext, ConsumerKind, Retriever
from iscp.ports.source import TableDescription
from tests.fakes.catalog import FakeCatalog

MARKS = ("_change_type", "_commit_version", "_commit_timestamp")
RESERVED = (*MARKS, "_Change_Type", "_iscp_op", "_iscp_weight", "_ISCP_sign", "_iscp_")
LIKE_THEM = ("_iscp", "iscp_op", "_is_cp", "change_type", "_commit", "_metadata", "x_iscp_y")
SQL = "SELECT id FROM t"


class Whole(CustomConsumer):
    def position(self) -> Position:
        raise AssertionError("nobody runs it")

    def consume(self, context: ConsumeContext, retriever: Retriever) -> None:
        raise AssertionError("nobody runs it")


class Sharded(ShardedConsumer):
    def read_watermark(self, key: str) -> str | None:
        raise AssertionError("nobody runs it")

    def consume(self, context: ConsumeContext, retriever: Retriever) -> None:
        raise AssertionError("nobody runs it")


KINDS: dict[str, tuple[ConsumerKind, ConsumerSpec]] = {
    "replica": (ReplicaKind(), ConsumerSpec("replica", "/lake/x", ("id",))),
    "append-only": (ReplicaKind(), ConsumerSpec("replica", "/lake/x")),
    "changefeed": (ChangefeedKind(), ConsumerSpec("changefeed", "/lake/x", ("id",))),
    "narrow": (ReplicaKind(), ConsumerSpec("replica", "/lake/x", ("id",), columns=("id",))),
    "custom": (CustomKind("c", Whole), ConsumerSpec("c", "/lake/x", ("id",))),
    "sharded": (CustomKind("c", Sharded), ConsumerSpec("c", "/lake/x", ("id",))),
    "view": (ViewKind(), ConsumerSpec("view", "/lake/x", options={"sql": SQL, "tables": {"t": "/lake/t"}})),
}
SHARDED = ("changefeed", "sharded")


def table(names: Sequence[str]) -> TableDescription:
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("id", *names)]
    columns = dict.fromkeys(("id", *names), "long")
    schema = json.dumps({"type": "struct", "fields": fields})
    return TableDescription("t-id", "/lake/t", "/lake/t", 0, 1.0, columns, schema_json=schema)


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_table_with_such_a_column_is_refused_with_its_name(kind: str) -> None:
    made, spec = KINDS[kind]
    for name in (*RESERVED, *(["_key_hash"] if kind in SHARDED else [])):
        source = table(["v", name])
        with pytest.raises(InvalidRequest, match=f"/lake/t has {name}, which rows are given") as refused:
            made.validate(spec, source, FakeCatalog(source))
        assert refused.value.field == ("spec.iteration.consumer.options.tables.t" if kind == "view" else "table")
        assert (refused.value.code, bool(refused.value.remedy)) == (ErrorCode.TABLE_UNREADABLE, True)
    source = table(LIKE_THEM if kind in SHARDED else (*LIKE_THEM, "_key_hash"))
    made.validate(spec, source, FakeCatalog(source))


@pytest.mark.parametrize("kind", SHARDED)
def test_a_key_hash_that_comes_later_stops_a_job_whose_table_may_be_split(kind: str) -> None:
    made, spec = KINDS[kind]
    assert made.columns(spec, ("id", "key_hash")) == ("id", "key_hash")
    with pytest.raises(PermanentError, match="the source has _key_hash now") as refused:
        made.columns(spec, ("id", "_Key_Hash"))
    assert refused.value.code is ErrorCode.SCHEMA_CHANGED


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT sum(_iscp_weight) id FROM (SELECT id AS _iscp_weight FROM t)", "has _iscp_weight, and names that"),
        ("SELECT id FROM (SELECT s.* FROM (SELECT named_struct('_ISCP_op', 1, 'id', id) s FROM t))", "has _ISCP_op"),
        ("SELECT id AS _iscp_qualify FROM t QUALIFY row_number() OVER (ORDER BY id) = 1", "has _iscp_qualify"),
    ],
)
def test_a_query_has_no_such_names(sql: str, words: str) -> None:
    source, spec = table([]), KINDS["view"][1]
    wanted = replace(spec, options={**spec.options, "sql": sql})
    for call in (
        lambda: ViewKind().validate(wanted, source, FakeCatalog(source)),
        lambda: ViewKind().explain(wanted, FakeCatalog(source)),
    ):
        with pytest.raises(InvalidRequest, match=words) as refused:
            call()
        assert refused.value.field == "spec.iteration.consumer.options.sql"
        assert refused.value.remedy


@pytest.mark.parametrize("name", [*MARKS, "_COMMIT_version"])
def test_a_result_has_no_column_that_changes_have_themselves(name: str) -> None:
    source, spec = table([]), KINDS["view"][1]
    catalog = FakeCatalog(source)
    schema = json.dumps(
        {"type": "struct", "fields": [{"name": name, "type": "long", "nullable": True, "metadata": {}}]}
    )
    catalog.shapes[SQL] = QueryShape(Operator(OperatorKind.TABLE, "t", table="t"), schema, frozenset("t"))
    with pytest.raises(InvalidRequest, match=f"gives a column the name '{name}'") as refused:
        ViewKind().validate(spec, source, catalog)
    assert refused.value.remedy
