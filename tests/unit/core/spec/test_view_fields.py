"""What users give of a view comes back from the job's spec, however that was damaged meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.spec.spec import TriggerType
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.spec.view_fields import REFRESH_POLICIES, ViewFields, shown_tables, view_of, view_text
from iscp.core.values.errors import InvalidRequest

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VIEWS = st.builds(
    ViewFields,
    TEXTS,
    st.dictionaries(TEXTS, TEXTS, max_size=3),
    TEXTS.filter(bool),
    st.sampled_from(REFRESH_POLICIES),
    st.fixed_dictionaries({}, optional={"priority": st.integers(0, 9), "target_lag": st.floats(1, 1e6)}),
    st.booleans(),
    st.floats(0, 1e9),
    st.none() | st.floats(0, 1e5),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(VIEWS)
def test_a_view_survives_its_spec_which_every_node_reads(view: ViewFields) -> None:
    spec = view.spec_json()
    assert view_of(spec) == view
    assert parse_spec(spec).consumer.options["sql"] == view.sql


@pytest.mark.parametrize("refresh", ["", "auto"])
def test_what_is_the_default_is_not_written(refresh: str) -> None:
    spec = json.loads(ViewFields("SELECT 1", {"t": "/t"}, "/x", refresh, {"priority": None}).spec_json())
    assert spec == {
        "iteration": {
            "consumer": {"kind": "view", "target": "/x", "options": {"sql": "SELECT 1", "tables": {"t": "/t"}}}
        }
    }


@pytest.mark.parametrize(
    ("run", "trigger"),
    [
        ({}, TriggerType.DEFAULT),
        ({"every": None}, TriggerType.DEFAULT),
        ({"every": 60.0}, TriggerType.PERIODIC),
        ({"cron": "0 0 6 * * ?"}, TriggerType.PERIODIC),
        ({"trigger": "greedy"}, TriggerType.GREEDY),
    ],
)
def test_a_time_alone_makes_a_view_periodic(run: dict[str, Any], trigger: TriggerType) -> None:
    assert parse_spec(ViewFields("SELECT 1", {"t": "/t"}, "/x", run=run).spec_json()).trigger.job_type is trigger


def test_another_trigger_beside_a_time_is_left_for_the_node_to_refuse() -> None:
    spec = ViewFields("SELECT 1", {"t": "/t"}, "/x", run={"every": 60.0, "trigger": "greedy"}).spec_json()
    with pytest.raises(InvalidRequest, match="goes only with the periodic trigger"):
        parse_spec(spec)


@given(JSON, JSON)
def test_a_spec_that_was_damaged_is_another_or_none(options: Any, whole: Any) -> None:
    """Lists of views are shown all the same."""
    assert view_of(json.dumps(whole)) is None
    damaged = view_of(json.dumps({"iteration": {"consumer": {"kind": "view", "options": options}}}))
    assert damaged is None or isinstance(damaged, ViewFields)
    assert (damaged is None) == (options is not None and not isinstance(options, dict))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", '{"iteration": {"consumer": {"kind": "replica"}}}'])
def test_what_is_no_view_is_none(text: str) -> None:
    assert view_of(text) is None


def test_a_view_is_registered_on_its_first_table() -> None:
    assert ViewFields("", {"b": "/b", "a": "/a"}).table == "/b"
    with pytest.raises(InvalidRequest, match="names no table"):
        _ = ViewFields("", {}).table
    assert shown_tables({"b": "/b", "a": "/a"}) == "b=/b, a=/a"


@pytest.mark.parametrize(
    ("given_", "stored"), [(None, ""), (" ;", ""), ("\nSELECT 1 ;;\n", "SELECT 1"), ("SELECT ';'", "SELECT ';'")]
)
def test_a_query_is_stored_without_what_is_around_it(given_: str | None, stored: str) -> None:
    assert view_text(given_) == stored
