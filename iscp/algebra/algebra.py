"""Queries as trees of relational operators over typed expressions, which know neither Spark nor any other engine.

One reader makes such a tree from Catalyst's plan, one planner makes from it the plan of a query's changes, and two
executors carry plans out. Values are immutable. A relation is compared by identity: what stands in a plan twice is one
object, and is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from iscp.model.sql.sql_names import TimeDependence

# --- trees ------------------------------------------------------------------------------------------------------------

UNNUMBERED = -1
"""The number of a relation that stands in no query, but was added by a planner."""

Info = str | int | bool | None
"""A property of an expression that decides its result and is no argument, such as the name of a column."""


class TableRows(StrEnum):
    """The rows of a table that a leaf stands for.

    `NEW` and `OLD` are the rows after and before the changes; `CHANGES` are those that came and went, with a weight as
    the last column; `STATE` are rows that are stored beside the target. `GIVEN` are rows that an earlier step of a plan
    gave, and no rows of a table.
    """

    NEW = "new"
    OLD = "old"
    CHANGES = "changes"
    STATE = "state"
    GIVEN = "given"


CLOCK = "\0time"
"""The name, which no other table has, of a table of one row, the time: operators that depend on it have its value.

Its columns have the names of their types: `timestamp`, `timestamp_ntz`, `date`.
"""

CLOCK_TYPES = {
    "timestamp": TimeDependence.MOMENT,
    "timestamp_ntz": TimeDependence.MOMENT,
    "date": TimeDependence.DATE,
}
"""The types of the values of the time, and how a query depends on the time that has such a value."""


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column of a relation. Expressions refer to `id`; no two columns of a relation's inputs share one."""

    id: int
    name: str
    type: str

    @property
    def value(self) -> Expr:
        """Return the expression that is this column of an input."""
        return Expr("Column", (), self.type, (self.id, self.name))


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression: `op` is the name of Catalyst's class, `type` the result's, by Delta's name of it.

    `info` has the operation's properties (`result_types.OPERATIONS` names them), and `plan` is the query of a scalar
    subquery. An `Opaque` expression is one that only Spark evaluates; its `info` are Catalyst's name and the reason. By
    `number` Catalyst's own expression is found, where a plan of changes may need it.
    """

    op: str
    args: tuple[Expr, ...]
    type: str
    info: tuple[Info, ...] = ()
    plan: Rel | None = None
    number: int = field(default=UNNUMBERED, kw_only=True, compare=False)

    def walk(self) -> Iterator[Expr]:
        """Yield the expression and all within it, arguments first; not those of a subquery's plan."""
        for each in self.args:
            yield from each.walk()
        yield self

    @property
    def column(self) -> TypedColumn:
        """Return the column that an item of a list of columns makes: an `Alias`, or a `Column` that is passed on."""
        number, name = self.info[:2]
        assert isinstance(number, int)
        return TypedColumn(number, str(name), self.type)

    @property
    def plans(self) -> list[Rel]:
        """Return the plans of all subqueries in the expression."""
        return [each.plan for each in self.walk() if each.plan is not None]

    @property
    def references(self) -> frozenset[int]:
        """Return the ids of the columns that the value follows from."""
        return frozenset(each.column.id for each in self.walk() if each.op == "Column")


@dataclass(frozen=True, eq=False)
class Rel:
    """Rows. `number` is the place of the operator in the query's tree, by which Catalyst's own node is found."""

    inputs: tuple[Rel, ...]
    number: int = field(default=UNNUMBERED, kw_only=True)

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        """Return the columns; operators that pass rows on have those of their one input."""
        return self.inputs[0].columns

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Return the operator's own expressions."""
        return ()

    @property
    def subqueries(self) -> list[Rel]:
        """Return the plans of the values in the operator's own expressions."""
        return [plan for each in self.expressions for plan in each.plans]

    @cached_property
    def height(self) -> int:
        """Return how many relations lie above each other, the relation itself among them."""
        return 1 + max((each.height for each in (*self.subqueries, *self.inputs)), default=0)

    def walk(self) -> Iterator[Rel]:
        """Yield all relations below, those of subqueries too, and then the relation itself; shared ones each time."""
        for relation in (*self.subqueries, *self.inputs):
            yield from relation.walk()
        yield self

    def tables(self) -> Iterator[Table]:
        """Yield each leaf that is rows of a table, those of subqueries too, once."""
        seen: set[int] = set()
        waiting: list[Rel] = [self]
        while waiting:
            found = waiting.pop()
            if id(found) not in seen:
                seen.add(id(found))
                if isinstance(found, Table):
                    yield found
                waiting += (*found.inputs, *found.subqueries)


