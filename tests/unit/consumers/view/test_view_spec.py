"""The options of a view, as anybody may send them: they are read as they are meant, or refused by their field."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.consumers.view.view_spec import TABLES_MAX, read_view_spec
from iscp.model.job.source_holds import HOLD_MAX_S
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.spec.spec_parsing import WAITS_FOR_MAX_S, WAITS_FOR_S
from iscp.model.values.errors import InvalidRequest
from iscp.views.refresh.refresh_choice import Policy

OPTIONS = "spec.iteration.consumer.options"
SOUND: dict[str, Any] = {"sql": "SELECT a FROM t", "tables": {"t": "/lake/t"}}
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


def view(**options: Any) -> ConsumerSpec:
    return ConsumerSpec("view", "/lake/view", options=SOUND | options)


def test_options_that_are_left_out_have_their_defaults() -> None:
    found = read_view_spec(view())
    assert (found.query.sql, dict(found.query.tables), found.query.note) == ("SELECT a FROM t", {"t": "/lake/t"}, "")
    assert (found.policy, found.deletion_vectors, found.hold_s) == (Policy.AUTO, True, 0.0)
    assert found.waits_for_s == WAITS_FOR_S


@pytest.mark.parametrize("policy", Policy)
def test_options_are_read_as_they_are_given(policy: Policy) -> None:
    given_view = view(refresh=policy.value, deletion_vectors=False, hold_s=int(HOLD_MAX_S), sql="\n SELECT 1;;\n")
    found = read_view_spec(given_view)
    assert read_view_spec(view(waits_for_s=0)).waits_for_s == 0.0
    assert (found.policy, found.deletion_vectors, found.hold_s) == (policy, False, HOLD_MAX_S)
    assert found.query.sql == "SELECT 1"


def test_a_query_that_is_rewritten_is_shown_in_its_errors() -> None:
    rewritten = read_view_spec(view(sql="SELECT a FROM t QUALIFY row_number() OVER (ORDER BY a) = 1"))
    assert "QUALIFY" not in rewritten.query.sql
    assert "without QUALIFY" in rewritten.query.note


def test_a_query_and_names_of_several_parts_stay_as_they_are_given() -> None:
    """What the job log stores of a view is read again: the names in it have to be those of its query."""
    sql, tables = "select  A from Lake.`my-sales`.T -- as it is", {"lake.my-sales.t": "/lake/t", "two.t": "/lake/u"}
    found = read_view_spec(view(sql=sql, tables=tables))
    assert (found.query.sql, found.query.tables, found.query.note) == (sql, tables, "")


@pytest.mark.parametrize(
    "name", ["`lake`.t", '"lake"."t"', "lake..t", ".t", "t.", " t", "t ", "t x", "-t", "a\nb", "lake t."]
)
def test_a_name_of_a_table_is_written_without_quotes_and_in_parts(name: str) -> None:
    with pytest.raises(InvalidRequest, match="one to three parts") as refused:
        read_view_spec(view(tables={name: "/lake/t"}))
    assert "without quotes" in refused.value.remedy


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tables": {f"t{number}": "/lake/t" for number in range(TABLES_MAX + 1)}}, "tables"),
        ({"tables": {"a.b.c.d": "/lake/t"}}, "tables"),
        ({"tables": {"t" * 129: "/lake/t"}}, "tables"),
        ({"tables": {3: "/lake/t"}}, "tables"),
        ({"tables": {"t": ""}}, "tables.t"),
        ({"hold_s": float("nan")}, "hold_s"),
        ({"hold_s": None}, "hold_s"),
        ({"waits_for_s": -1}, "waits_for_s"),
        ({"waits_for_s": None}, "waits_for_s"),
        ({"waits_for_s": 2 * WAITS_FOR_MAX_S}, "waits_for_s"),
        ({"deletion_vectors": 1}, "deletion_vectors"),
        ({"deletion_vectors": None}, "deletion_vectors"),
        ({"refresh": None}, "refresh"),
        ({"refresh": ["auto"]}, "refresh"),
        ({"sql": " \n"}, "sql"),
        ({"sql": " ; "}, "sql"),
        ({"sql": ";\n;"}, "sql"),
    ],
)
def test_what_is_wrong_is_refused_by_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_view_spec(view(**options))
    assert refused.value.field == f"{OPTIONS}.{field}"


@pytest.mark.parametrize("name", ["key", "columns", "where"])
def test_what_a_query_says_is_said_nowhere_else(name: str) -> None:
    given_spec: dict[str, Any] = {name: "a > 1" if name == "where" else ("a",)}
    with pytest.raises(InvalidRequest) as refused:
        read_view_spec(ConsumerSpec("view", "/lake/view", options=SOUND, **given_spec))
    assert refused.value.field == f"spec.iteration.consumer.{name}"


@settings(max_examples=60)
@given(st.sampled_from(["sql", "tables", "refresh", "deletion_vectors", "hold_s", "other"]), JSON)
def test_no_value_has_another_error(name: str, value: Any) -> None:
    with suppress(InvalidRequest):
        found = read_view_spec(view(**{name: value}))
        assert name != "other"
        assert 0 <= found.hold_s <= HOLD_MAX_S
        assert 1 <= len(found.query.tables) <= TABLES_MAX
        assert found.query.sql
