"""The fields of a job_spec, against the dataclasses and what reads them: none is missing, and defaults are theirs."""

from __future__ import annotations

import json
from dataclasses import fields

from iscp.core.spec.spec import ConsumerSpec, JobSpec, TriggerSpec
from iscp.core.spec.spec_fields import DURATIONS, PATHS, nest
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.spec.spec_schema import schema_of_spec


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