@dataclass(frozen=True, eq=False)
class Table(Rel):
    """Rows of a table, by the name that the query has for it."""

    fields: tuple[TypedColumn, ...]
    name: str
    at: TableRows = TableRows.NEW

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        return self.fields


@dataclass(frozen=True, eq=False)
class Values(Rel):
    """Rows of constants: `rows` has a literal for each of `fields`."""

    fields: tuple[TypedColumn, ...]
    rows: tuple[tuple[Expr, ...], ...]

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        return self.fields

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return tuple(each for row in self.rows for each in row)


@dataclass(frozen=True, eq=False)
class Project(Rel):
    """A row for each row of the input: `items` are columns and aliases."""

    items: tuple[Expr, ...]

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        return tuple(each.column for each in self.items)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return self.items


@dataclass(frozen=True, eq=False)
class Filter(Rel):
    """The rows for which the condition is true; with `untrue` those for which it is false or null."""

    condition: Expr
    untrue: bool = False

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.condition,)


@dataclass(frozen=True, eq=False)
class Union(Rel):
    """The rows of all inputs, as `fields`, by the places of the inputs' columns."""

    fields: tuple[TypedColumn, ...]

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        return self.fields


@dataclass(frozen=True, eq=False)
class Expand(Rel):
    """Several rows for each row of the input: each of `rows` has an expression for each of `fields`."""

    fields: tuple[TypedColumn, ...]
    rows: tuple[tuple[Expr, ...], ...]

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        return self.fields

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return tuple(each for row in self.rows for each in row)


class JoinKind(StrEnum):
    """The kinds of joins, by Catalyst's names."""

    INNER = "Inner"
    CROSS = "Cross"
    LEFT_OUTER = "LeftOuter"
    RIGHT_OUTER = "RightOuter"
    FULL_OUTER = "FullOuter"
    LEFT_SINGLE = "LeftSingle"
    LEFT_SEMI = "LeftSemi"
    LEFT_ANTI = "LeftAnti"
    EXISTENCE = "ExistenceJoin"


LEFT_ONLY = frozenset({JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI, JoinKind.EXISTENCE})
"""Joins whose rows have no columns of the right side."""


@dataclass(frozen=True, eq=False)
class Join(Rel):
    """A join of two inputs; without a condition all pairs meet. `exists` is the column that an existence join adds."""

    kind: JoinKind
    condition: Expr | None = None
    exists: TypedColumn | None = None

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        left, right = (each.columns for each in self.inputs)
        if self.exists is not None:
            return (*left, self.exists)
        return left if self.kind in LEFT_ONLY else (*left, *right)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return () if self.condition is None else (self.condition,)


@dataclass(frozen=True, eq=False)
class Group(Rel):
    """A row for each group of the input; without keys one row of all. `items` are over keys and aggregates."""

    keys: tuple[Expr, ...]
    items: tuple[Expr, ...]

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        return tuple(each.column for each in self.items)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return self.keys + self.items


@dataclass(frozen=True, eq=False)
class Windowed(Rel):
    """The input's rows with values over windows: `items` are aliases of them, over one partition and order."""

    items: tuple[Expr, ...]
    partition: tuple[Expr, ...]
    order: tuple[Expr, ...]

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        return (*self.inputs[0].columns, *(each.column for each in self.items))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return self.items + self.partition + self.order


@dataclass(frozen=True, eq=False)
class Sort(Rel):
    """The input's rows in an order, which a LIMIT above takes the first rows by."""

    order: tuple[Expr, ...]

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return self.order


@dataclass(frozen=True, eq=False)
class Limit(Rel):
    """At most `count` rows (None: all) after the first `offset`."""

    count: int | None
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Opaque(Rel):
    """An operator that only Spark carries out: Catalyst's name of it, and the reason.

    `keys` are columns of its one input by which it works key by key. If it is `linear`, it gives rows for each row of
    its input alone, each with that row's columns.
    """

    fields: tuple[TypedColumn, ...]
    name: str
    reason: str
    keys: tuple[Expr, ...] = ()
    linear: bool = False

    @cached_property
    def columns(self) -> tuple[TypedColumn, ...]:
        return self.fields


