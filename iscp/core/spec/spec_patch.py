"""Change some fields of a job's spec.

A field that is not given stays as it is, and null takes a field back to its default. The result is checked as a whole,
as a new job's spec is. A trigger of another kind replaces the one before with all that belongs to it; what decides over
the rows of the target cannot be changed, as the target would no longer have what its watermark says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from iscp.core.spec.spec import JobSpec, TriggerType
from iscp.core.spec.spec_parsing import parse_object, parse_spec
from iscp.core.values.errors import InvalidRequest

_AS_JSON = 'Write it as in {"target_lag": 60}'

_OPAQUE = "options"
"""The field of a consumer or trigger of the user's that is replaced as a whole, not field by field."""


def changed_spec(current_json: str, changes_json: str) -> JobSpec:
    """Return the spec with `changes_json` (a job_spec with the fields to change) over it; raises InvalidRequest."""
    changes = parse_object(changes_json, _AS_JSON)
    before = parse_spec(current_json)
    current = json.loads(current_json)
    trigger = changes.get("trigger")
    if isinstance(trigger, dict) and trigger.get("job_type", before.trigger.job_type) != before.trigger.job_type:
        current.pop("trigger", None)
        if trigger["job_type"] not in (None, TriggerType.DEFAULT):
            current.pop("independent", None)
    _drop_other_schedule(current, trigger)
    after = parse_spec(json.dumps(_merged(current, changes)))
    _refuse_another_target(before, after)
    return after


def _drop_other_schedule(current: dict[str, Any], trigger: Any) -> None:
    """Remove the interval where times by cron are given, and the other way round."""
    given = trigger.get("schedule") if isinstance(trigger, dict) else None
    schedule = current.get("trigger", {}).get("schedule", {})
    for one, others in (("cron", ("interval", "share")), ("interval", ("cron", "time_zone"))):
        if isinstance(given, dict) and given.get(one) is not None:
            for name in others:
                schedule.pop(name, None)


def _merged(current: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(current)
    for name, value in changes.items():
        before = merged.get(name)
        if isinstance(value, dict) and isinstance(before, dict) and name != _OPAQUE:
            value = _merged(before, value)
        merged[name] = value
    return merged


def _refuse_another_target(before: JobSpec, after: JobSpec) -> None:
    for each in fields(before.consumer):
        if getattr(before.consumer, each.name) != getattr(after.consumer, each.name):
            raise InvalidRequest(
                "cannot be changed while the target holds rows by it",
                field=f"spec.iteration.consumer.{each.name}",
                remedy="Have the target rebuilt: `iscp-admin job resync` takes another spec",
            )
