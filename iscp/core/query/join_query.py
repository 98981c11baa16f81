"""Inner joins of tables by equal columns, whose result has columns of theirs; and how its changes follow from theirs.

A row of the result is a row of each table. So with the rows as they are afterwards its changes are, over every choice
of some tables that changed: their changed rows, joined with each other and with all rows of the others; added where the
choice has an odd number of tables, else subtracted (inclusion and exclusion). No former rows are needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

CHANGED_TABLES_MAX = 3
"""Tables of one join that may change together for its changes to be made up so: seven joins; more are for Spark."""


class RowCondition(NamedTuple):
    """A condition that a row has to meet to count: `operator` is =, !=, <, <=, > or >=, or empty for "is not null"."""

    column: str
    operator: str = ""
    value: object = None


class Column(NamedTuple):
    """A column of the table at that place in JoinQuery.tables."""

    place: int
    name: str


class Equality(NamedTuple):
    """Two columns whose values are equal and not null."""

    left: Column
    right: Column


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """A table as a join reads it. `name` is the one in the query, which may read it more than once; `columns` are those
    read.
    """

    name: str
    columns: tuple[str, ...]
    conditions: tuple[RowCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinQuery:
    """A join; `outputs` are the result's columns, in order."""

    tables: tuple[JoinedTable, ...]
    equalities: tuple[Equality, ...]
    outputs: tuple[Column, ...]

    @property
    def connected(self) -> bool:
        """Return whether equalities lead from each table to every other."""
        return len(list(self.steps({0}))) == len(self.tables) - 1

    def steps(self, joined: Collection[int]) -> Iterator[JoinStep]:
        """Yield the steps that join the other tables to those at these places, each by all that has to be equal.

        A table that no equality leads to does not come.
        """
        there = set(joined)
        while True:
            reached = {end.place for each in self.equalities for end in each if self._leads(each, there)} - there
            if not reached:
                return
            place = min(reached)
            yield JoinStep(place, tuple(self._pairs(place, there)))
            there.add(place)

    def _leads(self, equality: Equality, there: Collection[int]) -> bool:
        return (equality.left.place in there) != (equality.right.place in there)

    def _pairs(self, place: int, there: Collection[int]) -> Iterator[tuple[Column, Column]]:
        for left, right in self.equalities:
            if right.place == place and left.place in there:
                yield left, right
            elif left.place == place and right.place in there:
                yield right, left


@dataclass(frozen=True, slots=True)
class JoinStep:
    """The table at `place` comes next; `pairs` have a column that is joined already, and one of this table."""

    place: int
    pairs: tuple[tuple[Column, Column], ...]


def choices(changed: Collection[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Return each choice of some of these places, with the sign by which its tables' changed rows count."""
    places = sorted(changed)
    return [
        (1 if size % 2 else -1, chosen) for size in range(1, len(places) + 1) for chosen in combinations(places, size)
    ]
