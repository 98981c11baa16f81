"""Smaller variants of trees of frozen dataclasses, tuples and numbers, and the smallest that still fails.

Greedy, after Hypothesis and QuickCheck: the first smaller one that fails is gone on with, until none does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T", bound=Hashable)


def smaller(value: Any) -> Iterator[Any]:
    """The boldest first: what is left of a tree when one of its parts takes its place, then smaller parts."""
    if isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, Enum):
        yield from (first for first in list(type(value))[:1] if first is not value)
    elif isinstance(value, int):
        yield from (each for each in dict.fromkeys((0, value // 2, value - 1)) if 0 <= each < value)
    elif isinstance(value, tuple):
        yield from _shorter(value)
        for place, each in enumerate(value):
            yield from ((*value[:place], less, *value[place + 1 :]) for less in smaller(each))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _parts_alike(value)
        for part in fields(value):
            held = getattr(value, part.name)
            if held is not None and part.default is None:
                yield replace(value, **{part.name: None})
            yield from (replace(value, **{part.name: less}) for less in smaller(held))


def _shorter(values: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Without all, halves, quarters, … and each of them."""
    size = len(values)
    while size:
        for start in range(0, len(values), size):
            yield (*values[:start], *values[start + size :])
        size //= 2


def _parts_alike(value: Any) -> Iterator[Any]:
    """Parts that may stand where it stands, as operands of an operator: those of a kind with it."""
    base = type(value).__mro__[-2]
    for part in fields(value):
        held = getattr(value, part.name)
        for each in held if isinstance(held, tuple) else (held,):
            if isinstance(each, base):
                yield each


def shrink(value: T, fails: Callable[[T], bool], attempts_max: int) -> T:
    """The smallest found. `fails` is tried with other values only, each once, as often as `attempts_max` says."""
    tried: set[T] = {value}
    went_on = True
    while went_on:
        went_on = False
        for less in smaller(value):
            if less in tried:
                continue
            if len(tried) > attempts_max:
                return value
            tried.add(less)
            if fails(less):
                value, went_on = less, True
                break
    return value
