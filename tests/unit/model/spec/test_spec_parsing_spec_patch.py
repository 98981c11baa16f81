"""Given fields change and others keep their value; the result is a spec that could be registered, or is refused.

What users give of a view comes back from the job's spec, however that was damaged meanwhile.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.spec.spec import ConsumerSpec, JobSpec, TriggerSpec, TriggerType
from iscp.model.spec.spec_parsing import (
    REFRESH_POLICIES,
    ViewFields,
    changed_spec,
    parse_spec,
    shown_tables,
    view_of,
    view_text,
)
from iscp.model.values.errors import InvalidRequest
from tests.unit.model.spec.test_spec_parsing import SPECS

CONSUMER = ConsumerSpec("replica", "/x", ("id",), where="a > 1", options={"kept": 1})
PERIODIC = JobSpec(CONSUMER, TriggerSpec(TriggerType.PERIODIC, 60.0, share=True), target_lag_s=90.0, priority=3)


def after(before: JobSpec, changes: dict[str, Any]) -> dict[str, Any]:
    """The changed spec's JSON but for its consumer, which has to be the same."""
    changed = changed_spec(before.to_json(), json.dumps(changes))
    assert changed.consumer == before.consumer
    document: dict[str, Any] = json.loads(changed.to_json())
    del document["iteration"]["consumer"]
    return document


def test_what_is_not_given_keeps_its_value() -> None:
    assert after(PERIODIC, {"iteration": {"priority": 7, "on_replace": "follow"}}) == {
        "trigger": {"job_type": "periodic", "schedule": {"interval": 60.0, "share": True}},
        "target_lag": 90.0,
        "iteration": {"priority": 7, "on_replace": "follow"},
    }
    schedule = {"interval": 5.0, "share": True}
    assert after(PERIODIC, {"trigger": {"schedule": {"interval": 5}}})["trigger"]["schedule"] == schedule


def test_null_takes_a_field_back_to_its_default() -> None:
    assert after(PERIODIC, {"trigger": None, "target_lag": None, "iteration": {"priority": None}}) == {"iteration": {}}


def test_another_trigger_takes_nothing_over_from_the_one_before() -> None:
    assert after(PERIODIC, {"trigger": {"job_type": "greedy"}})["trigger"] == {"job_type": "greedy"}
    custom = JobSpec(CONSUMER, TriggerSpec(TriggerType.CUSTOM, name="nightly", options={"at": 3, "zone": "x"}))
    assert after(custom, {"trigger": {"job_type": "default"}}) == {"iteration": {}}
    assert after(custom, {"trigger": {"options": {"at": 4}}})["trigger"]["options"] == {"at": 4}, "options are a whole"
    alone = JobSpec(CONSUMER, independent=True)
    assert after(alone, {"trigger": {"job_type": "greedy"}}) == {"trigger": {"job_type": "greedy"}, "iteration": {}}
    assert after(alone, {"trigger": {"job_type": "default"}}) == {"independent": True, "iteration": {}}


@given(SPECS, SPECS)
def test_any_trigger_follows_any_other(before: JobSpec, wanted: JobSpec) -> None:
    changes = json.loads(wanted.to_json())
    del changes["iteration"]["consumer"]
    changes.setdefault("trigger", {}).setdefault("job_type", "default")
    changed = changed_spec(before.to_json(), json.dumps(changes))
    assert changed.trigger.job_type == wanted.trigger.job_type
    if before.trigger.job_type != wanted.trigger.job_type:
        assert changed.trigger == wanted.trigger
    assert parse_spec(changed.to_json()) == changed


def test_the_consumer_as_it_is_may_be_given_again() -> None:
    assert changed_spec(PERIODIC.to_json(), PERIODIC.to_json()) == PERIODIC


@pytest.mark.parametrize(
    ("changes", "field", "remedy"),
    [
        ("nonsense", "spec", ""),
        ("[]", "spec", "Write it"),
        ({"trigger": {"schedule": {"interval": 0}}}, "spec.trigger.schedule.interval", "60"),
        ({"trigger": {"schedule": {"interval": None}}}, "spec.trigger.schedule.interval", "--every 10m"),
        ({"trigger": {"job_type": "custom"}}, "spec.trigger.name", "iscp.triggers"),
        ({"trigger": {"job_type": ["x"]}}, "spec.trigger.job_type", "Use one of"),
        ({"trigger": {"job_type": "greedy"}, "independent": True}, "spec.independent", "Leave it out"),
        ({"independent": True}, "spec.independent", "Leave it out"),
        ({"lag": None}, "spec.lag", "Known are"),
        ({"iteration": 5}, "spec.iteration", "Write it"),
        *(
            ({"iteration": {"consumer": {name: value}}}, f"spec.iteration.consumer.{name}", "job resync")
            for name, value in {"kind": "other", "target": "/y", "key": [], "columns": ["id"], "where": None}.items()
        ),
        ({"iteration": {"consumer": {"options": {"kept": 2}}}}, "spec.iteration.consumer.options", "job resync"),
    ],
)
def test_a_result_that_does_not_hold_is_refused(changes: Any, field: str, remedy: str) -> None:
    text = changes if isinstance(changes, str) else json.dumps(changes)
    with pytest.raises(InvalidRequest) as refused:
        changed_spec(PERIODIC.to_json(), text)
    assert refused.value.field == field
    assert remedy in refused.value.remedy


def test_times_by_cron_replace_an_interval_and_the_other_way_round() -> None:
    by_cron = {"trigger": {"schedule": {"cron": "0 0 6 * * ?", "time_zone": "Europe/Berlin"}}}
    assert after(PERIODIC, by_cron)["trigger"]["schedule"] == by_cron["trigger"]["schedule"]
    again = after(
        JobSpec(CONSUMER, TriggerSpec(TriggerType.PERIODIC, cron="0 0 6 * * ?")),
        {"trigger": {"schedule": {"interval": 5}}},
    )
    assert again["trigger"]["schedule"] == {"interval": 5.0}


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
