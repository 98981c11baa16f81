"""Groups whose counts, sums and averages follow from what changed rows add and take away.

The query groups rows of a table, or of joined tables, by their columns. One row is stored for each group: how many rows
it has, and for each column that is added up how many values are not null, and their sum. All are whole numbers (a
decimal without its point), so that nothing drifts. A group is there while it has rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from iscp.core.values.totals import AggregateKind

ROWS = "n"
"""The number of a group's rows, where groups are stored."""

_DIGITS = 38
_DECIMALS = Context(prec=2 * _DIGITS, rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the result, where it is called `name`. `column` is the one of the rows (empty for a COUNT of all
    rows).

    `kind` is None where the rows are grouped by it. `scale` is the number of digits behind the point in the result
    (None: it is no decimal).
    """

    name: str
    kind: AggregateKind | None
    column: str = ""
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """Rows that are grouped by the columns `keys`, each of them in `outputs` too.

    `scales` has, for each column that is added up, the digits behind its point (0: it is a whole number).
    """

    keys: tuple[str, ...]
    outputs: tuple[Output, ...]
    scales: Mapping[str, int]

    @property
    def measured(self) -> tuple[str, ...]:
        """Return the columns that are counted or added up."""
        return tuple(dict.fromkeys(each.column for each in self.outputs if each.kind and each.column))

    def key_names(self) -> tuple[str, ...]:
        """Return the names of the keys in the result."""
        names = {each.column: each.name for each in self.outputs if each.kind is None}
        return tuple(names[key] for key in self.keys)


def key_columns(number: int) -> list[str]:
    """Return the names of the keys where groups are stored."""
    return [f"k{place}" for place in range(number)]


def number_names(measured: int) -> list[str]:
    """Return the names of the numbers where groups are stored: the rows, and a count and a sum of each measured
    column.
    """
    return [ROWS, *(f"{each}{place}" for place in range(measured) for each in ("c", "s"))]


def finished_sums(output: Output, query: GroupQuery, counts: Sequence[int], sums: Sequence[int]) -> list[Any]:
    """Return the values of a SUM or an AVERAGE in the result, one for each group.

    Averages of whole numbers are doubles, those of decimals are rounded half up, as Spark has it.
    """
    average, pairs = output.kind is AggregateKind.AVERAGE, zip(counts, sums, strict=True)
    if output.scale is None:
        return [(total / count if average else total) if count else None for count, total in pairs]
    scale, last = query.scales[output.column], Decimal(1).scaleb(-output.scale)
    exact = [(count, Decimal(total).scaleb(-scale, _DECIMALS)) for count, total in pairs]
    if not average:
        return [total if count else None for count, total in exact]
    return [
        _DECIMALS.divide(total, Decimal(count)).quantize(last, context=_DECIMALS) if count else None
        for count, total in exact
    ]
