"""A validator of JSON Schema, as far as the schema of job files goes; a keyword that it does not know is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_SAID = {"description", "default", "title", "$schema", "$defs", "then"}


def valid(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> bool:
    root = schema if root is None else root
    return all(_holds(value, word, wanted, schema, root) for word, wanted in schema.items() if word not in _SAID)


def _holds(value: Any, word: str, wanted: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    match word:
        case "$ref":
            return valid(value, root["$defs"][wanted.removeprefix("#/$defs/")], root)
        case "anyOf":
            return any(valid(value, each, root) for each in wanted)
        case "allOf":
            return all(valid(value, each, root) for each in wanted)
        case "additionalProperties" if isinstance(wanted, dict):
            return not isinstance(value, dict) or all(valid(each, wanted, root) for each in value.values())
        case "if":
            return not valid(value, wanted, root) or valid(value, schema["then"], root)
        case "type":
            names = [wanted] if isinstance(wanted, str) else wanted
            return any(isinstance(value, _TYPES[name]) and _is_no_flag(value, name) for name in names)
        case "enum":
            return value in wanted
    return _holds_of_kind(value, word, wanted, schema, root)


def _is_no_flag(value: Any, name: str) -> bool:
    return name == "boolean" or not isinstance(value, bool)


def _holds_of_kind(value: Any, word: str, wanted: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Words that say nothing of values of other types."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    checks: dict[str, Callable[[], bool]] = {
        "minimum": lambda: not number or value >= wanted,
        "maximum": lambda: not number or value <= wanted,
        "exclusiveMinimum": lambda: not number or value > wanted,
        "maxItems": lambda: not isinstance(value, list) or len(value) <= wanted,
        "minProperties": lambda: not isinstance(value, dict) or len(value) >= wanted,
        "minLength": lambda: not isinstance(value, str) or len(value) >= wanted,
        "pattern": lambda: not isinstance(value, str) or bool(re.search(wanted, value)),
        "items": lambda: not isinstance(value, list) or all(valid(each, wanted, root) for each in value),
        "uniqueItems": lambda: not isinstance(value, list) or len({*map(repr, value)}) == len(value),
        "required": lambda: not isinstance(value, dict) or all(name in value for name in wanted),
        "additionalProperties": lambda: not isinstance(value, dict) or value.keys() <= schema["properties"].keys(),
        "properties": lambda: (
            not isinstance(value, dict)
            or all(valid(value[name], each, root) for name, each in wanted.items() if name in value)
        ),
    }
    return checks[word]()
