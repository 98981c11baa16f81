"""Queries as trees of relational operators, each of which is one over whatever columns its inputs have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count

from tests.random_views.cells import KINDS, LITERALS, Family
from tests.random_views.expressions import (
    MEASURES,
    OVER,
    SUMMED_MEASURES,
    SUMMED_OVER,
    TIED_MEASURES,
    TIED_OVER,
    Expression,
    Function,
    Named,
    call_of,
    order_with_ties,
    text_of,
    total_order,
)
from tests.random_views.histories import Table

COLUMNS_MAX = 6
"""Of an operator's output; the rest of a join's is left out."""

PARTS_MAX = 40
"""Operators of a query with those that it has twice; a larger one is none."""


class NoQueryError(Exception):
    """The tree stands for no query."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, counted by `number`; or what is said of the operators below."""

    number: int = 0


_TABLE, _COLUMN = Relation(), Expression()


@dataclass(frozen=True, slots=True)
class Projection(Relation):
    source: Relation = _TABLE
    columns: tuple[Expression, ...] = ()
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Selection(Relation):
    source: Relation = _TABLE
    condition: Expression = _COLUMN


SETS = ("UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")


@dataclass(frozen=True, slots=True)
class SetOperation(Relation):
    """One of SETS, of as many columns as `number` says, counted from one."""

    source: Relation = _TABLE
    other: Relation = _TABLE
    kind: int = 0


class Joins(StrEnum):
    INNER = "JOIN"
    LEFT = "LEFT JOIN"
    RIGHT = "RIGHT JOIN"
    FULL = "FULL JOIN"
    SEMI = "LEFT SEMI JOIN"
    ANTI = "LEFT ANTI JOIN"


@dataclass(frozen=True, slots=True)
class Joined(Relation):
    """`other`: None joins `source` with itself. `equal`: pairs of columns; none and no condition: a cross join."""

    source: Relation = _TABLE
    other: Relation | None = None
    kind: Joins = Joins.INNER
    equal: tuple[tuple[int, int], ...] = ()
    condition: Expression | None = None
    nulls_too: bool = False


class Membership(StrEnum):
    EXISTS = "EXISTS"
    NOT_EXISTS = "NOT EXISTS"
    IN = "IN"
    NOT_IN = "NOT IN"
    SHOWN = "shown"
    """Whether there is one is a column."""


@dataclass(frozen=True, slots=True)
class Among(Relation):
    """Rows for which the other relation has one that is equal in these columns and meets the condition."""

    source: Relation = _TABLE
    other: Relation = _TABLE
    kind: Membership = Membership.EXISTS
    equal: tuple[tuple[int, int], ...] = ()
    condition: Expression | None = None


@dataclass(frozen=True, slots=True)
class ValueOf(Relation):
    """A measure of the other relation, of its rows that are equal in these columns: a column more; or compared."""

    source: Relation = _TABLE
    other: Relation = _TABLE
    arguments: tuple[Expression, ...] = ()
    equal: tuple[tuple[int, int], ...] = ()
    compared: bool = False


SHAPES = ("", "ROLLUP", "CUBE", "GROUPING SETS")


@dataclass(frozen=True, slots=True)
class Measured:
    number: int = 0
    arguments: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Groups(Relation):
    source: Relation = _TABLE
    keys: tuple[Expression, ...] = ()
    measures: tuple[Measured, ...] = ()
    shape: int = 0
    having: Expression | None = None


@dataclass(frozen=True, slots=True)
class Exploded(Relation):
    source: Relation = _TABLE
    items: Expression = _COLUMN
    outer: bool = False


@dataclass(frozen=True, slots=True)
class Windows(Relation):
    """`partition`: columns; none: all rows are one."""

    source: Relation = _TABLE
    measures: tuple[Measured, ...] = ()
    partition: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Limited(Relation):
    """`number` rows after `offset` others."""

    source: Relation = _TABLE
    order: Expression = _COLUMN
    descending: bool = False
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    columns: tuple[Named, ...]

    def under(self, alias: str) -> list[Named]:
        return [replace(each, text=f"{alias}.{each.text}") for each in self.columns]


class Mode(StrEnum):
    """What is played: queries that leave open which of several rows is taken (TIES); SUMS of doubles, which are others
    in another order, and by which much is decided."""

    PLAIN = "plain"
    TIES = "ties"
    SUMS = "sums"


_MEASURES = {Mode.PLAIN: MEASURES, Mode.TIES: TIED_MEASURES, Mode.SUMS: SUMMED_MEASURES}
_OVER = {Mode.PLAIN: OVER, Mode.TIES: TIED_OVER, Mode.SUMS: SUMMED_OVER}


def functions_of(mode: Mode) -> tuple[Sequence[Function], Sequence[Function]]:
    """Of groups, and of windows."""
    return _MEASURES[mode], _OVER[mode]


def query_of(tree: Relation, tables: Sequence[Table], mode: Mode = Mode.PLAIN) -> str:
    """Raises NoQueryError."""
    if not tables or not all(table.columns for table in tables):
        raise NoQueryError
    return _Writer(tables, mode).query(tree).text


