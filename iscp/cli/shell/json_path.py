"""Paths into an answer, as kubectl's jsonpath has them: `.status.error_code`, `{.nodes[0].id}`, `[*].name`.

Fields, indexes and `[*]` only. A field of a list is that of each of its items, and `.items` of a list is the list, so
that paths for Kubernetes' lists fit these. Filters, slices, ranges and functions are not known.
"""

from __future__ import annotations

import re
from typing import Any

_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(?:(-?\d+)|(\*)|'([^']+)'|\"([^\"]+)\")\]")

Step = str | int | None
"""A field, an index, or all items (None)."""


def parse_path(text: str) -> tuple[Step, ...]:
    """Raises ValueError, which says what is wrong and what would be right."""
    path = text.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1].strip()
    path = path.removeprefix("$").removeprefix("@")
    if path and path[0] not in ".[":
        path = f".{path}"
    steps: list[Step] = []
    at = 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise ValueError(f"{text!r} is not a path: give fields, indexes and [*], as in .status.rows or [*].name")
        field, index, every, *quoted = found.groups()
        steps.append(None if every else int(index) if index else field or quoted[0] or quoted[1])
        at = found.end()
    if not steps:
        raise ValueError(f"{text!r} is an empty path: give fields, indexes and [*], as in .status.rows or [*].name")
    return tuple(steps)


def values_at(value: Any, path: tuple[Step, ...]) -> list[Any]:
    """Return what lies there, in order. Raises LookupError for a field that is not there, which says which are."""
    found = [value]
    for step in path:
        found = [each for one in found for each in _values_of(one, step)]
    return found


def _values_of(value: Any, step: Step) -> list[Any]:
    if isinstance(value, list):
        return _values_of_list(value, step)
    if isinstance(value, dict) and isinstance(step, str):
        if step not in value:
            raise LookupError(f"there is no field {step!r}; there are {', '.join(map(str, value)) or 'none'}")
        return [value[step]]
    if isinstance(value, dict) and step is None:
        return list(value.values())
    raise LookupError(f"{'[*]' if step is None else repr(step)} names a part of {value!r}, which has no parts")


def _values_of_list(value: list[Any], step: Step) -> list[Any]:
    match step:
        case None | "items":
            return value if step is None else [value]
        case int():
            return value[step : step + 1 or None]
        case str():
            return [each for one in value for each in _values_of(one, step)]
