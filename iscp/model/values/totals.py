"""Totals of all rows, of which an aggregate without GROUP BY is made, and how changed rows move them.

All are whole numbers (a decimal without its point, a day as its number), so that nothing drifts. Counts and sums follow
what comes and goes; a maximum follows what comes, and has to be found once more where it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from iscp.model.values.untrusted_values import shown


class AggregateKind(StrEnum):
    """The kind of an aggregate function. MOMENTS are variances and deviations; EXACT is a function of doubles that is
    computed without rounding on the way. No total follows for these two.
    """

    COUNT = "count"
    SUM = "sum"
    AVERAGE = "average"
    MOST = "most"
    LEAST = "least"
    MOMENTS = "moments"
    EXACT = "exact"

    @property
    def is_extreme(self) -> bool:
        return self in (AggregateKind.MOST, AggregateKind.LEAST)

    @property
    def has_sum(self) -> bool:
        return self in (AggregateKind.SUM, AggregateKind.AVERAGE)

    def extreme(self, *values: int | None) -> int | None:
        """Return the most of the values, or for LEAST the least, without those that are None."""
        known = [each for each in values if each is not None]
        return (min if self is AggregateKind.LEAST else max)(known, default=None)


@dataclass(frozen=True, slots=True)
class Total:
    """The number and the sum of the values of one function that are not null.

    `extreme` is the most or the least of them (None: there is none, or the function needs none).
    """

    count: int = 0
    sum: int = 0
    extreme: int | None = None


@dataclass(frozen=True, slots=True)
class TotalChange:
    """The amounts that changed rows add to a total, less what they take away.

    `came` is the extreme of values of which there are more than before, `went` of those of which there are fewer.
    """

    count: int = 0
    sum: int = 0
    came: int | None = None
    went: int | None = None


Totals = tuple[Total, ...]
"""One total for each function of an aggregate, in the order of its columns."""


def changed_total(kind: AggregateKind, before: Total, change: TotalChange) -> Total | None:
    """Return the total with the change, or None if all rows have to be read, as the extreme may be gone."""
    count, total = before.count + change.count, before.sum + change.sum
    if not kind.is_extreme:
        return Total(count, total)
    extreme = kind.extreme(before.extreme, change.came)
    if change.went is not None and extreme is not None and kind.extreme(change.went, extreme) == change.went:
        return None if count else Total()
    return Total(count, total, extreme)


def merged_total(kind: AggregateKind, parts: Sequence[Total]) -> Total:
    """Return the total of all values, made of those of parts of them."""
    extreme = kind.extreme(*(each.extreme for each in parts))
    return Total(sum(each.count for each in parts), sum(each.sum for each in parts), extreme)


@dataclass(frozen=True, slots=True)
class QueryTotals:
    """The totals of each aggregate of a query that has them, in the order of its tree.

    `shape` identifies that query: totals of another shape are of no use.
    """

    shape: str = ""
    totals: tuple[Totals, ...] = ()


NO_TOTALS = QueryTotals()


def totals_document(found: QueryTotals) -> list[Any]:
    """Return the totals as JSON."""
    return [found.shape, [[[each.count, each.sum, each.extreme] for each in totals] for totals in found.totals]]


def parse_totals(document: object) -> QueryTotals:
    """Read the result of `totals_document`; raise ValueError for anything else."""
    if not isinstance(document, Sequence) or len(document) != 2:
        raise ValueError(f"totals is {shown(document)}, which are none")
    try:
        found = tuple(tuple(Total(*each) for each in totals) for totals in document[1])
    except TypeError:
        raise ValueError(f"totals is {shown(document)}, which are none") from None
    return exact_totals(QueryTotals(document[0], found))


def exact_totals(found: object) -> QueryTotals:
    """Return totals that a sink reports, checked before they are believed. Raises ValueError."""
    if not isinstance(found, QueryTotals) or not isinstance(found.shape, str):
        raise ValueError(f"totals is {shown(found)}, which is no QueryTotals")
    try:
        exact = all(_exact(each) for totals in found.totals for each in totals)
    except (TypeError, AttributeError):
        exact = False
    if not exact:
        raise ValueError(f"totals is {shown(found)}, in which not all are whole numbers")
    return found


def _exact(total: Total) -> bool:
    numbers: Sequence[object] = (total.count, total.sum, 0 if total.extreme is None else total.extreme)
    return all(type(each) is int for each in numbers) and total.count >= 0
