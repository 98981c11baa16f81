"""Queries of the algebra drawn at random over two tables, and the tables' rows, for tests without Spark.

Each is drawn by a `Random`: Hypothesis has one whose draws it can make smaller, and a seed makes another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from hypothesis import strategies as st

from iscp.algebra.algebra import (
    Expand,
    Expr,
    Filter,
    Group,
    Join,
    JoinKind,
    Limit,
    Project,
    Rel,
    Sort,
    Table,
    TypedColumn,
    Union,
    Values,
    Windowed,
)

NAMES = ("orders", "items")
FIELDS = (("k", "long"), ("n", "long"), ("s", "string"), ("d", "double"))
"""The columns of each table: a key of few values, a number, a text, a double."""

CELLS = ((None, 1, 2, 3), (None, 0, 1, 5, -2), (None, "a", "b", ""), (None, "1.5", "0.0", "-0.0", "nan", "inf"))
"""The values of each column; doubles are text, so that NaN equals itself and zeros of two signs differ."""

ROWS = st.lists(st.tuples(*map(st.sampled_from, CELLS)), max_size=6)

RANDOMS = st.randoms(use_true_random=False)


def number(value: int) -> Expr:
    return Expr("Literal", (), "long", (str(value),))


def both(op: str, *args: Expr) -> Expr:
    return Expr(op, args, "boolean")


def total(value: Expr) -> Expr:
    return Expr("AggregateExpression", (Expr("Sum", (value,), "long", ("ANSI",)),), "long", (False,))


@dataclass
class Drawn:
    """A query that is being drawn; columns are numbered as they come."""

    random: Random
    ids: count[int] = field(default_factory=lambda: count(1))

    def column(self, name: str, kind: str) -> TypedColumn:
        return TypedColumn(next(self.ids), name, kind)

    def alias(self, value: Expr, name: str = "x") -> Expr:
        return Expr("Alias", (value,), value.type, (next(self.ids), name))

    def one_of(self, relation: Rel, kind: str = "long") -> Expr:
        """A column of the relation, or a constant where it has none of this type."""
        found = [each.value for each in relation.columns if each.type == kind]
        return self.random.choice(found) if found else Expr("Literal", (), kind, (None,))

    def flag(self) -> bool:
        return self.random.random() < 0.5

    def kind(self) -> str:
        """A type of keys."""
        return self.random.choice(("long", "long", "string", "double"))

    def value(self, relation: Rel) -> Expr:
        op = self.random.choice(("", "Add", "Coalesce", "If"))
        first, second = self.one_of(relation), self.one_of(relation)
        if op == "Add":
            return Expr("Add", (first, number(self.random.randint(-3, 3))), "long", ("ANSI",))
        if op == "Coalesce":
            return Expr("Coalesce", (first, second), "long")
        return Expr("If", (self.condition(relation), first, second), "long") if op == "If" else first

    def condition(self, relation: Rel) -> Expr:
        op = self.random.choice(("LessThan", "EqualTo", "EqualNullSafe", "IsNull", "StartsWith"))
        if op == "IsNull":
            return both(op, self.one_of(relation, "string"))
        if op == "StartsWith":
            return both(op, self.one_of(relation, "string"), Expr("Literal", (), "string", ("a",)))
        if self.random.random() < 0.3:
            limit = self.random.choice(("0.0", "-0.0", "1.5", "NaN"))
            return both(op, self.one_of(relation, "double"), Expr("Literal", (), "double", (limit,)))
        return both(op, self.one_of(relation), number(self.random.randint(-1, 3)))

    # --- relations ----------------------------------------------------------------------------------------------------

    def table(self) -> Rel:
        fields = tuple(self.column(name, kind) for name, kind in FIELDS)
        return Table((), fields, self.random.choice(NAMES))

    def relation(self, depth: int) -> Rel:
        if depth == 0:
            return self.table()
        return self.random.choice(self._operators)(depth - 1)

    @property
    def _operators(self) -> list[Callable[[int], Rel]]:
        return [
            *(self._project, self._filter, self._compared, self._union, self._expand),
            *(self._join, self._join, self._group, self._group, self._total, self._window, self._limit),
        ]

    def _project(self, depth: int) -> Rel:
        below = self.relation(depth)
        kept = self.random.sample(below.columns, min(2, len(below.columns)))
        return Project((below,), (*(each.value for each in kept), self.alias(self.value(below))))

    def _filter(self, depth: int) -> Rel:
        below = self.relation(depth)
        condition = self.condition(below)
        if self.flag():
            condition = both(self.random.choice(("And", "Or")), condition, self.condition(below))
        return Filter((below,), condition)

    def _compared(self, depth: int) -> Rel:
        """A filter by the value of a subquery."""
        below, other = self.relation(depth), self.relation(depth)
        summed = Group((other,), (), (self.alias(total(self.one_of(other))),))
        return Filter((below,), both("LessThan", self.one_of(below), Expr("ScalarSubquery", (), "long", (), summed)))

    def _union(self, depth: int) -> Rel:
        sides = [self.relation(depth), self.relation(depth)]
        rows = [Project((each,), (self.alias(self.one_of(each)), self.alias(self.value(each)))) for each in sides]
        return Union(tuple(rows), (self.column("u", "long"), self.column("v", "long")))

    def _expand(self, depth: int) -> Rel:
        below = self.relation(depth)
        rows = ((self.one_of(below), number(0)), (Expr("Literal", (), "long", (None,)), number(1)))
        return Expand((below,), (self.column("e", "long"), self.column("f", "long")), rows)

    def _join(self, depth: int) -> Rel:
        left, right = self.relation(depth), self.relation(depth)
        kind = self.random.choice([each for each in JoinKind if each is not JoinKind.LEFT_SINGLE])
        if kind is JoinKind.CROSS:
            return Join((left, right), kind)
        op, key = self.random.choice(("EqualTo", "EqualNullSafe", "LessThan")), self.kind()
        condition = both(op, self.one_of(left, key), self.one_of(right, key))
        if self.flag():
            condition = both("And", condition, both("IsNotNull", self.one_of(right)))
        exists = self.column("exists", "boolean") if kind is JoinKind.EXISTENCE else None
        return Join((left, right), kind, condition, exists)

    def _group(self, depth: int) -> Rel:
        below = self.relation(depth)
        key = self.one_of(below, self.kind())
        counted = Expr("AggregateExpression", (Expr("Count", (self.one_of(below),), "long"),), "long", (True,))
        most = Expr("AggregateExpression", (Expr("Max", (self.one_of(below),), "long"),), "long", (False,))
        items = [self.alias(each) for each in (counted, total(self.one_of(below)), most)]
        return Group((below,), (key,), (self.alias(key) if key.op == "Literal" else key, *items))

    def counted(self, depth: int) -> Rel:
        """Groups by one or two columns with counts, sums and averages, which add up."""
        below = self.relation(depth)
        keys = [each.value for each in below.columns if each.type in ("long", "string")][: self.random.randint(1, 2)]
        kinds = {"Count": "long", "Sum": "long", "Average": "double"}
        functions = [self.random.choice([*kinds]) for _ in range(self.random.randint(1, 3))]
        info = {"Sum": ("ANSI",), "Average": ("ANSI",)}
        values = [Expr(op, (self.value(below),), kinds[op], info.get(op, ())) for op in functions]
        items = [self.alias(Expr("AggregateExpression", (each,), each.type, (False,))) for each in values]
        return Group((below,), tuple(keys), (*keys, *items))

    def _total(self, depth: int) -> Rel:
        below = self.relation(depth)
        return Group((below,), (), (self.alias(total(self.one_of(below))),))

    def _ordered(self, relation: Rel) -> tuple[Expr, ...]:
        """An order by all columns and the signs of zeros, so that rows that tie are equal."""
        flags, columns = (self.flag(), self.flag()), [each.value for each in relation.columns]
        signs = [both("IsNegativeZero", each) for each in columns if each.type == "double"]
        return tuple(Expr("SortOrder", (each,), each.type, flags) for each in [*columns, *signs])

    def _window(self, depth: int) -> Rel:
        below = self.relation(depth)
        place = Expr("WindowExpression", (Expr("RowNumber", (), "integer"),), "integer", ("ROWS", None, 0))
        summed = Expr("WindowExpression", (total(self.one_of(below)),), "long", ("ROWS", -1, 0))
        key = self.one_of(below, self.kind())
        partition = (key,) if key.op == "Column" and self.flag() else ()
        return Windowed((below,), (self.alias(place), self.alias(summed)), partition, self._ordered(below))

    def _limit(self, depth: int) -> Rel:
        below = self.relation(depth)
        rows = Sort((below,), self._ordered(below))
        return Limit((Limit((rows,), None, self.random.randint(0, 1)),), self.random.randint(0, 4))


def query_of(random: Random, depth: int) -> Rel:
    """Draws a query of at most so many operators above each other; some have no table."""
    drawn = Drawn(random)
    found = drawn.relation(random.randint(0, depth))
    return found if found.columns else Values((), (drawn.column("x", "long"),), ((number(1),),))


def queries(depth: int = 3) -> st.SearchStrategy[Rel]:
    return st.builds(query_of, RANDOMS, st.just(depth))
