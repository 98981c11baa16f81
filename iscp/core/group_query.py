"""Groups whose counts, sums and averages follow from what changed rows add and take away.

For a query that groups the rows of one table by its columns. Of each group a row is kept: how many rows it has, and of
each column that is added up how many values are not null, and their sum. All are whole numbers (a decimal without its
point), so that nothing drifts. A group is there while it has rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import StrEnum
from typing import Any, assert_never

WHOLE_MOST = 2**63 - 1
"""A sum beyond it is for the engine to compute, which says what it comes to, or that it is too large."""

_DIGITS = 38
_DECIMALS = Context(prec=2 * _DIGITS, rounding=ROUND_HALF_UP)


class Measure(StrEnum):
    """What a column of the result is: a column that the rows are grouped by, or a measure of each group."""

    KEY = "key"
    ROWS = "rows"
    COUNT = "count"
    SUM = "sum"
    AVERAGE = "average"


@dataclass(frozen=True, slots=True)
class Output:
    """`name` in the result; `column` of the table (empty: of ROWS). `scale`: digits behind the point of what it is in
    the result (None: it is no decimal)."""

    name: str
    measure: Measure
    column: str = ""
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """`keys`: columns of the table, each of them in `outputs` too. `scales`: by column that is added up, the digits
    behind its point (0: it is a whole number)."""

    table: str
    keys: tuple[str, ...]
    outputs: tuple[Output, ...]
    scales: Mapping[str, int]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that it takes."""
        counted = (each.column for each in self.outputs if each.column)
        return tuple(dict.fromkeys((*self.keys, *counted)))

    @property
    def measured(self) -> tuple[str, ...]:
        """Those that are counted or added up."""
        measures = (Measure.COUNT, Measure.SUM, Measure.AVERAGE)
        return tuple(dict.fromkeys(each.column for each in self.outputs if each.measure in measures))

    def key_names(self) -> tuple[str, ...]:
        """What the keys are called in the result."""
        names = {each.column: each.name for each in self.outputs if each.measure is Measure.KEY}
        return tuple(names[key] for key in self.keys)


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one group, or of a change of it. `counts` and `sums` are those of GroupQuery.measured, in that order."""

    rows: int
    counts: tuple[int, ...]
    sums: tuple[int, ...]

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.rows + other.rows,
            tuple(map(sum, zip(self.counts, other.counts, strict=True))),
            tuple(map(sum, zip(self.sums, other.sums, strict=True))),
        )

    @property
    def sound(self) -> bool:
        """Whether rows can come to it, and it can be kept."""
        counted = all(0 <= count <= self.rows for count in self.counts)
        return counted and all(abs(each) <= WHOLE_MOST for each in self.sums)


def result_row(query: GroupQuery, key: Sequence[Any], totals: Totals) -> tuple[Any, ...]:
    """The group's row in the result."""
    places = {column: place for place, column in enumerate(query.measured)}
    keys = dict(zip(query.keys, key, strict=True))
    return tuple(_value(each, query, keys, totals, places.get(each.column, -1)) for each in query.outputs)


def _value(output: Output, query: GroupQuery, keys: Mapping[str, Any], totals: Totals, place: int) -> Any:
    match output.measure:
        case Measure.KEY:
            return keys[output.column]
        case Measure.ROWS:
            return totals.rows
        case Measure.COUNT:
            return totals.counts[place]
        case Measure.SUM:
            return _sum(output, query, totals, place)
        case Measure.AVERAGE:
            return _average(output, query, totals, place)
        case _:
            assert_never(output.measure)


def _sum(output: Output, query: GroupQuery, totals: Totals, place: int) -> Any:
    if not totals.counts[place]:
        return None
    if output.scale is None:
        return totals.sums[place]
    return Decimal(totals.sums[place]).scaleb(-query.scales[output.column], _DECIMALS)


def _average(output: Output, query: GroupQuery, totals: Totals, place: int) -> Any:
    """Of whole numbers a double, of decimals rounded half up, as Spark has it."""
    count, total = totals.counts[place], totals.sums[place]
    if not count:
        return None
    if output.scale is None:
        return total / count
    exact = _DECIMALS.divide(Decimal(total).scaleb(-query.scales[output.column], _DECIMALS), Decimal(count))
    return exact.quantize(Decimal(1).scaleb(-output.scale), context=_DECIMALS)
