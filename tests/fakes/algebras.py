"""Queries of the algebra drawn at random over two tables, and the tables' rows, for tests without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from hypothesis import strategies as st

from iscp.core.algebra.algebra import (
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
FIELDS = (("k", "long"), ("n", "long"), ("s", "string"))
"""The columns of each table: a key of few values, a number, a text."""

ROWS = st.lists(
    st.tuples(
        st.sampled_from((None, 1, 2, 3)), st.sampled_from((None, 0, 1, 5, -2)), st.sampled_from((None, "a", "b", ""))
    ),
    max_size=6,
)


def number(value: int) -> Expr:
    return Expr("Literal", (), "long", (str(value),))


def both(op: str, *args: Expr) -> Expr:
    return Expr(op, args, "boolean")


def total(value: Expr) -> Expr:
    return Expr("AggregateExpression", (Expr("Sum", (value,), "long", ("ANSI",)),), "long", (False,))


@dataclass
class Drawn:
    """A query that is being drawn; columns are numbered as they come."""

    draw: st.DrawFn
    ids: count[int] = field(default_factory=lambda: count(1))

    def column(self, name: str, kind: str) -> TypedColumn:
        return TypedColumn(next(self.ids), name, kind)

    def alias(self, value: Expr, name: str = "x") -> Expr:
        return Expr("Alias", (value,), value.type, (next(self.ids), name))

    def one_of(self, relation: Rel, kind: str = "long") -> Expr:
        """A column of the relation, or a constant where it has none of this type."""
        found = [each.value for each in relation.columns if each.type == kind]
        return self.draw(st.sampled_from(found)) if found else Expr("Literal", (), kind, (None,))

    def value(self, relation: Rel) -> Expr:
        op = self.draw(st.sampled_from(("", "Add", "Coalesce", "If")))
        first, second = self.one_of(relation), self.one_of(relation)
        if op == "Add":
            return Expr("Add", (first, number(self.draw(st.integers(-3, 3)))), "long", ("ANSI",))
        if op == "Coalesce":
            return Expr("Coalesce", (first, second), "long")
        return Expr("If", (self.condition(relation), first, second), "long") if op == "If" else first

    def condition(self, relation: Rel) -> Expr:
        op = self.draw(st.sampled_from(("LessThan", "EqualTo", "EqualNullSafe", "IsNull", "StartsWith")))
        if op == "IsNull":
            return both(op, self.one_of(relation, "string"))
        if op == "StartsWith":
            return both(op, self.one_of(relation, "string"), Expr("Literal", (), "string", ("a",)))
        return both(op, self.one_of(relation), number(self.draw(st.integers(-1, 3))))

    # --- relations ----------------------------------------------------------------------------------------------------

    def table(self) -> Rel:
        fields = tuple(self.column(name, kind) for name, kind in FIELDS)
        return Table((), fields, self.draw(st.sampled_from(NAMES)))

    def relation(self, depth: int) -> Rel:
        if depth == 0:
            return self.table()
        return self.draw(st.sampled_from(self._operators))(depth - 1)

    @property
    def _operators(self) -> list[Callable[[int], Rel]]:
        return [
            *(self._project, self._filter, self._compared, self._union, self._expand),
            *(self._join, self._join, self._group, self._group, self._total, self._window, self._limit),
        ]

    def _project(self, depth: int) -> Rel:
        below = self.relation(depth)
        return Project((below,), (*(each.value for each in below.columns[:2]), self.alias(self.value(below))))

    def _filter(self, depth: int) -> Rel:
        below = self.relation(depth)
        condition = self.condition(below)
        if self.draw(st.booleans()):
            condition = both(self.draw(st.sampled_from(("And", "Or"))), condition, self.condition(below))
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
        kind = self.draw(st.sampled_from([each for each in JoinKind if each is not JoinKind.LEFT_SINGLE]))
        if kind is JoinKind.CROSS:
            return Join((left, right), kind)
        condition = both(
            self.draw(st.sampled_from(("EqualTo", "EqualNullSafe", "LessThan"))), *map(self.one_of, (left, right))
        )
        if self.draw(st.booleans()):
            condition = both("And", condition, both("IsNotNull", self.one_of(right)))
        exists = self.column("exists", "boolean") if kind is JoinKind.EXISTENCE else None
        return Join((left, right), kind, condition, exists)

    def _group(self, depth: int) -> Rel:
        below = self.relation(depth)
        key = self.one_of(below)
        counted = Expr("AggregateExpression", (Expr("Count", (self.one_of(below),), "long"),), "long", (True,))
        most = Expr("AggregateExpression", (Expr("Max", (self.one_of(below),), "long"),), "long", (False,))
        items = [self.alias(each) for each in (counted, total(self.one_of(below)), most)]
        return Group((below,), (key,), (self.alias(key) if key.op == "Literal" else key, *items))

    def _total(self, depth: int) -> Rel:
        below = self.relation(depth)
        return Group((below,), (), (self.alias(total(self.one_of(below))),))

    def _ordered(self, relation: Rel) -> tuple[Expr, ...]:
        """An order by all columns, so that rows that tie are equal."""
        flags = self.draw(st.booleans()), self.draw(st.booleans())
        return tuple(Expr("SortOrder", (each.value,), each.type, flags) for each in relation.columns)

    def _window(self, depth: int) -> Rel:
        below = self.relation(depth)
        place = Expr("WindowExpression", (Expr("RowNumber", (), "integer"),), "integer", ("ROWS", None, 0))
        summed = Expr("WindowExpression", (total(self.one_of(below)),), "long", ("ROWS", -1, 0))
        key = self.one_of(below)
        partition = (key,) if key.op == "Column" and self.draw(st.booleans()) else ()
        return Windowed((below,), (self.alias(place), self.alias(summed)), partition, self._ordered(below))

    def _limit(self, depth: int) -> Rel:
        below = self.relation(depth)
        rows = Sort((below,), self._ordered(below))
        return Limit((Limit((rows,), None, self.draw(st.integers(0, 1))),), self.draw(st.integers(0, 4)))


@st.composite
def queries(draw: st.DrawFn, depth: int = 3) -> Rel:
    """A query; some have no table."""
    drawn = Drawn(draw)
    found = drawn.relation(draw(st.integers(0, depth)))
    return found if found.columns else Values((), (drawn.column("x", "long"),), ((number(1),),))
