"""Groups whose counts, sums and averages follow from what changed rows add and take away, as pure relations.

A row is stored for each group: its keys as `k0`, …, the number of its rows as `n`, and for each function how many rows
count as `c0`, …, and what they add up to as `s0`, … Sums are those of exact numbers, so nothing drifts. A group is
there while it has rows. The functions are in the order in which the group's items have them, as Spark stores them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from iscp.core.algebra.algebra import Expr, Filter, Group, Join, JoinKind, Project, Rel, Table, TypedColumn, Union
from iscp.core.algebra.key_reduction import all_of, named, same_values
from iscp.core.algebra.result_types import ANSI, DECIMAL_DIGITS_MAX, DIGITS, decimal_of

FUNCTIONS_MAX = 64
"""Functions of groups that are stored as counts and sums; groups with more are computed of all their rows."""

GROUP_ROWS = "n"
"""The number of a group's rows, where groups are stored."""

_KEY_TYPES = frozenset({*DIGITS, "string", "date", "boolean"})
_WEIGHT_DIGITS = 9
"""Digits of the number of equal rows that come or go."""

_DIGITS_MAX = DECIMAL_DIGITS_MAX - _WEIGHT_DIGITS - 2
"""Digits of a decimal that is multiplied by a row's weight exactly, here and in Spark, which stores the sums first."""


def key_columns(number: int) -> list[str]:
    """Return the names of the keys where groups are stored."""
    return [f"k{place}" for place in range(number)]


def number_names(functions: int) -> list[str]:
    """Return the names of the numbers where groups are stored: the rows, and a count and a sum for each function."""
    return [GROUP_ROWS, *(f"{each}{place}" for place in range(functions) for each in ("c", "s"))]


def summed_functions(group: Group) -> tuple[Expr, ...] | None:
    """Return the functions of a group in the order of its items, or None if one does not follow from sums."""
    if not all(each.op == "Column" and (each.type in _KEY_TYPES or decimal_of(each.type)) for each in group.keys):
        return None
    found = tuple(each for item in group.items for each in item.walk() if each.op == "AggregateExpression")
    return found if group.keys and len(found) <= FUNCTIONS_MAX and all(map(_adds_up, found)) else None


def _adds_up(aggregate: Expr) -> bool:
    function = aggregate.args[0]
    if aggregate.info[0] or function.op not in ("Count", "Sum", "Average", "ExactAverage"):
        return False
    kind = function.args[0].type
    if function.op in ("Count", "ExactAverage"):  # exact averages of other than whole numbers are Spark's
        return function.op == "Count" or kind in DIGITS
    precision, _ = decimal_of(kind) or (0, 0)
    return (kind in DIGITS or 0 < precision <= _DIGITS_MAX) and function.info == (ANSI,)


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """The stored sums of a group: `rows` has their columns, whose keys are those of the group's input.

    `wanted` are other columns for the keys of groups that are looked for.
    """

    group: Group
    functions: tuple[Expr, ...]
    rows: Table
    wanted: tuple[TypedColumn, ...]

    @classmethod
    def of(cls, group: Group, rows_at: Table, ids: Iterator[int]) -> GroupTotals | None:
        """Return the sums of a group, or None if it has none; `rows_at` is a leaf without columns.

        `ids` gives numbers of columns that nothing else has.
        """
        functions = summed_functions(group)
        if functions is None:
            return None
        names = key_columns(len(group.keys))
        keys = [TypedColumn(each.column.id, name, each.type) for each, name in zip(group.keys, names, strict=True)]
        kinds = ["long", *(kind for each in functions for kind in ("long", f"decimal(38,{_scale(each)})"))]
        named_kinds = zip(number_names(len(functions)), kinds, strict=True)
        numbers = [TypedColumn(next(ids), name, kind) for name, kind in named_kinds]
        wanted = tuple(replace(each, id=next(ids)) for each in keys)
        return cls(group, functions, replace(rows_at, fields=(*keys, *numbers)), wanted)

    @property
    def keys(self) -> tuple[TypedColumn, ...]:
        return self.rows.fields[: len(self.group.keys)]

    @property
    def numbers(self) -> tuple[TypedColumn, ...]:
        return self.rows.fields[len(self.group.keys) :]

    def moved(self, changes: Rel, weight: TypedColumn) -> Rel:
        """Return what changed rows add to each group that something is added to; `weight` says how many of each."""
        numbers = self.numbers
        sums = [weight.value]
        for each in self.functions:
            counts, value = _counts(each), _weighted(each, weight)
            sums += [_if(counts, weight.value, _whole(0)), _if(counts, value, _zero(value.type))]
        items = [_total(value, column) for value, column in zip(sums, numbers, strict=True)]
        keys = tuple(each.value for each in self.keys)
        zero = [Expr("EqualTo", (each.value, _zero(each.type)), "boolean") for each in numbers]
        return Filter((Group((changes,), keys, (*keys, *items)),), Expr("Not", (all_of(zero),), "boolean"))

    def now(self, moved: Rel) -> Rel:
        """Return the groups of `moved` as they are now, of which `rows` has the former ones, and perhaps others."""
        keys = tuple(each.value for each in self.keys)
        pairs = list(zip(keys, self.wanted, strict=True))
        wanted = Project((moved,), tuple(named(each, column) for each, column in pairs))
        former = Join((self.rows, wanted), JoinKind.LEFT_SEMI, all_of(same_values(keys, self.wanted)))
        return self._added(former, moved)

    def all_now(self, moved: Rel) -> Rel:
        """Return all groups as they are now, of which `rows` has the former ones; some may have no rows any more."""
        return self._added(self.rows, moved)

    def _added(self, former: Rel, moved: Rel) -> Rel:
        keys = tuple(each.value for each in self.keys)
        both = Union((former, moved), self.rows.fields)
        return Group((both,), keys, (*keys, *(_total(each.value, each) for each in self.numbers)))

    def result(self, now: Rel) -> Rel:
        """Return the group's rows, made of the groups as they are now."""
        there = Filter((now,), Expr("GreaterThan", (self.numbers[0].value, _whole(0)), "boolean"))
        pairs = iter(zip(self.functions, self.numbers[1::2], self.numbers[2::2], strict=True))

        def finished(each: Expr) -> Expr:
            if each.op != "AggregateExpression":
                return replace(each, args=tuple(map(finished, each.args)))
            function, count, total = next(pairs)
            return _finished(function, count, total)

        return Project((there,), tuple(map(finished, self.group.items)))