# --- functions of relations -------------------------------------------------------------------------------------------
# They give the expressions of operators, and relations with a part of their rows: those that have one of some keys. All
# is pure: each function returns another relation, and shares with the given one what stays as it is.

LEFT, RIGHT = 0, 1
_PASSES_LEFT = frozenset(
    {
        *(JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT_OUTER),
        *(JoinKind.LEFT_SINGLE, JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI, JoinKind.EXISTENCE),
    }
)
_PASSES_RIGHT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT_OUTER})
"""The joins that pass a condition on columns of one side down to that side."""

Keys = Mapping[int, tuple[Expr, ...]]
"""The expressions by which an operator works key by key, for the place of each input that has them."""


class UnplannedError(Exception):
    """A query of whose changes there is no plan: the message says why."""


# --- expressions ------------------------------------------------------------------------------------------------------


def named(value: Expr, column: TypedColumn) -> Expr:
    """Return the item that is this column of the value."""
    return Expr("Alias", (value,), column.type, (column.id, column.name))


def all_of(conditions: Sequence[Expr]) -> Expr:
    return conditions[0] if len(conditions) == 1 else Expr("And", tuple(conditions), "boolean")


def same_values(values: Sequence[Expr], columns: Sequence[TypedColumn]) -> list[Expr]:
    """Return the conditions that values are those of columns; nulls are equal."""
    return [Expr("EqualNullSafe", (a, b.value), "boolean") for a, b in zip(values, columns, strict=True)]


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """Return the conditions that all have to hold."""
    return condition.args if condition.op == "And" else (condition,)


def over_rows(above: Sequence[Rel], rows: Rel) -> Rel:
    """Return operators, the highest first and each of one input, over other rows."""
    for each in reversed(above):
        rows = replace(each, inputs=(rows,))
    return rows


def with_plans(expression: Expr, change: Callable[[Rel], Rel]) -> Expr:
    """Return the expression with the plans of its subqueries changed; the same object if all stay as they are."""
    if not expression.plans:
        return expression
    args = tuple(with_plans(each, change) for each in expression.args)
    plan = None if expression.plan is None else change(expression.plan)
    same = plan is expression.plan and all(a is b for a, b in zip(args, expression.args, strict=True))
    return expression if same else replace(expression, args=args, plan=plan)


def with_expressions(relation: Rel, change: Callable[[Expr], Expr]) -> Rel:
    """Return the operator with its own expressions changed."""
    match relation:
        case Project():
            return replace(relation, items=tuple(map(change, relation.items)))
        case Filter():
            return replace(relation, condition=change(relation.condition))
        case Group():
            return replace(relation, keys=tuple(map(change, relation.keys)), items=tuple(map(change, relation.items)))
        case Join(condition=Expr() as condition):
            return replace(relation, condition=change(condition))
        case Sort():
            return replace(relation, order=tuple(map(change, relation.order)))
        case Windowed():
            items, partition, order = (
                tuple(map(change, each)) for each in (relation.items, relation.partition, relation.order)
            )
            return replace(relation, items=items, partition=partition, order=order)
        case Expand():
            return replace(relation, rows=tuple(tuple(map(change, row)) for row in relation.rows))
        case _:
            raise UnplannedError(f"a subquery within {type(relation).__name__}")


def with_leaves(relation: Rel, leaves: Mapping[int, Table]) -> Rel:
    """Return the query with leaves in the place of its operators of these numbers; the same object if it has none."""
    if relation.number in leaves:
        return leaves[relation.number]
    inputs = tuple(with_leaves(each, leaves) for each in relation.inputs)
    values = [with_leaves(each, leaves) for each in relation.subqueries]
    if any(now is not before for now, before in zip(values, relation.subqueries, strict=True)):
        relation = with_expressions(relation, lambda each: with_plans(each, lambda plan: with_leaves(plan, leaves)))
    same = all(now is before for now, before in zip(inputs, relation.inputs, strict=True))
    return relation if same else replace(relation, inputs=inputs)


# --- keys -------------------------------------------------------------------------------------------------------------


