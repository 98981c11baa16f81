"""What a view has to be: refused by the field, with the remedy, before anything is written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from iscp.consumers.view.view_kind import ViewKind
from iscp.model.job.source_holds import HOLD_MAX_S
from iscp.model.query_plan import ChangeCost, KeptTable, Operator, OperatorKind, OperatorUpkeep, QueryShape
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import InvalidRequest, IscpError
from iscp.model.values.progress import TableSize
from iscp.ports.source import TableDescription
from tests.fakes.catalog import FakeCatalog

SQL = "SELECT a FROM t, u"
FIELDS = [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]
SCHEMA = json.dumps({"type": "struct", "fields": FIELDS})
T = TableDescription("t-id", "/lake/t", "/lake/t", 0, 1.0, {"a": "long"}, schema_json=SCHEMA)
U = replace(T, table_id="u-id", name="/lake/u", uri="/lake/u")
KIND = ViewKind()


def view(**given: Any) -> ConsumerSpec:
    options = {"sql": SQL, "tables": {"t": "/lake/t", "u": "/lake/u"}} | given.pop("options", {})
    return ConsumerSpec(**{"kind": "view", "target": "/lake/view", "options": options, **given})


def catalog(*names: str, whole: bool = False) -> FakeCatalog:
    made = FakeCatalog(T, U)
    if names or whole:
        fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in names or ("a",)]
        tables = tuple(Operator(OperatorKind.TABLE, name, table=name) for name in ("t", "u"))
        root = Operator(OperatorKind.LIMIT if whole else OperatorKind.UNION, "Limit 3", tables)
        made.shapes[SQL] = QueryShape(root, json.dumps({"type": "struct", "fields": fields}), frozenset("tu"))
    return made


def test_a_view_over_its_tables_is_taken_and_knows_them() -> None:
    KIND.validate(view(), T, catalog())
    assert KIND.tables(view(), catalog()) == {"t": "/lake/t", "u": "/lake/u"}


def test_its_tables_are_called_as_in_the_query() -> None:
    options = {"sql": "SELECT a FROM lake.T", "tables": {"lake.T": "/lake/t"}}
    assert KIND.tables(view(options=options), catalog()) == {"lake.T": "/lake/t"}


def test_a_table_that_the_query_reads_is_not_named_by_a_link() -> None:
    linked = catalog()
    linked.links = {"/links/u": "/lake/u"}
    given = view(options={"tables": {"t": "/lake/t", "u": "/links/u"}})
    for call in (lambda: KIND.validate(given, T, linked), lambda: KIND.explain(given, linked)):
        with pytest.raises(InvalidRequest, match=r"/links/u is a link\. Give /lake/u") as refused:
            call()
        assert refused.value.field == "spec.iteration.consumer.options.tables.u"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"key": ("a",)}, "key"),
        ({"columns": ("a",)}, "columns"),
        ({"where": "a > 1"}, "where"),
        ({"target": "/lake/t"}, "target"),
        ({"target": "/lake/u"}, "target"),
        ({"target": "/lake/x_view_state"}, "target"),
        ({"target": "/lake/x_view_state_2"}, "target"),
        ({"options": {"sql": ""}}, "options.sql"),
        ({"options": {"sql": 3}}, "options.sql"),
        ({"options": {"sql": "x" * 300_000}}, "options.sql"),
        ({"options": {"tables": {}}}, "options.tables"),
        ({"options": {"tables": ["t"]}}, "options.tables"),
        ({"options": {"tables": {"t x": "/lake/t"}}}, "options.tables"),
        ({"options": {"tables": {"t": "/lake/t", "T": "/lake/u"}}}, "options.tables"),
        ({"options": {"tables": {"t": "/lake/t", "u": 3}}}, "options.tables.u"),
        ({"options": {"tables": {"t": "/lake/t", "u": "/lake/none"}}}, "options.tables.u"),
        ({"options": {"tables": {"u": "/lake/u"}}}, "options.tables"),
        ({"options": {"refresh": "often"}}, "options.refresh"),
        ({"options": {"deletion_vectors": "no"}}, "options.deletion_vectors"),
        ({"options": {"hold_s": "7d"}}, "options.hold_s"),
        ({"options": {"hold_s": -1}}, "options.hold_s"),
        ({"options": {"hold_s": True}}, "options.hold_s"),
        ({"options": {"hold_s": HOLD_MAX_S + 1}}, "options.hold_s"),
        ({"options": {"schedule": "1h"}}, "options"),
    ],
)
def test_what_is_wrong_is_refused_by_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(IscpError) as refused:
        KIND.validate(view(**given), T, catalog())
    assert refused.value.field == f"spec.iteration.consumer.{field}"


def test_a_view_holds_all_of_its_tables_or_none() -> None:
    held = view(options={"hold_s": HOLD_MAX_S})
    KIND.validate(held, T, catalog())
    assert KIND.held(held) == {"/lake/t": HOLD_MAX_S, "/lake/u": HOLD_MAX_S}
    assert KIND.held(view()) == {}


def test_a_hold_is_refused_where_nobody_can_say_whether_it_is_longer() -> None:
    found = catalog()
    found.tables["/lake/u"] = replace(U, configuration={"delta.logRetentionDuration": "interval 1 month"})
    KIND.validate(view(), T, found)
    with pytest.raises(InvalidRequest, match=r"table u has delta.logRetentionDuration = interval 1 month") as refused:
        KIND.validate(view(options={"hold_s": 60.0}), T, found)
    assert refused.value.field == "spec.iteration.consumer.options.hold_s"


def test_a_query_that_the_engine_refuses_is_refused_in_its_words() -> None:
    found = catalog()
    found.faults[SQL] = "has no column b"
    with pytest.raises(InvalidRequest, match="has no column b") as refused:
        KIND.validate(view(), T, found)
    assert refused.value.field == "spec.iteration.consumer.options.sql"


@pytest.mark.parametrize("names", [("a", "A"), ("count(1)",)])
def test_names_that_a_table_cannot_have_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="name") as refused:
        KIND.validate(view(), T, catalog(*names))
    assert refused.value.remedy.endswith("by AS")


def test_a_strict_view_is_refused_where_it_would_be_recomputed_as_a_whole() -> None:
    KIND.validate(view(), T, catalog(whole=True))
    with pytest.raises(InvalidRequest, match="Limit 3"):
        KIND.validate(view(options={"refresh": "strict"}), T, catalog(whole=True))


def test_a_table_with_rows_of_others_is_no_target() -> None:
    found = catalog()
    found.tables["/lake/view"] = replace(T, uri="/lake/view", empty=False)
    with pytest.raises(InvalidRequest, match="did not write"):
        KIND.validate(view(), T, found)


def test_a_view_is_explained_with_its_columns_tables_and_what_to_know() -> None:
    explained = KIND.explain(view(), catalog("a", "b", whole=True))
    assert explained.operators[0].upkeep is OperatorUpkeep.WHOLE
    assert explained.columns == {"a": "long", "b": "long"}
    assert explained.tables == {"t": "/lake/t", "u": "/lake/u"}
    assert "estimates" in explained.notes[0]
    assert "ORDER BY" in explained.notes[1]


def test_it_is_said_what_leaves_changes_to_spark_and_which_statements_run_without_it() -> None:
    found = catalog("a", "b")
    found.shapes[SQL] = replace(found.shapes[SQL], by_spark=("SoundEx: not in the list", "column m of another type"))
    explained = KIND.explain(view(), found)
    assert explained.notes[-1].endswith("as DuckDB has not: SoundEx: not in the list; column m of another type.")
    found.shapes[SQL] = replace(found.shapes[SQL], by_spark=(), statements=("-- t has changed",))
    assert KIND.explain(view(), found).statements == ("-- t has changed",)


def test_it_is_said_of_which_tables_first_rows_are_computed_by_ranges() -> None:
    found = catalog("a", "b")
    found.shapes[SQL] = replace(found.shapes[SQL], whole={"t": "", "u": "Join needs all rows of u at once"})
    _, by_ranges, at_once, without_spark = KIND.explain(view(), found).notes
    assert "DuckDB computes" in without_spark
    assert (
        by_ranges == "Registered on t, where that is large, its first rows are computed by ranges of it, on all nodes."
    )
    assert at_once.endswith(
        "Registered on u, where that is large, its first rows are computed on one node, as Join "
        "needs all rows of u at once."
    )


def test_sizes_and_costs_are_of_the_tables_and_of_what_is_kept_already() -> None:
    there = catalog("a", whole=True)
    shape = there.shapes[SQL]
    there.sizes = {"/lake/t": TableSize(50, 500), "/lake/view_view_state_2": TableSize(7, 70)}
    there.shapes[SQL] = replace(shape, stored=shape.root.inputs[0])
    explained = KIND.explain(view(), there)
    assert explained.sizes == {"t": TableSize(50, 500)}
    assert explained.kept == ()
    state = replace(T, uri="/lake/view_view_state_2", name="/lake/view_view_state_2")
    there.tables[state.uri] = state
    explained = KIND.explain(view(), there)
    assert explained.kept == (KeptTable("/lake/view_view_state_2", "what is kept besides", TableSize(7, 70)),)
    assert [each.state for each in explained.operators] == ["", "its rows", ""]
    assert explained.operators[1].costs == (ChangeCost("t", 1_000, 0),)
    assert not KIND.explain(view(target=""), there).kept


def test_groups_that_follow_without_spark_are_said_to() -> None:
    there = catalog("a", "b")
    there.shapes[SQL] = replace(there.shapes[SQL], by_group=True)
    explained = KIND.explain(view(), there)
    assert explained.operators[0].upkeep is OperatorUpkeep.STATE
    assert explained.operators[0].state
    assert "by Spark" in explained.notes[1]
