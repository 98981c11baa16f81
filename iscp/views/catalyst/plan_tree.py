"""A query as Spark has analyzed and optimized it: as a tree of operators with the plans that carry each out, and the
columns of its tables that the result follows from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from iscp.model.query_plan import (
    JoinSide,
    Operator,
    OperatorKind,
    passes_stored_input,
    reads_all_again,
    worth_storing,
)
from iscp.model.sql.sql_names import finest
from iscp.model.values.errors import InvalidRequest
from iscp.views.catalyst.aggregates import AggregateFunction, changing_functions
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan
from iscp.views.catalyst.time_marks import ClockValue

# --- the tree ---------------------------------------------------------------------------------------------------------
# Spark's own optimizer has replaced subqueries, set operations, DISTINCT and grouping sets by joins, groups and unions
# by then, so that a dozen operators are left, with Spark's semantics of nulls and types.

_KINDS = {
    "Project": OperatorKind.PROJECT,
    "Filter": OperatorKind.FILTER,
    "Union": OperatorKind.UNION,
    "Expand": OperatorKind.EXPAND,
    "Generate": OperatorKind.GENERATE,
    "Sort": OperatorKind.SORT,
    "Join": OperatorKind.JOIN,
    "Aggregate": OperatorKind.AGGREGATE,
    "Window": OperatorKind.WINDOW,
    "WindowGroupLimit": OperatorKind.WINDOW,
    "GlobalLimit": OperatorKind.LIMIT,
    "Offset": OperatorKind.LIMIT,
    "Range": OperatorKind.ROWS,
    "LocalRelation": OperatorKind.ROWS,
    "OneRowRelation": OperatorKind.ROWS,
}

_LINEAR_IN = {
    "Inner": JoinSide.BOTH,
    "Cross": JoinSide.BOTH,
    "LeftOuter": JoinSide.LEFT,
    "LeftSemi": JoinSide.LEFT,
    "LeftAnti": JoinSide.LEFT,
    "LeftSingle": JoinSide.LEFT,
    "ExistenceJoin": JoinSide.LEFT,
    "RightOuter": JoinSide.RIGHT,
}

_WITH_SUBQUERIES = (
    OperatorKind.PROJECT,
    OperatorKind.FILTER,
    OperatorKind.AGGREGATE,
    OperatorKind.JOIN,
    OperatorKind.SORT,
)
_VALUE = "scalar-subquery []"
SESSION_MARK = "spark.sessionWindow"
"""The metadata of a column of session windows: Spark merges rows grouped by it where they overlap."""

TITLE_CHARACTERS_MAX = 300
"""Characters that are shown of an operator as Spark describes it."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanNode:
    """An operator, and the plan that it is the top of. `keys` are, for each input, the expressions by which it is
    `keyed`.

    `subqueries` are the plans of the values in its expressions; `clock` has those that stand for the time. `functions`
    are those of an aggregate that `adds_up`.
    """

    operator: Operator
    plan: Plan
    inputs: tuple[PlanNode, ...]
    keys: tuple[tuple[Expression, ...], ...] = ()
    subqueries: tuple[PlanNode, ...] = ()
    clock: tuple[tuple[Plan, ClockValue], ...] = ()
    functions: tuple[AggregateFunction, ...] = ()

    def walk(self) -> Iterator[PlanNode]:
        """Yield each node, those that it is made of first."""
        for each in (*self.subqueries, *self.inputs):
            yield from each.walk()
        yield self


def read_tree(
    catalyst: Catalyst, plan: Plan, tables: Mapping[int, str], clock: Mapping[int, ClockValue] = MappingProxyType({})
) -> PlanNode:
    """Return the tree of a plan. `tables` and `clock` say what stands for each by the id of its empty RDD.

    Raises InvalidRequest.
    """
    return _TreeReader(catalyst, tables, clock).read_node(plan)


def stored_input(root: PlanNode) -> PlanNode | None:
    """Return the node whose rows are stored, so that the operators above it can be recomputed from them, or None."""
    found, node = None, root
    while len(node.inputs) == 1 and passes_stored_input(node.operator):
        ordering = found is not None and node.operator.kind is OperatorKind.SORT  # of rows that a limit takes from
        if ordering or reads_all_again(node.operator):
            found = node.inputs[0]
        (node,) = node.inputs
    if found is None or found.plan.output().isEmpty():  # rows that are only counted are no rows of a table
        return None
    return found if worth_storing(found.operator) else None