@dataclass
class _Writer:
    tables: Sequence[Table]
    mode: Mode
    numbers: count[int] = field(default_factory=count)

    def query(self, node: Relation) -> Query:
        match node:
            case Projection():
                source, alias = self.part(node.source)
                shown = [text_of(each, source.under(alias)) for each in node.columns] or source.under(alias)[:1]
                return self.select(shown, f"{source.text} {alias}", "DISTINCT" if node.distinct else "")
            case Selection():
                source, alias = self.part(node.source)
                condition = text_of(node.condition, source.under(alias), Family.TRUTH).text
                return self.select(source.under(alias), f"{source.text} {alias} WHERE {condition}")
            case SetOperation():
                return self.set_operation(node)
            case Joined():
                return self.joined(node)
            case Among():
                return self.among(node)
            case ValueOf():
                return self.value_of(node)
            case Groups():
                return self.groups(node)
            case Exploded():
                return self.exploded(node)
            case Windows():
                source, alias = self.part(node.source)
                columns = source.under(alias)
                keys = [columns[each % len(columns)].text for each in node.partition]
                part = f"PARTITION BY {', '.join(keys)}" if keys else ""
                _, over = functions_of(self.mode)
                found = [self.call(_one(over, each), each.arguments, columns, part) for each in node.measures]
                return self.select([*columns[: COLUMNS_MAX - len(found)], *found], f"{source.text} {alias}")
            case Limited():
                return self.limited(node)
            case _:
                table = self.tables[node.number % len(self.tables)]
                kinds = [(KINDS[each.kind % len(KINDS)], place) for place, each in enumerate(table.columns)]
                return Query(f"SELECT * FROM {table.name}", tuple(Named(f"c{n}", k.family) for k, n in kinds))

    @property
    def measures(self) -> Sequence[Function]:
        return functions_of(self.mode)[0]

    def call(
        self, function: Function, arguments: Sequence[Expression], columns: Sequence[Named], partition: str = ""
    ) -> Named:
        return call_of(function, arguments, columns, partition, ties=self.mode is Mode.TIES)

    def order(self, columns: Sequence[Named]) -> str:
        return order_with_ties(columns) if self.mode is Mode.TIES else total_order(columns)

    def part(self, node: Relation) -> tuple[Query, str]:
        """As it stands behind FROM, and its alias."""
        number = next(self.numbers)
        if number > PARTS_MAX:
            raise NoQueryError
        found = self.query(node)
        text = found.text.removeprefix("SELECT * FROM ")
        return replace(found, text=text if text.isidentifier() else f"({found.text})"), f"q{number}"

    def select(self, columns: Sequence[Named], rest: str, how: str = "") -> Query:
        shown = ", ".join(f"{each.text} AS c{number}" for number, each in enumerate(columns))
        named = tuple(Named(f"c{number}", each.family) for number, each in enumerate(columns))
        return Query(f"SELECT {how} {shown} FROM {rest}".replace("  ", " "), named)

    def set_operation(self, node: SetOperation) -> Query:
        sides = []
        (one, alias), (other, beside) = self.part(node.source), self.part(node.other)
        shown = one.under(alias)[: 1 + node.number % 3]
        there = other.under(beside)
        for columns, place in ((shown, f"{one.text} {alias}"), (_alike(shown, there), f"{other.text} {beside}")):
            sides.append(self.select(columns, place))
        return replace(sides[0], text=f"{sides[0].text} {SETS[node.kind % len(SETS)]} {sides[1].text}")

    def joined(self, node: Joined) -> Query:
        (one, alias), (other, beside) = self.part(node.source), self.part(node.other or node.source)
        left, right = one.under(alias), other.under(beside)
        conditions = _equal(left, right, node.equal, "<=>" if node.nulls_too else "=")
        if node.condition is not None:
            conditions.append(text_of(node.condition, [*left, *right], Family.TRUTH).text)
        on = f"ON {' AND '.join(conditions)}" if conditions else ""
        kind = node.kind if on else ("CROSS JOIN" if node.kind is Joins.INNER else f"{node.kind}")
        half = COLUMNS_MAX // 2
        shown = left if node.kind in (Joins.SEMI, Joins.ANTI) else [*left[:half], *right[:half]]
        if not on and node.kind is not Joins.INNER:
            on = "ON true"
        return self.select(shown, f"{one.text} {alias} {kind} {other.text} {beside} {on}".rstrip())

    def among(self, node: Among) -> Query:
        (one, alias), (other, beside) = self.part(node.source), self.part(node.other)
        left, right = one.under(alias), other.under(beside)
        conditions = []
        if node.condition is not None:
            conditions.append(text_of(node.condition, [*right, *left], Family.TRUTH).text)
        if node.kind in (Membership.IN, Membership.NOT_IN):
            wanted, *_ = pair = node.equal[0] if node.equal else (0, 0)
            value = left[wanted % len(left)]
            shown = _alike([value], [*right[pair[1] % len(right) :], *right])[0].text
            where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            test = f"{value.text} {node.kind} (SELECT {shown} FROM {other.text} {beside}{where})"
        else:
            conditions += _equal(left, right, node.equal, "=")
            where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            negated = "NOT " if node.kind is Membership.NOT_EXISTS else ""
            test = f"{negated}EXISTS (SELECT 1 FROM {other.text} {beside}{where})"
        if node.kind is Membership.SHOWN:
            shown_too = Named(f"CASE WHEN {test} THEN 1 ELSE 0 END", Family.WHOLE)
            return self.select([*left[: COLUMNS_MAX - 1], shown_too], f"{one.text} {alias}")
        return self.select(left, f"{one.text} {alias} WHERE {test}")

    def value_of(self, node: ValueOf) -> Query:
        (one, alias), (other, beside) = self.part(node.source), self.part(node.other)
        left, right = one.under(alias), other.under(beside)
        conditions = _equal(left, right, node.equal, "=")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        measure = self.call(self.measures[node.number % len(self.measures)], node.arguments, right)
        value = Named(f"(SELECT {measure.text} FROM {other.text} {beside}{where})", measure.family)
        if node.compared:
            than = text_of(Expression(), left, measure.family).text
            return self.select(left, f"{one.text} {alias} WHERE {than} <= {value.text}")
        return self.select([*left[: COLUMNS_MAX - 1], value], f"{one.text} {alias}")

    def groups(self, node: Groups) -> Query:
        source, alias = self.part(node.source)
        columns = source.under(alias)
        keys = list({(found := text_of(each, columns)).text: found for each in node.keys}.values())
        keys = [each for each in keys if each.text not in _CONSTANTS]
        measures = [self.call(_one(self.measures, each), each.arguments, columns) for each in node.measures]
        named = [each.text for each in keys]
        match SHAPES[node.shape % len(SHAPES)]:
            case _ if not keys:
                by = ""
            case "":
                by = f" GROUP BY {', '.join(named)}"
            case "GROUPING SETS":
                by = f" GROUP BY GROUPING SETS (({', '.join(named)}), ({named[0]}), ())"
            case shape:
                by = f" GROUP BY {shape}({', '.join(named)})"
        if keys and node.shape % len(SHAPES):
            measures.append(Named("CAST(grouping_id() AS BIGINT)", Family.WHOLE))
        having = f" HAVING {_having(node.having, measures, keys, columns)}" if node.having is not None else ""
        count_all = Named("count(*)", Family.WHOLE)
        return self.select([*keys, *measures] or [count_all], f"{source.text} {alias}{by}{having}")

    def exploded(self, node: Exploded) -> Query:
        source, alias = self.part(node.source)
        items = text_of(node.items, source.under(alias), Family.LIST).text
        view = f"e{alias}"
        outer = "OUTER " if node.outer else ""
        shown = [*source.under(alias)[: COLUMNS_MAX - 1], Named(f"{view}.x", Family.WHOLE)]
        return self.select(shown, f"{source.text} {alias} LATERAL VIEW {outer}explode({items}) {view} AS x")

    def limited(self, node: Limited) -> Query:
        source, alias = self.part(node.source)
        columns = source.under(alias)
        first = text_of(node.order, columns).text
        first = columns[0].text if first in _CONSTANTS else first
        order = f"{first}{' DESC' if node.descending else ''}, {self.order(columns)}"
        some = f"LIMIT {node.number}" + (f" OFFSET {node.offset}" if node.offset else "")
        found = self.select(columns, f"{source.text} {alias} ORDER BY {order} {some}")
        return replace(found, text=f"SELECT * FROM ({found.text})")


_CONSTANTS = frozenset(text for texts in LITERALS.values() for text in texts)
"""A number in GROUP BY or ORDER BY is a column's place."""


def _one(functions: Sequence[Function], measured: Measured) -> Function:
    return functions[measured.number % len(functions)]


def _having(
    condition: Expression | None, measures: Sequence[Named], keys: Sequence[Named], columns: Sequence[Named]
) -> str:
    """Over the measures, the keys, and the number of rows."""
    counted = [Named("count(*)", Family.WHOLE), Named(f"count({columns[0].text})", Family.WHOLE)]
    return text_of(condition or Expression(), [*measures, *counted, *keys], Family.TRUTH).text


def _alike(wanted: Sequence[Named], there: Sequence[Named]) -> list[Named]:
    """For each of the wanted columns one of the same family."""
    return [text_of(Expression(place), there, each.family) for place, each in enumerate(wanted)]


def _equal(left: Sequence[Named], right: Sequence[Named], pairs: Sequence[tuple[int, int]], sign: str) -> list[str]:
    found = []
    for one, other in pairs:
        here = left[one % len(left)]
        fit = [each for each in right if each.family is here.family]
        if fit:
            found.append(f"{here.text} {sign} {fit[other % len(fit)].text}")
    return found
