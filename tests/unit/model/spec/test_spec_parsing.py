"""Specs survive their JSON form, carry no defaults, and are refused with the path of the first fault and a remedy."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.spec.spec import (
    DURATIONS,
    PATHS,
    ChangeMode,
    ConsumerSpec,
    JobSpec,
    OnDuplicate,
    OnReplace,
    OnSchemaChange,
    TriggerSpec,
    TriggerType,
    nest,
    schema_of_spec,
)
from iscp.model.spec.spec_parsing import parse_spec, spec_faults
from iscp.model.values.errors import InvalidRequest

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
SECONDS = st.floats(0, 1e9, exclude_min=True)
OPTIONS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.none(), max_size=2)
COLUMNS = st.lists(NAMES, unique=True, max_size=3).map(tuple)
CONSUMERS = st.builds(
    ConsumerSpec, st.just("replica"), st.just("/x"), COLUMNS, COLUMNS, st.text(max_size=5), options=OPTIONS
)
TRIGGERS = st.one_of(
    st.builds(TriggerSpec, st.sampled_from([TriggerType.DEFAULT, TriggerType.GREEDY])),
    st.builds(TriggerSpec, st.just(TriggerType.PERIODIC), SECONDS, st.booleans()),
    st.builds(TriggerSpec, st.just(TriggerType.CUSTOM), name=NAMES, options=OPTIONS),
)
SPECS = st.builds(
    JobSpec,
    CONSUMERS,
    TRIGGERS,
    target_lag_s=st.none() | SECONDS,
    priority=st.integers(-1000, 1000),
    change_source=st.sampled_from(ChangeMode),
    on_replace=st.sampled_from(OnReplace),
    on_duplicate=st.sampled_from(OnDuplicate),
    on_schema_change=st.sampled_from(OnSchemaChange),
    adopt_from=st.none() | st.integers(0, 2**40),
    tags=st.lists(st.text("aé:-1", min_size=1, max_size=5), unique=True, max_size=3).map(tuple),
)


@given(SPECS)
def test_a_spec_survives_its_json(spec: JobSpec) -> None:
    assert parse_spec(spec.to_json()) == spec


@pytest.mark.parametrize("change_source", [ChangeMode.AUTO, ChangeMode.CDF])
def test_a_feed_that_is_wanted_may_be_switched_on(change_source: ChangeMode) -> None:
    spec = JobSpec(ConsumerSpec("replica", "/x"), change_source=change_source, enable_cdf=True)
    assert parse_spec(spec.to_json()) == spec


def test_only_the_default_trigger_is_independent() -> None:
    spec = JobSpec(ConsumerSpec("replica", "/x"), independent=True)
    assert parse_spec(spec.to_json()) == spec


def test_defaults_are_not_written() -> None:
    written = {
        "trigger": {"job_type": "default", "schedule": {"share": False}, "options": {}},
        "independent": False,
        "target_lag": None,
        "iteration": {
            "priority": 0,
            "change_source": "auto",
            "on_replace": "fail",
            "on_duplicate": "dead_letter",
            "on_schema_change": "evolve",
            "consumer": {"kind": "replica", "target": "/x", "key": [], "columns": None, "where": "", "options": {}},
        },
    }
    assert json.loads(parse_spec(json.dumps(written)).to_json()) == {
        "iteration": {"consumer": {"kind": "replica", "target": "/x"}}
    }


def of_trigger(**trigger: Any) -> dict[str, Any]:
    return {"trigger": trigger}


def of_iteration(**iteration: Any) -> dict[str, Any]:
    return {"iteration": {"consumer": {"kind": "replica"}, **iteration}}


def of_consumer(**consumer: Any) -> dict[str, Any]:
    return of_iteration(consumer={"kind": "replica", **consumer})


@pytest.mark.parametrize(
    ("change", "field", "remedy"),
    [
        ({"other": 1}, "spec.other", "Known are"),
        (of_iteration(consumer={}), "spec.iteration.consumer.kind", "replica"),
        (of_iteration(consumer=[1]), "spec.iteration.consumer", "Write it"),
        (of_iteration(consumer=[]), "spec.iteration.consumer", "Write it"),
        (of_iteration(priority=2000), "spec.iteration.priority", "Higher"),
        (of_iteration(priority=True), "spec.iteration.priority", "Higher"),
        (of_iteration(change_source="log"), "spec.iteration.change_source", "auto, cdf, append, diff"),
        (of_iteration(on_replace=["fail"]), "spec.iteration.on_replace", "fail, follow"),
        (of_iteration(on_duplicate="drop"), "spec.iteration.on_duplicate", "dead_letter, stop"),
        (of_iteration(on_schema_change=""), "spec.iteration.on_schema_change", "evolve, stop"),
        (of_iteration(enable_cdf=1), "spec.iteration.enable_cdf", "quotes"),
        (of_iteration(enable_cdf=True, change_source="diff"), "spec.iteration.enable_cdf", "auto or cdf"),
        (of_iteration(adopt_from=-1), "spec.iteration.adopt_from", "the one whose rows"),
        (of_iteration(adopt_from=True), "spec.iteration.adopt_from", "the one whose rows"),
        (of_iteration(adopt_from="7"), "spec.iteration.adopt_from", "the one whose rows"),
        ({**of_iteration(), "tags": "team:sales"}, "spec.tags", "team:sales"),
        ({**of_iteration(), "tags": ["a", "line\n"]}, "spec.tags", "team:sales"),
        ({**of_iteration(), "tags": ["a" * 101]}, "spec.tags", "at most 100 tags"),
        ({**of_iteration(), "tags": [f"t{number}" for number in range(101)]}, "spec.tags", "at most 100 tags"),
        (of_consumer(key="id"), "spec.iteration.consumer.key", "Write it"),
        (of_consumer(key=["a", "a"]), "spec.iteration.consumer.key", "once"),
        (of_consumer(colour=1), "spec.iteration.consumer.colour", "Known are"),
        (of_consumer(where=5), "spec.iteration.consumer.where", "Quote"),
        (of_consumer(options=[1]), "spec.iteration.consumer.options", "Write it"),
        (of_trigger(job_type="greedily"), "spec.trigger.job_type", "default, greedy, periodic, custom"),
        (of_trigger(job_type="periodic"), "spec.trigger.schedule.interval", "--every 10m"),
        (of_trigger(job_type="periodic", schedule={}), "spec.trigger.schedule.interval", "--every 10m"),
        (of_trigger(job_type="periodic", schedule=60), "spec.trigger.schedule", "Write it"),
        (of_trigger(job_type="periodic", schedule={"every": 1}), "spec.trigger.schedule.every", "interval, share"),
        (of_trigger(schedule={"interval": 60}), "spec.trigger.schedule.interval", "choose the trigger periodic"),
        (of_trigger(job_type="greedy", schedule={"share": True}), "spec.trigger.schedule.share", "Leave it out"),
        (of_trigger(schedule={"cron": "0 0 6 * * ?"}), "spec.trigger.schedule.cron", "choose the trigger periodic"),
        (of_trigger(job_type="periodic", schedule={"cron": "6 * * *"}), "spec.trigger.schedule.cron", "Quartz"),
        (
            of_trigger(job_type="periodic", schedule={"cron": "0 0 6 * * ?", "time_zone": "CEST2"}),
            "spec.trigger.schedule.time_zone",
            "Europe/Berlin",
        ),
        (
            of_trigger(job_type="periodic", schedule={"interval": 5, "time_zone": "UTC"}),
            "spec.trigger.schedule.time_zone",
            "cron",
        ),
        (
            of_trigger(job_type="periodic", schedule={"cron": "0 0 6 * * ?", "interval": 5}),
            "spec.trigger.schedule.interval",
            "one of both",
        ),
        (
            of_trigger(job_type="periodic", schedule={"cron": "0 0 6 * * ?", "share": True}),
            "spec.trigger.schedule.share",
            "one of both",
        ),
        (
            of_trigger(job_type="periodic", schedule={"interval": 1, "share": 1}),
            "spec.trigger.schedule.share",
            "quotes",
        ),
        (of_trigger(job_type="custom"), "spec.trigger.name", "iscp.triggers"),
        (of_trigger(job_type="custom", name="x", options=5), "spec.trigger.options", "Write it"),
        (of_trigger(name="x"), "spec.trigger.name", "choose the trigger custom"),
        (of_trigger(options={"x": 1}), "spec.trigger.options", "choose the trigger custom"),
        ({"independent": True, "trigger": {"job_type": "greedy"}}, "spec.independent", "Leave it out"),
        ({"independent": "yes"}, "spec.independent", "quotes"),
        *(({"target_lag": lag}, "spec.target_lag", "as in 60") for lag in (0, -1, "1m", True, float("nan"))),
        *(
            (of_trigger(job_type="periodic", schedule={"interval": interval}), "spec.trigger.schedule.interval", "60")
            for interval in (0, -5, "10m", (), False, float("inf"), float("nan"))
        ),
    ],
)
def test_a_wrong_spec_is_refused_by_the_path_of_what_is_wrong_with_the_remedy(
    change: dict[str, Any], field: str, remedy: str
) -> None:
    spec = {"iteration": {"consumer": {"kind": "replica", "target": "/x"}}} | change
    with pytest.raises(InvalidRequest) as refused:
        parse_spec(json.dumps(spec))
    assert refused.value.field == field
    assert remedy in refused.value.remedy


@pytest.mark.parametrize("text", ["nonsense", "[]", "[" * 100_000])
def test_what_is_no_object_is_no_spec(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_spec(text)
    assert refused.value.field == "spec"


def test_a_number_of_very_many_digits_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is not JSON") as refused:
        parse_spec('{"target_lag": ' + "9" * 5_000 + "}")
    assert refused.value.remedy


def test_every_field_of_the_dataclasses_is_described_once() -> None:
    described = [each.path[-1] + ("_s" if each.seconds else "") for each in schema_of_spec()]
    held = [each.name for kind in (ConsumerSpec, TriggerSpec, JobSpec) for each in fields(kind)]
    assert sorted(described) == sorted(name for name in held if name not in ("consumer", "trigger"))
    assert [each.name for each in schema_of_spec()] == list(PATHS)
    assert {each.name for each in schema_of_spec() if each.seconds} == DURATIONS


def test_writing_all_defaults_changes_nothing() -> None:
    needed = {"consumer": "replica", "target": "/copy"}
    defaults = {each.name: each.default for each in schema_of_spec() if each.default is not None}
    assert parse_spec(json.dumps(nest(needed | defaults))) == parse_spec(json.dumps(nest(needed)))
    assert all(each.about and each.type_name for each in schema_of_spec())


def test_every_fault_of_a_spec_can_be_had_at_once() -> None:
    faulty = {
        "trigger": {"job_typ": "periodic", "schedule": 5},
        "iteration": {"consumer": {"kind": "replica", "key": [1]}},
        "target_lag": -1,
    }
    found = {each.field: each.remedy for each in spec_faults(json.dumps(faulty))}
    assert list(found) == [
        "spec.trigger.job_typ",
        "spec.trigger.schedule",
        "spec.iteration.consumer.key",
        "spec.target_lag",
    ]
    assert found["spec.trigger.job_typ"] == "Did you mean job_type? Known are job_type, name, options, schedule"
    (together,) = spec_faults(json.dumps({"trigger": {"job_type": "periodic"}, **of_consumer()}))
    assert together.field == "spec.trigger.schedule.interval"
    assert [each.field for each in spec_faults("{")] == ["spec"]
    assert spec_faults(json.dumps(of_consumer())) == []
