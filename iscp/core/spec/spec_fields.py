"""The fields of a job_spec under one flat name each, as options, job files and the Python client have them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from iscp.core.values.errors import InvalidRequest

_CONSUMER = ("iteration", "consumer")

PATHS: dict[str, tuple[str, ...]] = {
    "consumer": (*_CONSUMER, "kind"),
    "target": (*_CONSUMER, "target"),
    "key": (*_CONSUMER, "key"),
    "columns": (*_CONSUMER, "columns"),
    "where": (*_CONSUMER, "where"),
    "options": (*_CONSUMER, "options"),
    "trigger": ("trigger", "job_type"),
    "every": ("trigger", "schedule", "interval"),
    "cron": ("trigger", "schedule", "cron"),
    "time_zone": ("trigger", "schedule", "time_zone"),
    "share": ("trigger", "schedule", "share"),
    "trigger_name": ("trigger", "name"),
    "trigger_options": ("trigger", "options"),
    "independent": ("independent",),
    "target_lag": ("target_lag",),
    "priority": ("iteration", "priority"),
    "change_source": ("iteration", "change_source"),
    "on_replace": ("iteration", "on_replace"),
    "on_duplicate": ("iteration", "on_duplicate"),
    "on_schema_change": ("iteration", "on_schema_change"),
    "enable_cdf": ("iteration", "enable_cdf"),
    "adopt_from": ("iteration", "adopt_from"),
    "set": ("set",),
}
"""The place of each flat name in the job_spec."""

CONSUMER_FIELDS = frozenset(name for name, path in PATHS.items() if path[:-1] == _CONSUMER)
"""The fields that decide which rows the target has."""

SET = "set"
"""The field that says whose job it is, of several sets of files that are applied; it decides nothing of how it runs."""

DURATIONS = frozenset({"every", "target_lag"})


class RunFields(TypedDict, total=False):
    """The fields that say when and how a job runs, but not what it maintains. Times are seconds; see docs/api.md."""

    trigger: str
    every: float
    cron: str
    time_zone: str
    share: bool
    trigger_name: str
    trigger_options: Mapping[str, Any]
    independent: bool
    target_lag: float
    priority: int
    change_source: str
    on_replace: str
    on_duplicate: str
    on_schema_change: str
    enable_cdf: bool


def nest(fields: Mapping[str, Any], *, null: bool = False) -> dict[str, Any]:
    """Return the job_spec with these fields, as they are given. Raises TypeError for unknown names.

    None is not given, or, if `null`, the default.
    """
    root: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in PATHS:
            raise TypeError(f"a job has no field {name!r}; known are {', '.join(sorted(PATHS))}")
        if value is None and not null:
            continue
        *sections, last = PATHS[name]
        place = root
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return root


def flatten(spec_json: str) -> dict[str, Any]:
    """Return the fields that a job_spec has, under their flat names."""
    root = json.loads(spec_json)
    return {name: value for name, path in PATHS.items() if (value := _at(root, path)) is not None}


def set_of(spec_json: str) -> str:
    """Return the set whose files a job was made by; empty for one of no set."""
    return str(flatten(spec_json).get(SET, "")) if f'"{SET}"' in spec_json else ""


def with_set(spec_json: str, name: str) -> str:
    """Return the job_spec as one of a job of this set; of none where the name is empty."""
    root = {section: value for section, value in json.loads(spec_json).items() if section != SET}
    return to_json({**root, SET: name} if name else root)


def differing_fields(one_json: str, other_json: str) -> list[str]:
    """Return the flat names of the fields in which two job_specs differ; `spec` where one of them cannot be read."""
    if one_json == other_json:
        return []
    try:
        one, other = flatten(one_json), flatten(other_json)
    except (ValueError, RecursionError):
        return ["spec"]
    return [name for name in PATHS if one.get(name) != other.get(name)]


def _at(place: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(place, dict) or name not in place:
            return None
        place = place[name]
    return place


def to_spec_json(fields: Mapping[str, Any]) -> str:
    """Return the job_spec with these fields as JSON; only the node checks whether it is valid.

    Raises InvalidRequest if it cannot be written.
    """
    return to_json(nest(fields))


def to_json(spec: Mapping[str, Any]) -> str:
    """Return a spec as JSON; raise InvalidRequest if it cannot be written."""
    try:
        return json.dumps(spec, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"cannot be written as JSON: {error}",
            field="spec",
            remedy="Use texts, numbers, lists and mappings, none of which holds itself",
        ) from error


def flat_name(path: str) -> str:
    """Return the flat name of the field at `path` of an error (`spec.trigger.job_type`); the path if it has none."""
    return next((name for name, keys in PATHS.items() if path == ".".join(("spec", *keys))), path)