def has_limit_above(root: PlanNode, stored: PlanNode | None) -> bool:
    """Return whether a LIMIT above the stored input bounds the rows of the result."""
    node = root
    while node is not stored and node.operator.kind is not OperatorKind.LIMIT and node.inputs:
        node = node.inputs[0]
    return node is not stored and node.operator.kind is OperatorKind.LIMIT


def has_values_above(root: PlanNode, stored: PlanNode | None) -> bool:
    """Return whether what is made of the stored input depends on something else besides."""
    node, found = root, False
    while node is not stored and node.inputs:
        found, node = found or bool(node.subqueries), node.inputs[0]
    return found


@dataclass(frozen=True, slots=True)
class _TreeReader:
    catalyst: Catalyst
    tables: Mapping[int, str]
    clock: Mapping[int, ClockValue]

    def read_node(self, plan: Plan) -> PlanNode:
        plan = self._with_time_above(plan)
        name = str(plan.nodeName()).split()[0]
        inputs = tuple(self.read_node(each) for each in self.catalyst.inputs(plan))
        values = self.catalyst.items(plan.subqueries())
        clock = tuple((each, value) for each in values if (value := self._clock_value(each)))
        subqueries = tuple(self.read_node(each) for each in values if not self._clock_value(each))
        if name == "LogicalRDD":
            return self._table(plan)
        kind = OperatorKind.WINDOW if self._has_sessions(plan) else _KINDS.get(name)
        if kind is None:
            raise InvalidRequest(
                f"has the operator {name}, which views cannot keep", field="sql", remedy="Write the query without it"
            )
        if (subqueries or clock) and kind not in _WITH_SUBQUERIES:
            raise InvalidRequest(
                f"has a subquery within {name}, which views cannot keep",
                field="sql",
                remedy="Join with the subquery instead",
            )
        keys, linear_in = self._keys(kind, plan), self._linear_in(kind, plan)
        adds_up = kind is OperatorKind.AGGREGATE and not (keys or subqueries or clock)
        functions = (changing_functions(self.catalyst, plan) if adds_up else None) or ()
        operator = Operator(
            kind,
            _title(plan, [value.function for _, value in clock]),
            tuple(each.operator for each in inputs),
            keyed=bool(keys),
            linear_in=linear_in,
            subqueries=tuple(each.operator for each in subqueries),
            by_time=finest(value.dependence for _, value in clock),
            adds_up=bool(functions),
            conditional=kind is OperatorKind.JOIN and bool(plan.condition().isDefined()),
            distincts=sum(each.distinct for each in functions),
        )
        return PlanNode(operator, plan, inputs, keys, subqueries, clock, functions)

    def _clock_value(self, plan: Plan) -> ClockValue | None:
        return self.clock.get(int(plan.rdd().id())) if str(plan.nodeName()).startswith("LogicalRDD") else None

    def _with_time_above(self, plan: Plan) -> Plan:
        """Return an inner join whose time-dependent conditions are a filter above it, which follows the time without
        all rows.
        """
        if not (self.clock and self.catalyst.is_a(plan, "Join")) or plan.condition().isEmpty():
            return plan
        if str(plan.joinType().toString()) not in ("Inner", "Cross"):
            return plan
        parts = self.catalyst.split(plan.condition().get())
        by_time = [each for each in parts if self._reads_clock(each)]
        if not by_time:
            return plan
        others = [each for each in parts if not self._reads_clock(each)]
        join = self.catalyst.with_condition(plan, self.catalyst.both(others) if others else None)
        return self.catalyst.filter(self.catalyst.both(by_time), join)

    def _reads_clock(self, expression: Expression) -> bool:
        if self.catalyst.is_a(expression, "ScalarSubquery") and self._clock_value(expression.plan()):
            return True
        return any(map(self._reads_clock, self.catalyst.children(expression)))

    def _table(self, plan: Plan) -> PlanNode:
        name = self.tables.get(int(plan.rdd().id()))
        if name is None:
            raise InvalidRequest("has rows of no table that is named", field="sql", remedy="Read tables that are named")
        return PlanNode(Operator(OperatorKind.TABLE, name, table=name), plan, ())

    def _keys(self, kind: OperatorKind, plan: Plan) -> tuple[tuple[Expression, ...], ...]:
        match kind:
            case OperatorKind.AGGREGATE:
                keys = self.catalyst.items(plan.groupingExpressions())
            case OperatorKind.WINDOW if self.catalyst.is_a(plan, "Aggregate"):
                keys = [each for each in self.catalyst.items(plan.groupingExpressions()) if not self._is_session(each)]
            case OperatorKind.WINDOW:
                keys = self.catalyst.items(plan.partitionSpec())
            case OperatorKind.JOIN:
                return self._equalities(plan)
            case _:
                return ()
        return (tuple(keys),) if keys else ()

    def _has_sessions(self, plan: Plan) -> bool:
        """Return whether it groups by a session window: a row may join two groups, so that it works by its other
        keys.
        """
        groups = self.catalyst.items(plan.groupingExpressions()) if self.catalyst.is_a(plan, "Aggregate") else []
        return any(map(self._is_session, groups))

    def _is_session(self, key: Expression) -> bool:
        return self.catalyst.is_a(key, "AttributeReference") and bool(key.metadata().contains(SESSION_MARK))

    def _equalities(self, join: Plan) -> tuple[tuple[Expression, ...], ...]:
        """Return the equal expressions of the left and of the right side, in order; empty if there are none."""
        left, right = join.left().outputSet(), join.right().outputSet()
        pairs: list[tuple[Expression, Expression]] = []
        condition = join.condition()
        waiting = [condition.get()] if condition.isDefined() else []
        while waiting:
            part = waiting.pop()
            if self.catalyst.is_a(part, "And"):
                waiting += [part.left(), part.right()]
            elif self.catalyst.is_a(part, "EqualTo") or self.catalyst.is_a(part, "EqualNullSafe"):
                one, other = part.left(), part.right()
                if one.references().isEmpty() or other.references().isEmpty():
                    continue
                if one.references().subsetOf(left) and other.references().subsetOf(right):
                    pairs.append((one, other))
                elif one.references().subsetOf(right) and other.references().subsetOf(left):
                    pairs.append((other, one))
        return tuple(zip(*pairs, strict=True))

    def _linear_in(self, kind: OperatorKind, plan: Plan) -> JoinSide:
        if kind is not OperatorKind.JOIN:
            return JoinSide.NEITHER
        return _LINEAR_IN.get(str(plan.joinType().toString()).split("(")[0], JoinSide.NEITHER)