def grouped_by(relation: Rel) -> tuple[Expr, ...]:
    """Return the expressions by which the operator has groups or partitions; it may have none."""
    if isinstance(relation, Group | Opaque):
        return relation.keys
    return relation.partition if isinstance(relation, Windowed) else ()


def own_keys(relation: Rel) -> tuple[Expr, ...]:
    """Return the columns by which the operator has groups or partitions; none if some are no columns."""
    found = grouped_by(relation)
    return found if all(each.op == "Column" for each in found) else ()


def passed_columns(items: Sequence[Expr]) -> dict[int, int]:
    """Return the ids of items that are columns of the input, or give one another name, each with the id there."""
    inner = [(each, each.args[0] if each.op == "Alias" else each) for each in items]
    return {each.column.id: found.column.id for each, found in inner if found.op == "Column"}


def equal_sides(join: Join) -> Keys | None:
    """Return what is equal in both sides of rows that meet, or None if nothing is."""
    parts = () if join.condition is None else conjuncts(join.condition)
    left, right = ({each.id for each in side.columns} for side in join.inputs)
    pairs = []
    for each in parts:
        if each.op in ("EqualTo", "EqualNullSafe"):
            one, other = each.args
            for first, second in ((one, other), (other, one)):
                if first.references and second.references and first.references <= left and second.references <= right:
                    pairs.append((first, second))
                    break
    return {LEFT: tuple(a for a, _ in pairs), RIGHT: tuple(b for _, b in pairs)} if pairs else None


def reduced_to_keys(relation: Rel, keys: Sequence[Expr], found: Rel, columns: Sequence[TypedColumn]) -> Rel:
    """Return the rows that have one of some keys; the condition goes down to where there are fewest rows."""

    def below(place: int, expressions: Sequence[Expr]) -> Rel:
        inputs = [*relation.inputs]
        inputs[place] = reduced_to_keys(inputs[place], expressions, found, columns)
        return replace(relation, inputs=tuple(inputs))

    plain = all(each.op == "Column" for each in keys)
    below_ids = {each.id for each in relation.inputs[0].columns} if len(relation.inputs) == 1 else frozenset()
    ids = frozenset().union(*(each.references for each in keys))
    match relation:
        case Filter():
            return below(0, keys)
        case Project() if plain:
            passed = passed_columns(relation.items)
            if all(number in passed for number in ids):
                within = {each.id: each for each in relation.inputs[0].columns}
                return below(0, [within[passed[each.column.id]].value for each in keys])
        case Union() if plain:
            return _reduced_union(relation, keys, found, columns)
        case Join():
            left, right = ({each.id for each in side.columns} for side in relation.inputs)
            if ids <= left and relation.kind in _PASSES_LEFT:
                return below(LEFT, keys)
            if ids <= right and relation.kind in _PASSES_RIGHT:
                return below(RIGHT, keys)
            relation = _reduced_sides(relation, keys, found, columns)
        case Opaque() if relation.linear and ids <= below_ids:
            return below(0, keys)
        case Windowed() | Group() if plain and ids <= {each.column.id for each in own_keys(relation)}:
            return below(0, keys)
    return Join((relation, found), JoinKind.LEFT_SEMI, all_of(same_values(keys, columns)))


def _reduced_sides(join: Join, keys: Sequence[Expr], found: Rel, columns: Sequence[TypedColumn]) -> Join:
    """Return a join whose sides have one of the values of those keys that are theirs alone."""
    inputs = [*join.inputs]
    for place, passing in ((LEFT, _PASSES_LEFT), (RIGHT, _PASSES_RIGHT)):
        ids = {each.id for each in inputs[place].columns}
        own = [pair for pair in zip(keys, columns, strict=True) if pair[0].references and pair[0].references <= ids]
        if own and join.kind in passing:
            inputs[place] = reduced_to_keys(inputs[place], [key for key, _ in own], found, [each for _, each in own])
    return replace(join, inputs=tuple(inputs))


def _reduced_union(union: Union, keys: Sequence[Expr], found: Rel, columns: Sequence[TypedColumn]) -> Rel:
    places = {each.id: place for place, each in enumerate(union.fields)}
    inputs = [
        reduced_to_keys(each, [each.columns[places[key.column.id]].value for key in keys], found, columns)
        for each in union.inputs
    ]
    return replace(union, inputs=tuple(inputs))
