"""Groups whose counts, sums and averages follow from what changed rows add and take away.

For a query that groups rows of a table, or of joined tables, by their columns. Of each group a row is kept: how many
rows it has, and of each column that is added up how many values are not null, and their sum. All are whole numbers (a
decimal without its point), so that nothing drifts. A group is there while it has rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import StrEnum
from operator import add
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


MEASURED = (Measure.COUNT, Measure.SUM, Measure.AVERAGE)
"""Those that count or add up a column."""


@dataclass(frozen=True, slots=True)
class Output:
    """`name` in the result; `column` of the rows (empty: of ROWS). `scale`: digits behind the point of what it is in
    the result (None: it is no decimal)."""

    name: str
    measure: Measure
    column: str = ""
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """`keys`: columns of the rows, each of them in `outputs` too. `scales`: by column that is added up, the digits
    behind its point (0: it is a whole number)."""

    keys: tuple[str, ...]
    outputs: tuple[Output, ...]
    scales: Mapping[str, int]

    @property
    def measured(self) -> tuple[str, ...]:
        """Those that are counted or added up."""
        return tuple(dict.fromkeys(each.column for each in self.outputs if each.measure in MEASURED))

    def key_names(self) -> tuple[str, ...]:
        """What the keys are called in the result."""
        names = {each.column: each.name for each in self.outputs if each.measure is Measure.KEY}
        return tuple(names[key] for key in self.keys)


@dataclass(frozen=True, slots=True)
class Totals:
    """Of some groups, or of a change of them, each of which has the same place in every list.

    `counts` and `sums` have a list for each of GroupQuery.measured, in that order.
    """

    rows: list[int]
    counts: list[list[int]]
    sums: list[list[int]]

    def plus(self, other: Totals) -> Totals:
        return Totals(
            _added(self.rows, other.rows),
            list(map(_added, self.counts, other.counts)),
            list(map(_added, self.sums, other.sums)),
        )

    @property
    def sound(self) -> bool:
        """Whether rows can come to all of it, and it can be kept."""
        counted = all(
            0 <= count <= rows for counts in self.counts for count, rows in zip(counts, self.rows, strict=True)
        )
        added = all(
            abs(total) <= WHOLE_MOST and (rows or not total)
            for sums in self.sums
            for total, rows in zip(sums, self.rows, strict=True)
        )
        return min(self.rows, default=0) >= 0 and counted and added


def _added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return list(map(add, one, other))


def result_column(
    output: Output, query: GroupQuery, keys: Mapping[str, Sequence[Any]], totals: Totals
) -> Sequence[Any]:
    """A column of the groups' rows in the result. `keys`: by the rows' columns, the groups' values of them."""
    place = query.measured.index(output.column) if output.measure in MEASURED else -1
    match output.measure:
        case Measure.KEY:
            return keys[output.column]
        case Measure.ROWS:
            return totals.rows
        case Measure.COUNT:
            return totals.counts[place]
        case Measure.SUM:
            return _sums(output, query, totals.counts[place], totals.sums[place])
        case Measure.AVERAGE:
            return _averages(output, query, totals.counts[place], totals.sums[place])
        case _:
            assert_never(output.measure)


def _sums(output: Output, query: GroupQuery, counts: Sequence[int], sums: Sequence[int]) -> list[Any]:
    pairs = zip(counts, sums, strict=True)
    if output.scale is None:
        return [total if count else None for count, total in pairs]
    scale = query.scales[output.column]
    return [Decimal(total).scaleb(-scale, _DECIMALS) if count else None for count, total in pairs]


def _averages(output: Output, query: GroupQuery, counts: Sequence[int], sums: Sequence[int]) -> list[Any]:
    """Of whole numbers doubles, of decimals rounded half up, as Spark has it."""
    pairs = zip(counts, sums, strict=True)
    if output.scale is None:
        return [total / count if count else None for count, total in pairs]
    scale, last = query.scales[output.column], Decimal(1).scaleb(-output.scale)
    return [
        _DECIMALS.divide(Decimal(total).scaleb(-scale, _DECIMALS), Decimal(count)).quantize(last, context=_DECIMALS)
        if count
        else None
        for count, total in pairs
    ]
