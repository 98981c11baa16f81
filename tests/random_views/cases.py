"""A case: tables, what is committed to them before each refresh, and the query of a view. A seed draws one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.random_views.cells import KINDS, SUMMED, Family
from tests.random_views.expressions import (
    FUNCTIONS,
    MEASURES,
    SUMMED_MEASURES,
    SUMMED_OVER,
    Call,
    Expression,
    Function,
    Literal,
)
from tests.random_views.histories import TABLE_NAMES, Action, Column, Commit, Step, Table
from tests.random_views.query_tree import (
    SETS,
    SHAPES,
    Among,
    Exploded,
    Groups,
    Joined,
    Joins,
    Limited,
    Measured,
    Membership,
    Mode,
    Projection,
    Relation,
    Selection,
    SetOperation,
    ValueOf,
    Windows,
    functions_of,
    query_of,
)

COUNTED = 6
"""The first of MEASURES, that are counts, sums and averages of exact numbers."""

SUMS = 9
"""The first of SUMMED_MEASURES, that are sums and averages of doubles."""

DEVIATIONS = next(place for place, each in enumerate(SUMMED_MEASURES) if each.template.startswith("covar"))
"""The first of SUMMED_MEASURES, that are sums, averages and deviations of doubles."""

RANK = next(place for place, each in enumerate(SUMMED_OVER) if each.template.startswith("rank"))

COUNTS = next(place for place, each in enumerate(SUMMED_MEASURES) if each.template == "count(*)")

AS_TEXT = FUNCTIONS.index(Function("CAST({0} AS STRING)", (Family.DOUBLE,), Family.TEXT))
"""Shows the last digit."""

COMPARED = [
    place
    for place, each in enumerate(each for each in FUNCTIONS if each.result is Family.TRUTH)
    if each.arguments == (Family.DOUBLE, Family.DOUBLE)
]
"""Of the functions that give truth those that compare doubles."""

_TOTALS = ("count", "sum", "avg", "min", "max", "bool_")
ADDING_UP = [place for place, each in enumerate(MEASURES) if each.template.startswith(_TOTALS)]
"""Those of MEASURES that may follow from totals of all rows, as far as types allow."""

ROWS_MAX, COLUMNS_MAX, DEPTH_MAX, NUMBER_MAX = 12, 5, 4, 11


@dataclass(frozen=True, slots=True)
class Case:
    """`refreshes`: of each what is committed before it. `chained`: the query reads its first table through a view."""

    tables: tuple[Table, ...]
    refreshes: tuple[tuple[Commit, ...], ...]
    query: Relation
    mode: Mode = Mode.PLAIN
    chained: bool = False

    @property
    def sql(self) -> str:
        """Raises NoQueryError."""
        return query_of(self.query, self.tables, self.mode)

    def shown(self) -> str:
        """For people: values as they are, without what nothing depends on."""
        lines = []
        for table in self.tables:
            columns = ", ".join(
                f"c{place} {each.of.sql}{'' if each.nullable else ' NOT NULL'}"
                for place, each in enumerate(table.columns)
            )
            lines += [f"{table.name} ({columns})", *[f"  {table.values(row)}" for row in table.rows]]
        for number, commits in enumerate(self.refreshes, start=1):
            lines.append(f"before refresh {number}")
            for commit in commits:
                table = self.tables[commit.table % len(self.tables)]
                steps = [
                    f"{each.action}"
                    + (f" row {each.row}" if each.action is not Action.INSERT else "")
                    + (f" {table.values(each.values)}" if each.action in (Action.INSERT, Action.UPDATE) else "")
                    for each in commit.steps
                ]
                lines.append(f"  {table.name}: {'; '.join(steps)}")
        return "\n".join([*lines, *["through a view"] * self.chained, self.sql])


def case_of(seed: int, mode: Mode = Mode.PLAIN) -> Case:
    return _Draw(Random(seed), mode).case()


class _Draw:
    def __init__(self, random: Random, mode: Mode) -> None:
        self.random, self.mode = random, mode
        self.measures, self.over = map(len, functions_of(mode))

    def case(self) -> Case:
        tables = tuple(self.table(name) for name in TABLE_NAMES[: self.random.choice((1, 2, 2, 2, 3))])
        refreshes = tuple(self.commits(tables) for _ in range(self.random.choice((1, 2))))
        return Case(tables, refreshes, self.query(), self.mode, self.mode is Mode.SUMS and self.random.random() < 0.3)

    def number(self) -> int:
        return self.random.randrange(NUMBER_MAX)

    def some(self, most: int) -> range:
        return range(self.random.randint(0, most))

    # --- tables ---------------------------------------------------------------------------------------------------

    def table(self, name: str) -> Table:
        """The first columns are of types that others have too, so that tables can be joined."""
        kinds = [0, 1] + [self.random.randrange(len(KINDS)) for _ in self.some(COLUMNS_MAX - 2)]
        summed = self.mode is Mode.SUMS
        kinds = [*kinds[: COLUMNS_MAX - 2], SUMMED, SUMMED] if summed else kinds
        self.random.shuffle(kinds)
        columns = tuple(Column(each, self.random.random() < 0.75, summed and each == SUMMED) for each in kinds)
        rows = self.random.choice((0, 1, 3, ROWS_MAX, ROWS_MAX))
        number = range(ROWS_MAX) if summed else self.some(rows)  # of two or three the sum is mostly the same
        return Table(name, columns, tuple(self.row(columns) for _ in number))

    def row(self, columns: Sequence[Column]) -> tuple[int, ...]:
        few = self.random.choice((2, 3, 3, 5, NUMBER_MAX))
        return tuple(self.random.randrange(NUMBER_MAX if each.summed else few) for each in columns)

    def commits(self, tables: Sequence[Table]) -> tuple[Commit, ...]:
        found = []
        for place, table in enumerate(tables):
            for _ in range(self.random.choice((0, 1, 1, 2, 3))):
                found.append(Commit(place, tuple(self.step(table) for _ in range(self.random.randint(1, 3)))))
        self.random.shuffle(found)
        return tuple(found)

    def step(self, table: Table) -> Step:
        often = (*[Action.INSERT] * 4, *[Action.DELETE] * 3, *[Action.UPDATE] * 4, *[Action.DELETE_ALIKE] * 2)
        action = self.random.choice((*often, Action.DELETE_ALL))
        return Step(action, self.number(), self.row(table.columns))

    # --- expressions ----------------------------------------------------------------------------------------------

    def expression(self, depth: int = 2) -> Expression:
        drawn = self.random.random()
        if depth == 0 or drawn < 0.5:
            return Expression(self.number())
        if drawn < 0.6:
            return Literal(self.number())
        arguments = tuple(self.expression(depth - 1) for _ in range(2))
        return Call(self.random.randrange(len(FUNCTIONS)), arguments)

    def condition(self) -> Expression:
        return Call(self.random.randrange(len(FUNCTIONS)), tuple(self.expression(1) for _ in range(2)))

    def maybe(self, share: float = 0.3) -> Expression | None:
        return self.condition() if self.random.random() < share else None

    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple((self.number(), self.number()) for _ in range(self.random.choice((0, 1, 1, 1, 1, 2))))

    def measured(self, among: int) -> Measured:
        return Measured(self.random.randrange(among), tuple(self.expression(1) for _ in range(2)))

    # --- relations ------------------------------------------------------------------------------------------------

    def query(self) -> Relation:
        """Often one of those that are kept by more than their rows."""
        drawn = self.random.random()
        if self.mode is Mode.SUMS and drawn < 0.7:
            return self.decided() if drawn < 0.4 else self.shown()
        if drawn < 0.1:
            return self.counted()
        if drawn < 0.2:
            return self.random.choice((self.limited, self.windows))(self.random.randint(2, 3))
        if drawn < 0.27:
            return self.totaled()
        return self.relation(self.random.randint(1, DEPTH_MAX))

    def decided(self) -> Relation:
        """By the sum of a group, or of all rows, which is shown besides, or is not."""
        keys = (Expression(self.number()),) * self.random.choice((0, 0, 1))
        added = Measured(self.random.randrange(SUMS), tuple(Expression(self.number()) for _ in range(2)))
        source: Relation = Groups(0, self.relation(self.random.choice((0, 0, 1))), keys, (added,))
        place = len(keys)
        if self.random.random() < 0.6:
            source = Projection(0, source, (*[Expression()] * place, Call(AS_TEXT, (Expression(place),))))
        there = Relation(self.number())
        match self.random.randrange(6):
            case 0:
                return Projection(0, source, (Expression(place),), True)
            case 1:
                found: Relation = Groups(0, source, (Expression(place),), (Measured(COUNTS),))
            case 2:
                found = Joined(0, there, source, self.random.choice(list(Joins)), ((self.number(), place),))
            case 3:
                found = Windows(0, source, (self.measured(self.over),), (place,))
            case 4:
                found = Among(0, there, source, self.random.choice(list(Membership)), ((self.number(), place),))
            case _:
                found = Selection(0, source, Call(self.random.choice(COMPARED), (Expression(place), Literal(2))))
        return self.random.choice((found, Groups(0, found, (Expression(self.number()),), (Measured(COUNTS),))))

    def shown(self) -> Relation:
        """Groups beside totals of all groups, and their ranks: all show sums, and mostly no key finds the rows."""
        source: Relation = Relation(self.number())
        if self.random.random() < 0.5:
            source = Joined(0, source, Relation(self.number()), Joins.INNER, ((self.number(), self.number()),))
        if self.random.random() < 0.4:
            source = Among(0, source, Relation(self.number()), Membership.NOT_EXISTS, ((self.number(), self.number()),))
        keys = (Expression(self.number()),) * self.random.choice((0, 1, 1, 1))
        measures = tuple(self.measured(DEVIATIONS) for _ in range(self.random.randint(1, 3)))
        found: Relation = Groups(0, source, keys, measures, 0, self.maybe())
        if self.random.random() < 0.6:
            totals = tuple(self.measured(DEVIATIONS) for _ in range(self.random.randint(1, 3)))
            found = Joined(0, found, Groups(0, found, (), totals))
        if self.random.random() < 0.6:
            found = Windows(0, found, (Measured(RANK, (Expression(self.number()),)),), tuple(self.some(1)))
        if self.random.random() < 0.3:
            columns = tuple(Expression(self.number()) for _ in range(self.random.randint(1, 4)))
            found = Projection(0, found, columns)
        return found

    def counted(self) -> Relation:
        """Groups by columns of a table, with counts, sums and averages of others."""
        keys = tuple(Expression(self.number()) for _ in range(self.random.randint(1, 2)))
        number = self.random.randrange
        measures = [Measured(number(COUNTED), (Expression(self.number()),)) for _ in range(self.random.randint(1, 3))]
        return Groups(0, Relation(self.number()), keys, tuple(measures))

    def totaled(self) -> Relation:
        """Totals of all rows of a relation; or its rows beside one, or that are compared with one."""
        source, one = self.relation(self.random.randint(0, 2)), self.random.choice(ADDING_UP)
        if self.random.random() < 0.4:
            compared = self.random.random() < 0.7
            return ValueOf(one, Relation(self.number()), source, (self.expression(1), self.condition()), (), compared)
        measures = [Measured(one, (self.expression(1), self.condition()))]
        measures += [replace(self.measured(1), number=self.random.choice(ADDING_UP)) for _ in self.some(3)]
        return Groups(0, source, (), tuple(measures))

    def relation(self, depth: int) -> Relation:
        if depth == 0:
            return Relation(self.number())
        kinds = (self.plain, self.plain, self.joined, self.joined, self.groups, self.groups, self.subquery)
        return self.random.choice((*kinds, self.subquery, self.sets, self.windows, self.windows, self.limited))(depth)

    def below(self, depth: int) -> Relation:
        return self.relation(self.random.choice((depth - 1, depth - 1, 0)))

    def plain(self, depth: int) -> Relation:
        source = self.below(depth)
        match self.random.randrange(4):
            case 0:
                return Selection(self.number(), source, self.condition())
            case 1:
                return Exploded(0, source, self.expression(), self.random.random() < 0.5)
            case _:
                columns = tuple(self.expression() for _ in range(self.random.randint(1, 4)))
                return Projection(0, source, columns, self.random.random() < 0.4)

    def joined(self, depth: int) -> Relation:
        other = None if self.random.random() < 0.15 else self.below(depth)
        kind, nulls_too = self.random.choice(list(Joins)), self.random.random() < 0.2
        return Joined(0, self.below(depth), other, kind, self.pairs(), self.maybe(), nulls_too)

    def groups(self, depth: int) -> Relation:
        keys = tuple(self.expression(1) for _ in self.some(2))
        measures = tuple(self.measured(self.measures) for _ in self.some(3))
        shape = self.random.choice((0, 0, 0, 0, self.random.randrange(len(SHAPES))))
        return Groups(0, self.below(depth), keys, measures, shape, self.maybe(0.6 if self.mode is Mode.SUMS else 0.2))

    def subquery(self, depth: int) -> Relation:
        source, other = self.below(depth), self.below(depth)
        if self.random.random() < 0.4:
            arguments = (self.expression(1), self.expression(1))
            compared = self.random.random() < 0.5
            return ValueOf(self.random.randrange(self.measures), source, other, arguments, self.pairs(), compared)
        return Among(0, source, other, self.random.choice(list(Membership)), self.pairs(), self.maybe())

    def sets(self, depth: int) -> Relation:
        return SetOperation(self.number(), self.below(depth), self.below(depth), self.random.randrange(len(SETS)))

    def windows(self, depth: int) -> Relation:
        measures = tuple(self.measured(self.over) for _ in range(self.random.randint(1, 2)))
        return Windows(0, self.below(depth), measures, tuple(self.number() for _ in self.some(2)))

    def limited(self, depth: int) -> Relation:
        descending, offset = self.random.random() < 0.5, self.random.choice((0, 0, 1))
        return Limited(self.random.randint(0, 4), self.below(depth), self.expression(1), descending, offset)