# --- expressions ------------------------------------------------------------------------------------------------------


def _scale(aggregate: Expr) -> int:
    return (decimal_of(aggregate.args[0].args[0].type) or (0, 0))[1]


def _counts(aggregate: Expr) -> Expr:
    """Return the condition by which a row counts."""
    function, *condition = aggregate.args
    return all_of([*(Expr("IsNotNull", (each,), "boolean") for each in function.args), *condition])


def _weighted(aggregate: Expr, weight: TypedColumn) -> Expr:
    """Return what a row that counts adds to the sum, times how many of it come."""
    function, scale = aggregate.args[0], _scale(aggregate)
    if function.op == "Count":
        return _zero(f"decimal({DECIMAL_DIGITS_MAX},{scale})")
    value = function.args[0]
    if value.type in DIGITS:
        value = Expr("Cast", (value,), f"decimal({DIGITS[value.type]},0)", (ANSI,))
    number = Expr("Cast", (weight.value,), f"decimal({_WEIGHT_DIGITS},0)", (ANSI,))
    precision, _ = decimal_of(value.type) or (0, 0)
    return Expr("Multiply", (value, number), f"decimal({precision + _WEIGHT_DIGITS + 1},{scale})", (ANSI,))


def _finished(aggregate: Expr, count: TypedColumn, total: TypedColumn) -> Expr:
    function, kind = aggregate.args[0], aggregate.type
    if function.op == "Count":
        return count.value
    if function.op in ("Average", "ExactAverage"):
        return Expr("AverageOf", (total.value, count.value), kind)
    there = Expr("GreaterThan", (count.value, _whole(0)), "boolean")
    found = total.value if total.type == kind else Expr("Cast", (total.value,), kind, (ANSI,))
    return _if(there, found, Expr("Literal", (), kind, (None,)))


def _if(condition: Expr, value: Expr, other: Expr) -> Expr:
    return Expr("If", (condition, value, other), value.type)


def _whole(value: int) -> Expr:
    return Expr("Literal", (), "long", (str(value),))


def _zero(kind: str) -> Expr:
    return Expr("Literal", (), kind, ("0",))


def _total(value: Expr, column: TypedColumn) -> Expr:
    kind = "long" if value.type == "long" else f"decimal({DECIMAL_DIGITS_MAX},{(decimal_of(value.type) or (0, 0))[1]})"
    function = Expr("Sum", (value,), kind, (ANSI,))
    return named(Expr("AggregateExpression", (function,), kind, (False,)), column)
