"""Name the rows that stand in a plan, and say to which of them the values of a column are restricted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from iscp.views.catalyst.plan_tree import PlanNode


class At(Enum):
    """The side of the changes: before or after them."""

    OLD = "old"
    NEW = "new"


OF_QUERY = "of the query"
"""Rows that stand in a query, and are of no table."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Rows that stand in a plan: `at` one of two versions, or changed ones (None).

    `of` is a table, of which `what` may be looked up; an aggregate whose totals are known; or an operator of which
    `what` was computed before, or whose rows the query says (OF_QUERY).
    """

    of: str | PlanNode
    at: At | None
    what: str | TableLookup = ""


@dataclass(frozen=True, slots=True)
class TableLookup:
    """The rows of a table whose `columns` have values that a row collected for one of these leaves has at these
    places.
    """

    columns: tuple[str, ...]
    sought: tuple[tuple[Leaf, tuple[int, ...]], ...]


class CollectedColumn(NamedTuple):
    """A column of rows that were collected for a leaf.

    `row_of` is the operator whose rows these are: a table that the query reads twice may have the same rows collected
    for both, and a row of the one is none of the other.
    """

    leaf: Leaf
    place: int
    row_of: PlanNode


Bound = tuple[CollectedColumn, ...]
"""The columns to one of which a column's values are restricted."""

Bounds = Mapping[int, Bound]
"""Bounds by the ids of columns."""
