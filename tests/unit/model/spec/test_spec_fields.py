"""Every field of the spec has a flat name, leads to its place in the spec, and is named so in errors."""

from __future__ import annotations

import json

import pytest

from iscp.model.spec.spec import (
    DURATIONS,
    PATHS,
    ChangeMode,
    ConsumerSpec,
    JobSpec,
    RunFields,
    TriggerSpec,
    TriggerType,
    differing_fields,
    flat_name,
    nest,
    to_spec_json,
)
from iscp.model.spec.spec_parsing import parse_spec

GIVEN = {
    "consumer": "replica",
    "target": "/x",
    "key": ("id",),
    "columns": ["id", "a"],
    "where": "a > 1",
    "options": {"deep": True},
    "trigger": "periodic",
    "every": 60,
    "share": True,
    "target_lag": 5,
    "priority": 7,
    "change_source": "diff",
    "independent": None,
}


def test_flat_fields_make_a_spec() -> None:
    assert parse_spec(to_spec_json(GIVEN)) == JobSpec(
        ConsumerSpec("replica", "/x", ("id",), ("id", "a"), "a > 1", {"deep": True}),
        TriggerSpec(TriggerType.PERIODIC, 60.0, share=True),
        target_lag_s=5.0,
        priority=7,
        change_source=ChangeMode.DIFF,
    )


def test_what_is_not_given_is_not_there() -> None:
    assert nest({"trigger": None, "priority": 0}) == {"iteration": {"priority": 0}}


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(TypeError, match="'evry'"):
        nest({"evry": 5})


def test_every_place_has_one_name_and_is_found_by_it() -> None:
    assert set(PATHS) >= DURATIONS | set(RunFields.__annotations__)
    for name, path in PATHS.items():
        assert flat_name(".".join(("spec", *path))) == name
    assert flat_name("spec.iteration") == "spec.iteration"


def test_the_json_is_compact() -> None:
    assert json.loads(to_spec_json({"trigger": "greedy"})) == {"trigger": {"job_type": "greedy"}}
    assert to_spec_json({"trigger": "greedy"}) == '{"trigger":{"job_type":"greedy"}}'


def test_specs_differ_in_fields_that_have_flat_names() -> None:
    one = to_spec_json({"consumer": "replica", "target": "/x", "key": ["id"], "priority": 3})
    other = to_spec_json({"consumer": "replica", "target": "/x", "key": ["id", "day"], "target_lag": 60})
    assert differing_fields(one, other) == ["key", "target_lag", "priority"]
    assert differing_fields(one, one) == differing_fields("{", "{") == []
    assert differing_fields(one, "{") == ["spec"]
