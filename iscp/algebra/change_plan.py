"""The one planner: how the rows of a query change, as pure functions from the algebra to the algebra; and groups that
are stored as counts and sums, of which changed rows alone say how they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from iscp.algebra.algebra import (
    LEFT,
    RIGHT,
    Expand,
    Expr,
    Filter,
    Group,
    Join,
    JoinKind,
    Keys,
    Opaque,
    Project,
    Rel,
    Sort,
    Table,
    TableRows,
    TypedColumn,
    Union,
    Windowed,
    all_of,
    equal_sides,
    grouped_by,
    named,
    over_rows,
    own_keys,
    passed_columns,
    reduced_to_keys,
    same_values,
    with_expressions,
    with_plans,
)
from iscp.algebra.result_types import ANSI, DECIMAL_DIGITS_MAX, DIGITS, FLOATS, decimal_of
from iscp.model.sql.sql_names import WEIGHT

# --- groups that are stored as counts and sums ------------------------------------------------------------------------
# Counts, sums and averages of these groups follow from what changed rows add and take away, as pure relations.
#
# A row is stored for each group: its keys as `k0`, …, the number of its rows as `n`, and for each function how many
# rows count as `c0`, …, and what they add up to as `s0`, … Sums are those of exact numbers, so nothing drifts. A group
# is there while it has rows. The functions are in the order in which the group's items have them, as Spark stores them.

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


# --- the planner ------------------------------------------------------------------------------------------------------
# Changes are signed bags: rows with a weight, which is above zero for rows that come. A linear operator makes the
# changes of its rows from those of its input; a join from those of each side and the rows of the other; an operator
# that works key by key is computed for the keys of changed rows, after and before; any other one as a whole, after and
# before. What several of these need is one relation, and is computed once.

_LINEAR = {
    JoinKind.INNER: (LEFT, RIGHT),
    JoinKind.CROSS: (LEFT, RIGHT),
    JoinKind.LEFT_OUTER: (LEFT,),
    JoinKind.LEFT_SINGLE: (LEFT,),
    JoinKind.LEFT_SEMI: (LEFT,),
    JoinKind.LEFT_ANTI: (LEFT,),
    JoinKind.EXISTENCE: (LEFT,),
    JoinKind.RIGHT_OUTER: (RIGHT,),
}
"""The sides in which a join is linear while the other one stays as it is."""


@dataclass(frozen=True, slots=True)
class TouchedRows:
    """Rows that are replaced by their keys: `keys` has those that were touched, and `rows` all rows of them now.

    `unique`: no key has more than one row.
    """

    keys: Rel
    rows: Rel
    unique: bool


@dataclass(frozen=True, slots=True)
class SummedRows:
    """Groups that follow from stored sums, which are the leaf `stored`: rows that are computed one after the other.

    `keys` are the names of its columns that are keys.

    `moved` is what changed rows add, `now` the sums afterwards: each is a relation, and the leaf of its rows. `touched`
    are the result's rows, made of the latter.
    """

    stored: Table
    keys: tuple[str, ...]
    moved: tuple[Rel, Table]
    now: tuple[Rel, Table]
    touched: TouchedRows


@dataclass(frozen=True, slots=True)
class ShownKeys:
    """Groups or partitions, the operators `above` them up to `root`, highest first, and the ids of their keys there."""

    root: Rel
    top: Rel
    above: tuple[Rel, ...]
    ids: tuple[int, ...]

    def over(self, rows: Rel) -> Rel:
        """Return the result over other rows of the groups or partitions."""
        return over_rows(self.above, rows)


def shown_keys(root: Rel, passes: Callable[[Rel], bool] = lambda each: not each.subqueries) -> ShownKeys | None:
    """Return groups or partitions at the top whose keys the result has, or None.

    Operators above them that it `passes` have no value that may change.
    """
    above: list[Rel] = []
    top = root
    while isinstance(top, Project | Filter | Sort) and passes(top):
        above.append(top)
        top = top.inputs[0]
    while isinstance(top, Windowed) and _is_window_by(top.inputs[0], top.partition):
        above.append(top)
        top = top.inputs[0]
    keys = own_keys(top)
    if not keys or not passes(top):
        return None
    ids = _ids_above([each.column.id for each in keys], [top, *reversed(above)])
    return None if ids is None else ShownKeys(root, top, tuple(above), tuple(ids))


class ChangePlan:
    """The changes of a query's rows while the tables `changed` change."""

    def __init__(self, root: Rel, changed: Iterable[str], id_max: int = 0) -> None:
        """`id_max` is the largest id of a column that something besides the query has."""
        self._root, self._changed = root, frozenset(changed)
        self.ids = count(max(largest_id(root), id_max) + 1)
        self.weight = TypedColumn(next(self.ids), WEIGHT, "long")
        self._tables: dict[int, frozenset[str]] = {}
        self._rows: dict[tuple[int, TableRows], Rel] = {}
        self._deltas: dict[int, Rel | None] = {}
        self._keys: dict[int, tuple[Rel, tuple[TypedColumn, ...]]] = {}
        self._shared: set[int] = set()

    # --- results ------------------------------------------------------------------------------------------------------

    def net_rows(self) -> Rel | None:
        """Return the rows that change, each once with its weight as the last column, or None if none can change.

        Rows are the same if all of their values are, to the bit: zeros of both signs are two.

        Raises UnplannedError.
        """
        changes = self.changes(self._root)
        if changes is None:
            return None
        total = TypedColumn(next(self.ids), WEIGHT, "long")
        keys = [each.value for each in self._root.columns]
        items = [each if each.type not in FLOATS else named(_aggregate("Max", each), each.column) for each in keys]
        keys += [Expr("IsNegativeZero", (each,), "boolean") for each in keys if each.type in FLOATS]
        items.append(named(_aggregate("Sum", self.weight.value, "ANSI"), total))
        grouped = Group((changes,), tuple(keys), tuple(items))
        changed = Expr("EqualTo", (total.value, _number(0)), "boolean")
        return Filter((grouped,), Expr("Not", (changed,), "boolean"))

    def keyed_rows(self, root: Rel | None = None) -> TouchedRows | None:
        """Return the rows of the query, or of an operator of it, by their keys, or None.

        There are some if groups or partitions are at the top, and the result has their keys. Raises UnplannedError.
        """
        shown = self._shown_keys(root or self._root)
        if shown is None:
            return None
        keys = own_keys(shown.top)
        found, columns = self._touched_keys(shown.top, {0: keys})
        now = self._touched_rows(shown.top, {0: keys}, TableRows.NEW)
        return TouchedRows(self._named_keys(found, columns, shown), shown.over(now), isinstance(shown.top, Group))

    def summed_rows(self) -> SummedRows | None:
        """Return how the groups at the top follow from stored sums, if they do and the result has their keys, or None.

        Raises UnplannedError.
        """
        shown = self._shown_keys(self._root)
        if shown is None or not isinstance(shown.top, Group):
            return None
        sums = GroupTotals.of(shown.top, Table((), (), "sums", TableRows.STATE), self.ids)
        if sums is None:
            return None
        moved = sums.moved(self._changed_input(shown.top), self.weight)
        leaf, now = (replace(sums.rows, name=name, at=TableRows.GIVEN) for name in ("moved", "now"))
        keys = self._named_keys(now, sums.keys, shown)
        return SummedRows(
            sums.rows,
            tuple(each.name for each in sums.keys),
            (moved, leaf),
            (sums.now(leaf), now),
            TouchedRows(keys, shown.over(sums.result(now)), unique=True),
        )

    def _shown_keys(self, root: Rel) -> ShownKeys | None:
        found = shown_keys(root, lambda each: not self._has_changed_value(each))
        return found if found is not None and self._is_touched(found.top) else None

    def _named_keys(self, rows: Rel, columns: Sequence[TypedColumn], shown: ShownKeys) -> Rel:
        """Return the keys of some rows under the names that the result has for them."""
        by_id = {each.id: each for each in shown.root.columns}
        items = tuple(named(each.value, by_id[number]) for each, number in zip(columns, shown.ids, strict=True))
        return Project((rows,), items)

    def is_shared(self, relation: Rel) -> bool:
        """Return whether the relation has keys that were touched, for which rows are read on each side of the
        changes.
        """
        return id(relation) in self._shared

    # --- tables -------------------------------------------------------------------------------------------------------

    def _tables_of(self, relation: Rel) -> frozenset[str]:
        known = self._tables.get(id(relation))
        if known is None:
            own = {relation.name} if isinstance(relation, Table) else set()
            below = [self._tables_of(each) for each in (*relation.inputs, *relation.subqueries)]
            known = self._tables[id(relation)] = frozenset(own).union(*below)
        return known

    def _is_touched(self, relation: Rel) -> bool:
        return bool(self._tables_of(relation) & self._changed)

    def _has_changed_value(self, relation: Rel) -> bool:
        """Return whether the value of a subquery in the operator's own expressions may change."""
        return any(map(self._is_touched, relation.subqueries))

    # --- all rows -----------------------------------------------------------------------------------------------------

    def rows(self, relation: Rel, at: TableRows) -> Rel:
        """Return all rows of an operator of the query, after or before the changes; what does not change is the
        same.
        """
        if not self._is_touched(relation):
            return relation
        key = (id(relation), at)
        if key not in self._rows:
            if isinstance(relation, Table):
                found: Rel = replace(relation, at=at)
            else:
                inputs = tuple(self.rows(each, at) for each in relation.inputs)
                found = replace(self._with_values(relation, at), inputs=inputs)
            self._rows[key] = found
        return self._rows[key]

    def _with_values(self, relation: Rel, at: TableRows) -> Rel:
        """Return the operator with the values that its subqueries have after or before the changes."""
        if not self._has_changed_value(relation):
            return relation
        return with_expressions(relation, lambda each: with_plans(each, lambda plan: self.rows(plan, at)))

    # --- changed rows -------------------------------------------------------------------------------------------------

    def changes(self, relation: Rel) -> Rel | None:
        """Return the changed rows of an operator of the query with their weights, or None if none can change.

        A row may come several times. Raises UnplannedError.
        """
        if id(relation) not in self._deltas:
            self._deltas[id(relation)] = self._changes_of(relation) if self._is_touched(relation) else None
        return self._deltas[id(relation)]

    def _changes_of(self, relation: Rel) -> Rel:
        weight = self.weight
        if self._has_changed_value(relation):
            return self._filtered(relation) if isinstance(relation, Filter) else self._whole(relation)
        match relation:
            case Opaque(linear=True):
                below = self._changed_input(relation)
                return replace(relation, inputs=(below,), fields=(*relation.fields, weight))
            case Table():
                return replace(relation, fields=(*relation.fields, weight), at=TableRows.CHANGES)
            case Sort():
                return self._changed_input(relation)
            case Project():
                return replace(relation, inputs=(self._changed_input(relation),), items=(*relation.items, weight.value))
            case Filter():
                return replace(relation, inputs=(self._changed_input(relation),))
            case Expand():
                rows = tuple((*row, weight.value) for row in relation.rows)
                below = self._changed_input(relation)
                return replace(relation, inputs=(below,), fields=(*relation.fields, weight), rows=rows)
            case Union():
                changes = tuple(found for each in relation.inputs if (found := self.changes(each)) is not None)
                return replace(relation, inputs=changes, fields=(*relation.fields, weight))
            case Join():
                return self._joined(relation)
            case _:
                keys = grouped_by(relation)
                return self._by_key(relation, {0: keys}) if keys else self._whole(relation)

    def _filtered(self, relation: Filter) -> Rel:
        """Return changed rows by the condition as it is now, and old rows that came or went by its values alone."""
        now, before = (self._with_values(relation, at) for at in (TableRows.NEW, TableRows.OLD))
        assert isinstance(now, Filter)
        assert isinstance(before, Filter)
        rows = self.rows(relation.inputs[0], TableRows.OLD)
        changes = self.changes(relation.inputs[0])
        sides = ((now, before, 1), (before, now, -1))
        parts = [
            self._weighted(replace(unmet, inputs=(replace(met, inputs=(rows,)),), untrue=True), weight)
            for met, unmet, weight in sides
        ]
        if changes is not None:
            parts.append(replace(now, inputs=(changes,)))
        return Union(tuple(parts), (*relation.columns, self.weight))

    def _changed_input(self, relation: Rel) -> Rel:
        found = self.changes(relation.inputs[0])
        assert found is not None, "an operator of one input changes as that does"
        return found

    def _joined(self, join: Join) -> Rel:
        left, right = join.inputs
        changes = [self.changes(each) for each in join.inputs]
        linear = _LINEAR.get(join.kind, ())
        changed = {place for place, each in enumerate(changes) if each is not None}
        if not changed <= {*linear} or len(changed) > len(linear):
            keys = equal_sides(join)
            if keys:
                return self._by_key(join, keys)
            return self._by_condition(join, linear[0]) if join.condition and linear else self._whole(join)
        columns = (*join.columns, self.weight)
        pairs = (
            (changes[LEFT], self.rows(right, TableRows.OLD)),
            (self.rows(left, TableRows.NEW), changes[RIGHT]),
        )
        parts = [replace(join, inputs=(one, other)) for one, other in pairs if one is not None and other is not None]
        ordered = tuple(Project((each,), tuple(column.value for column in columns)) for each in parts)
        return ordered[0] if len(ordered) == 1 else Union(ordered, columns)

    def _by_condition(self, join: Join, place: int) -> Rel:
        """Return the changes of a join without an equality, as NOT IN, that is linear in the side at `place`.

        They are the changed rows of that side, and those old rows of it that meet a changed row of the other side, with
        its rows now and before. Rows that meet none stay as they are.
        """
        own, other = join.inputs[place], join.inputs[1 - place]

        def over(rows: Rel, others: Rel) -> Rel:
            return replace(join, inputs=(rows, others) if place == LEFT else (others, rows))

        columns, parts = (*join.columns, self.weight), list[Rel]()
        if (changes := self.changes(own)) is not None:
            joined = over(changes, self.rows(other, TableRows.NEW))
            parts.append(Project((joined,), tuple(each.value for each in columns)))
        if (met := self.changes(other)) is not None:
            rows = Join((self.rows(own, TableRows.OLD), met), JoinKind.LEFT_SEMI, join.condition)
            now, before = (over(rows, self.rows(other, at)) for at in (TableRows.NEW, TableRows.OLD))
            parts += self._difference(now, before).inputs
        return Union(tuple(parts), columns)

    def _whole(self, relation: Rel) -> Rel:
        """Return all rows afterwards, and all before with the opposite weight."""
        return self._difference(*(self.rows(relation, at) for at in (TableRows.NEW, TableRows.OLD)))

    def _by_key(self, relation: Rel, keys: Keys) -> Rel:
        return self._difference(*(self._touched_rows(relation, keys, at) for at in (TableRows.NEW, TableRows.OLD)))

    def _difference(self, now: Rel, before: Rel) -> Rel:
        return Union((self._weighted(now, 1), self._weighted(before, -1)), (*now.columns, self.weight))

    def _weighted(self, relation: Rel, weight: int) -> Rel:
        passed = tuple(each.value for each in relation.columns)
        return Project((relation,), (*passed, named(_number(weight), self.weight)))

    # --- key by key ---------------------------------------------------------------------------------------------------

    def _touched_keys(self, relation: Rel, keys: Keys) -> tuple[Rel, tuple[TypedColumn, ...]]:
        """Return the different keys of all changed rows of the operator's inputs, and their columns."""
        if id(relation) not in self._keys:
            first = next(iter(keys.values()))
            columns = tuple(TypedColumn(next(self.ids), f"key{place}", each.type) for place, each in enumerate(first))
            parts = []
            for place, expressions in keys.items():
                changes = self.changes(relation.inputs[place])
                if changes is not None:
                    items = tuple(named(each, column) for each, column in zip(expressions, columns, strict=True))
                    parts.append(Project((changes,), items))
            every = parts[0] if len(parts) == 1 else Union(tuple(parts), columns)
            values = tuple(each.value for each in columns)
            found = Group((every,), values, values)
            self._keys[id(relation)] = found, columns
            self._shared.add(id(found))
        return self._keys[id(relation)]

    def _touched_rows(self, relation: Rel, keys: Keys, at: TableRows) -> Rel:
        """Return the operator's rows of the keys that changed rows have."""
        found, columns = self._touched_keys(relation, keys)
        inputs = tuple(
            reduced_to_keys(self.rows(each, at), keys[place], found, columns) if place in keys else self.rows(each, at)
            for place, each in enumerate(relation.inputs)
        )
        return replace(relation, inputs=inputs)


def _aggregate(op: str, value: Expr, *info: str) -> Expr:
    return Expr("AggregateExpression", (Expr(op, (value,), value.type, info),), value.type, (False,))


def _number(value: int) -> Expr:
    return Expr("Literal", (), "long", (str(value),))


def _is_window_by(relation: Rel, partition: Sequence[Expr]) -> bool:
    return isinstance(relation, Windowed) and relation.partition == partition


def _ids_above(ids: list[int], operators: Sequence[Rel]) -> list[int] | None:
    """Return the ids that columns have above operators, the lowest first, or None if not all are passed on."""
    for each in operators:
        if isinstance(each, Opaque) and not {*ids} <= {column.id for column in each.fields}:
            return None
        if isinstance(each, Project | Group):
            passed = {inner: outer for outer, inner in passed_columns(each.items).items()}
            if not all(number in passed for number in ids):
                return None
            ids = [passed[number] for number in ids]
    return ids if len({*ids}) == len(ids) else None


def largest_id(root: Rel) -> int:
    """Return the largest id of a column anywhere in a query."""
    return max((column.id for each in root.walk() for column in each.columns), default=0)