def _title(plan: Plan, functions: Sequence[str]) -> str:
    """Return the operator as Spark describes it, without the ids of columns.

    `functions` are those of the time, in the order of their places.
    """
    text = str(plan.simpleString(25))
    first, *others = text.split("#")
    shown = first + "".join(part.lstrip("0123456789").removeprefix("L") for part in others)
    if shown.count(_VALUE) == len(functions):
        for each in functions:
            shown = shown.replace(_VALUE, each, 1)
    return shown if len(shown) <= TITLE_CHARACTERS_MAX else f"{shown[:TITLE_CHARACTERS_MAX]}…"


# --- columns that the result follows from -----------------------------------------------------------------------------
# No other columns of changed rows are read.

_BY_NAME = (
    OperatorKind.TABLE,
    OperatorKind.ROWS,
    OperatorKind.PROJECT,
    OperatorKind.FILTER,
    OperatorKind.SORT,
    OperatorKind.JOIN,
    OperatorKind.AGGREGATE,
    OperatorKind.WINDOW,
    OperatorKind.LIMIT,
)
"""Operators that name what they need of their inputs, or pass it on under the same ids. Others take it by its place."""


def needed_columns(catalyst: Catalyst, root: PlanNode) -> Mapping[str, frozenset[str]]:
    """Return the columns by the tables' names in the query; a table of which only rows count has none."""
    needed = {catalyst.id_of(each) for each in _needed(catalyst, root)}
    found: dict[str, set[str]] = {}
    for node in root.walk():
        if node.operator.kind is OperatorKind.TABLE:
            names = (str(each.name()) for each in catalyst.output(node.plan) if catalyst.id_of(each) in needed)
            found.setdefault(node.operator.table, set()).update(names)
    return {table: frozenset(names) for table, names in found.items()}


def _needed(catalyst: Catalyst, root: PlanNode) -> Iterator[Expression]:
    yield from catalyst.output(root.plan)
    for node in root.walk():
        yield from _references(catalyst, [node.plan, *(key for keys in node.keys for key in keys)])
        whole = [*node.subqueries, *(() if node.operator.kind in _BY_NAME else node.inputs)]
        for each in whole:
            yield from catalyst.output(each.plan)


def _references(catalyst: Catalyst, parts: Iterable[Expression]) -> Iterator[Expression]:
    for each in parts:
        yield from catalyst.items(each.references().toSeq())
