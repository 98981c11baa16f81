"""Tables, and what is committed to them between the refreshes of a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.random_views.cells import KINDS, SUMMED_KIND, Kind, value_of

TABLE_NAMES = ("t", "u", "v")

Numbers = tuple[int, ...]
"""A row: of each column the number that its value has (cells.value_of)."""

Rows = Mapping[int, Numbers]
"""By numbers of their own, which queries do not see: to them rows may be equal."""


@dataclass(frozen=True, slots=True)
class Column:
    """`summed`: it has doubles whose sums are others in another order."""

    kind: int = 0
    nullable: bool = True
    summed: bool = False

    @property
    def of(self) -> Kind:
        return SUMMED_KIND if self.summed else KINDS[self.kind % len(KINDS)]


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[Column, ...]
    rows: tuple[Numbers, ...]

    def values(self, row: Numbers) -> tuple[Any, ...]:
        padded = [*row, *[0] * len(self.columns)]
        return tuple(
            value_of(each.of, each.nullable, number) for each, number in zip(self.columns, padded, strict=False)
        )


class Action(StrEnum):
    INSERT = "insert"
    DELETE = "delete"
    UPDATE = "update"
    DELETE_ALIKE = "delete alike"
    """All rows that are equal to one in one column: a group, a partition or a key goes."""
    DELETE_ALL = "delete all"


@dataclass(frozen=True, slots=True)
class Step:
    """`row` is counted modulo those there are; `values`: of a row that comes."""

    action: Action = Action.INSERT
    row: int = 0
    values: Numbers = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """Of one table, counted by `table`: each row is changed once in it."""

    table: int = 0
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class RowChange:
    """`before` and `after`: None where the row was not there, or is not any more."""

    row: int
    before: Numbers | None
    after: Numbers | None


def first_rows(table: Table) -> dict[int, Numbers]:
    return dict(enumerate(table.rows))


def changes_of(commit: Commit, table: Table, rows: Rows, fresh: int) -> list[RowChange]:
    """What it changes of these rows; those that come are numbered from `fresh` on."""
    changed: dict[int, RowChange] = {}
    there = sorted(rows)
    for step in commit.steps:
        if step.action is Action.INSERT:
            changed[fresh] = RowChange(fresh, None, step.values)
            fresh += 1
        for number in _touched(step, table, rows, there):
            after = step.values if step.action is Action.UPDATE else None
            changed.setdefault(number, RowChange(number, rows[number], after))
    return list(changed.values())


def _touched(step: Step, table: Table, rows: Rows, there: Sequence[int]) -> list[int]:
    if not there or step.action is Action.INSERT:
        return []
    one = there[step.row % len(there)]
    match step.action:
        case Action.DELETE_ALL:
            return list(there)
        case Action.DELETE_ALIKE:
            place = step.row % len(table.columns)
            like = repr(table.values(rows[one])[place])
            return [each for each in there if repr(table.values(rows[each])[place]) == like]
        case _:
            return [one]


def rows_after(rows: Rows, changes: Sequence[RowChange]) -> dict[int, Numbers]:
    gone = {each.row for each in changes}
    left = {number: row for number, row in rows.items() if number not in gone}
    return left | {each.row: each.after for each in changes if each.after is not None}
