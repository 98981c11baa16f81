"""Measure how many bytes of memory a value takes with all that it has, as whoever holds it has to know."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any

_SINGLE = (int, float, bool, type(None), Enum)
"""Types whose values are shared, or so small that their holder's own size stands for them."""


def bytes_of(value: object) -> int:
    """Return the bytes that a value takes, with those of its fields, items, keys and values.

    What is there several times counts as often: it is never less than what the value really takes but for numbers. Each
    text, sequence and mapping is looked at, so that no part of it is large and not counted.
    """
    total, open_ones = 0, [value]
    while open_ones:
        each = open_ones.pop()
        if isinstance(each, str):
            total += sys.getsizeof(each)
        elif isinstance(each, _SINGLE):
            continue
        else:
            total += sys.getsizeof(each)
            open_ones.extend(_parts_of(each))
    return total


def _parts_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    kind: Any = type(value)
    return _getter(kind)(value) if is_dataclass(value) else ()


@cache
def _getter(kind: Any) -> Any:
    """Return what takes the values of all fields off an object of a dataclass."""
    names = [each.name for each in fields(kind)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]
