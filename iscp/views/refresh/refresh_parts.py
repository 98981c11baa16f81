"""Measure how long the parts of a refresh take, and how many rows of its tables it reads, for the history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import ParamSpec, TypeVar

from iscp.ports.system import Clock

P = ParamSpec("P")
R = TypeVar("R")


class Part(StrEnum):
    """The part of a refresh. SPANS reads the tables' logs. PLAN has Spark analyze the query. CHANGES reads changed
    rows, and sums them up where that is done without Spark. STATE computes and writes what is stored beside the target.
    ROWS is all else, mostly to compute the rows and to write them.
    """

    SPANS = "spans"
    PLAN = "plan"
    CHANGES = "changes"
    STATE = "state"
    ROWS = "rows"


@dataclass(slots=True)
class RefreshParts:
    """The parts of one refresh. `rows_in` is -1 once somebody cannot say how many rows it has read.

    `bytes_in` are those of the files with what it reads.
    """

    clock: Clock
    parts_s: dict[str, float] = field(default_factory=dict)
    rows_in: int = 0
    bytes_in: int = 0
    inner_s: float = 0.0

    def count(self, rows: int | None) -> None:
        self.rows_in = -1 if rows is None or self.rows_in < 0 else self.rows_in + rows

    @contextmanager
    def measure(self, part: Part) -> Iterator[None]:
        """Measure what happens within, without the parts within it."""
        began_s, outer_s, self.inner_s = self.clock.monotonic_s(), self.inner_s, 0.0
        try:
            yield
        finally:
            took_s = self.clock.monotonic_s() - began_s
            own_s = self.parts_s.get(part.value, 0.0) + took_s - self.inner_s
            self.parts_s[part.value] = max(0.0, round(own_s, 4))
            self.inner_s = outer_s + took_s


_current: ContextVar[RefreshParts | None] = ContextVar("refresh_parts", default=None)


@contextmanager
def measuring(clock: Clock) -> Iterator[RefreshParts]:
    """Measure what happens within, on this thread, as ROWS where it is no other part."""
    parts = RefreshParts(clock)
    token = _current.set(parts)
    try:
        with parts.measure(Part.ROWS):
            yield parts
    finally:
        _current.reset(token)


def measured_as(part: Part) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have the calls of a function count as this part of the refresh that they are made in, if there is one."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            parts = _current.get()
            if parts is None:
                return function(*args, **kwargs)
            with parts.measure(part):
                return function(*args, **kwargs)

        return call

    return decorate


def count_read(rows: int | None) -> None:
    """Count changed rows that the refresh has read; None: nobody has counted them."""
    if (parts := _current.get()) is not None:
        parts.count(rows)


def count_bytes(size: int) -> None:
    """Count the bytes of files with changes that the refresh reads."""
    if (parts := _current.get()) is not None:
        parts.bytes_in += size
