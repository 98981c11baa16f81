"""What a replica refuses, and which columns of the source it wants; its rows are tried with Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.consumers.validation import check_target
from iscp.model.job.start_rule import TargetLog
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError, TableNotFound
from iscp.ports.source import TableDescription
from tests.fakes.catalog import FakeCatalog

PATH = "spec.iteration.consumer"
COLUMNS = {"id": "long", "Name": "string", "s": "struct", "order.date": "date"}
SOURCE = TableDescription("t-1", "orders", "/lake/orders", 3, 1.0, COLUMNS)
TARGET = TableDescription("t-9", "target", "/lake/target", 3, 1.0, {"id": "long"}, sink_seq=4, empty=False)
GOOD = ConsumerSpec("replica", "/lake/target", ("id",))


def validate(spec: ConsumerSpec, *tables: TableDescription) -> None:
    catalog = FakeCatalog(SOURCE, *tables)
    catalog.missing.add("/gone")
    ReplicaKind().validate(spec, SOURCE, catalog)


@pytest.mark.parametrize(
    "spec",
    [
        GOOD,
        replace(GOOD, key=()),
        replace(GOOD, columns=("Name", "id")),
        replace(GOOD, key=("ID",), columns=("id", "NAME")),
        replace(GOOD, where="id > 3 AND name IN ('a', 'b')"),
        replace(GOOD, where="`order.date` >= DATE '2020-01-01'"),
        replace(GOOD, where="id > (2020-01-01) AND id < 2020 - 40 - 1"),
        replace(GOOD, where="s.f.g = 1 AND ID IS NULL"),
        replace(GOOD, target="/lake/orders-copy"),
        replace(GOOD, target="/lake/order"),
    ],
)
def test_what_is_taken(spec: ConsumerSpec) -> None:
    validate(spec)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"target": ""}, "target", "is missing"),
        ({"target": "s3://bucket/x"}, "target", "another store"),
        ({"target": "copies/orders"}, "target", "is not absolute"),
        ({"target": "copies.orders"}, "target", "is not absolute"),
        ({"target": "/gone/copy"}, "target", "is to lie in /gone, which is not there"),
        ({"options": {"shards": 4}}, "options.shards", "is given, and a replica takes no options"),
        ({"options": {"a": 4, "b": 5}}, "options", "is given, and a replica takes no options"),
        ({"target": "/lake/orders"}, "target", "is the source"),
        ({"target": "/lake/orders/"}, "target", "is the source"),
        ({"target": "/lake/orders/inner"}, "target", "within"),
        ({"target": "/lake"}, "target", "within"),
        ({"target": "/lake/copy_dead_letter"}, "target", "ends in _dead_letter"),
        ({"key": ("id", "nope")}, "key", "names nope, which orders does not have"),
        ({"columns": ("id", "nope")}, "columns", "names nope"),
        ({"columns": ("Name",)}, "columns", "leaves out the key column id"),
        ({"columns": ("id", "ID")}, "columns", "twice"),
        ({"key": ("id", "Id")}, "key", "twice"),
        ({"where": "id > 1 AND `order.date` >= 2020-01-01"}, "where", "has 2020-01-01 without quotes"),
        ({"where": "nope > 3"}, "where", "names nope"),
        ({"where": "nope.id > 3"}, "where", "names nope"),
        ({"where": "id >"}, "where", "is not a SQL condition"),
        ({"where": "1 = 1; DROP TABLE x"}, "where", "is not a SQL condition"),
        ({"where": "id = (SELECT max(id) FROM orders)"}, "where", "subquery"),
        ({"where": "EXISTS (SELECT 1)"}, "where", "subquery"),
        ({"where": "sum(id) > 3"}, "where", "aggregate"),
        ({"where": "row_number() OVER (ORDER BY id) = 1"}, "where", "window"),
    ],
)
def test_what_is_refused_by_its_field_and_with_a_remedy(change: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        validate(replace(GOOD, **change))  # type: ignore[arg-type]
    assert refused.value.field == f"{PATH}.{field}"
    assert refused.value.remedy


@pytest.mark.parametrize("place", ["/lake/other/inner", "/lake/x", "/lake/x/y"])
def test_a_target_around_or_within_a_table_is_refused(place: str) -> None:
    others = [TableDescription(f"t-{uri}", uri, uri, 0, 1.0) for uri in ("/lake/other", "/lake/x/y/z")]
    with pytest.raises(InvalidRequest, match="lies within the directory of the table") as refused:
        validate(replace(GOOD, target=place), *others)
    assert (refused.value.field, bool(refused.value.remedy)) == (f"{PATH}.target", True)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("/lake/i", "/lake/i is an index, not a table"),
        ("/lake/i/data", "within the directory of the index /lake/i"),
    ],
)
def test_a_target_where_an_index_is_or_within_one_is_refused(place: str, words: str) -> None:
    catalog = FakeCatalog(SOURCE)
    catalog.indexes.add("/lake/i")
    with pytest.raises(InvalidRequest, match=words) as refused:
        ReplicaKind().validate(replace(GOOD, target=place), SOURCE, catalog)
    assert (refused.value.field, bool(refused.value.remedy)) == (f"{PATH}.target", True)


def test_an_index_is_refused_where_a_table_is_and_made_where_an_index_is() -> None:
    catalog = FakeCatalog(SOURCE, TARGET)
    catalog.indexes.add("/lake/i")
    with pytest.raises(InvalidRequest, match="/lake/target is a table, not an index"):
        check_target(GOOD, SOURCE, catalog, TargetLog.LANCE)
    assert check_target(replace(GOOD, target="/lake/i/"), SOURCE, catalog, TargetLog.LANCE) == "/lake/i"


def test_a_column_that_a_target_cannot_have_is_refused_unless_it_is_left_out() -> None:
    source = replace(SOURCE, columns={"id": "long", "odd name": "string"})
    ReplicaKind().validate(replace(GOOD, columns=("id",), where="`odd name` = 'a'"), source, FakeCatalog(source))
    with pytest.raises(InvalidRequest, match="'odd name', whose name a target cannot have") as refused:
        ReplicaKind().validate(GOOD, source, FakeCatalog(source))
    assert refused.value.field == f"{PATH}.columns"


def test_a_table_of_somebody_else_where_dead_letters_would_go_is_refused() -> None:
    letters = replace(TARGET, uri="/lake/target_dead_letter", sink_seq=0)
    validate(replace(GOOD, key=()), letters)
    with pytest.raises(InvalidRequest, match="/lake/target_dead_letter is a table with rows that iscp did not write"):
        validate(GOOD, letters)


def test_a_condition_that_the_engine_does_not_take_is_refused_with_its_reason() -> None:
    catalog = FakeCatalog(SOURCE)
    catalog.faults["id = name"] = "cannot compare"
    with pytest.raises(InvalidRequest, match="cannot compare") as refused:
        ReplicaKind().validate(replace(GOOD, where="id = name"), SOURCE, catalog)
    assert refused.value.field == f"{PATH}.where"


def test_a_target_is_new_empty_or_was_kept_before() -> None:
    validate(GOOD, TARGET)
    validate(GOOD, replace(TARGET, sink_seq=0, empty=True))
    with pytest.raises(InvalidRequest, match="rows that iscp did not write") as refused:
        validate(GOOD, replace(TARGET, sink_seq=0))
    assert (refused.value.field, refused.value.code) == (f"{PATH}.target", ErrorCode.TARGET_UNUSABLE)


def test_a_target_that_cannot_be_kept_is_refused_also_where_it_is_ours() -> None:
    forgetful = replace(TARGET, target_fault=("expires transaction ids", "Unset it"))
    with pytest.raises(InvalidRequest, match="expires transaction ids") as refused:
        validate(GOOD, forgetful)
    assert (refused.value.code, refused.value.remedy) == (ErrorCode.TARGET_UNUSABLE, "Unset it")


def test_all_columns_are_read_or_those_that_are_kept_and_filtered_by() -> None:
    source = tuple(COLUMNS)
    replica = ReplicaKind()
    assert replica.columns(GOOD, source) == source
    assert replica.columns(replace(GOOD, where="name = 'a'"), source) == source
    assert replica.columns(replace(GOOD, columns=("ID",)), source) == ("id",)
    some = replace(GOOD, columns=("id",), where="name = 'a' AND s.f = 1 AND id > 3")
    assert replica.columns(some, source) == ("id", "Name", "s")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (replace(GOOD, columns=("id", "nope")), "columns"),
        (replace(GOOD, columns=("id",), where="nope"), "where"),
        (replace(GOOD, where="nope.x > 3"), "where"),
        (replace(GOOD, key=("id", "nope")), "key"),
    ],
)
def test_a_column_that_the_source_has_lost_needs_a_person(spec: ConsumerSpec, field: str) -> None:
    with pytest.raises(PermanentError, match="no column nope") as lost:
        ReplicaKind().columns(spec, tuple(COLUMNS))
    assert (lost.value.code, lost.value.field) == (ErrorCode.SCHEMA_CHANGED, f"{PATH}.{field}")
    assert "resync" in lost.value.remedy


@pytest.mark.parametrize("change", [{"key": ("id", "v")}, {"columns": ("id", "V")}, {"where": "v IS NULL"}])
def test_a_void_column_cannot_be_named_but_may_be_there(change: dict[str, object]) -> None:
    source = replace(SOURCE, columns={**COLUMNS, "v": "void"})
    ReplicaKind().validate(GOOD, source, FakeCatalog(source))
    with pytest.raises(InvalidRequest, match="of the type void") as refused:
        ReplicaKind().validate(replace(GOOD, **change), source, FakeCatalog(source))  # type: ignore[arg-type]
    assert refused.value.field == f"{PATH}.{next(iter(change))}"


@pytest.mark.parametrize("columns", [(), ("id", "NAME")])
def test_texts_with_a_collation_are_kept_by_nobody(columns: tuple[str, ...]) -> None:
    source = replace(SOURCE, collated=("Name",))
    ReplicaKind().validate(replace(GOOD, columns=("id",), where=""), source, FakeCatalog(source))
    with pytest.raises(InvalidRequest, match="would keep Name, whose texts have a collation") as refused:
        ReplicaKind().validate(replace(GOOD, columns=columns), source, FakeCatalog(source))
    assert refused.value.field == f"{PATH}.columns"


def test_a_first_registration_does_not_rebuild_an_append_only_target_that_holds_rows() -> None:
    keyless = replace(GOOD, key=())
    validate(keyless, TARGET)  # a resync does
    with pytest.raises(InvalidRequest, match="holds rows already") as refused:
        ReplicaKind().refuse_occupied(keyless, FakeCatalog(SOURCE, TARGET))
    assert (refused.value.field, refused.value.code) == (f"{PATH}.target", ErrorCode.TARGET_UNUSABLE)
    assert "--adopt" in refused.value.remedy
    ReplicaKind().refuse_occupied(GOOD, FakeCatalog(SOURCE, TARGET))
    ReplicaKind().refuse_occupied(keyless, FakeCatalog(SOURCE))
    ReplicaKind().refuse_occupied(keyless, FakeCatalog(SOURCE, replace(TARGET, empty=True)))


def test_a_replica_keeps_its_target_for_itself() -> None:
    assert ReplicaKind.shared_target is False


def adopted(target: TableDescription | None, spec: ConsumerSpec = GOOD) -> None:
    tables = [replace(target, uri=spec.target)] if target else []
    ReplicaKind().validate_adoption(spec, SOURCE, FakeCatalog(SOURCE, *tables))


def test_a_table_that_is_taken_over_has_rows_and_the_columns_that_the_job_would_give_it() -> None:
    there = replace(SOURCE, name="copy", empty=False)
    adopted(there)
    few = {name: kind for name, kind in SOURCE.columns.items() if name == "id"}
    adopted(replace(there, columns=few), replace(GOOD, columns=("ID",)))
    for columns, told in (
        (few, "they differ in .*name"),
        ({**SOURCE.columns, "more": "long"}, "they differ in more"),
        ({**SOURCE.columns, "id": "string"}, "they differ in id"),
    ):
        with pytest.raises(InvalidRequest, match=told) as refused:
            adopted(replace(there, columns=columns))
        assert (refused.value.field, refused.value.code) == (f"{PATH}.target", ErrorCode.TARGET_UNUSABLE)
    with pytest.raises(TableNotFound):
        adopted(None)
    with pytest.raises(InvalidRequest, match="names nope"):
        adopted(there, replace(GOOD, key=("nope",)))
    with pytest.raises(InvalidRequest, match="expires"):
        adopted(replace(there, target_fault=("expires transactions", "Unset it")))
