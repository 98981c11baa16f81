"""Plans of a query's changes carried out by Spark: any query, and changes of any size. The plans are those of the one
planner (`iscp.algebra.change_plan`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.algebra.algebra import (
    CLOCK,
    UNNUMBERED,
    Expand,
    Expr,
    Filter,
    Group,
    Join,
    JoinKind,
    Opaque,
    Project,
    Rel,
    Table,
    TableRows,
    TypedColumn,
    Union,
    UnplannedError,
    all_of,
    named,
    same_values,
    with_leaves,
)
from iscp.algebra.change_plan import ChangePlan
from iscp.algebra.lookup_plan import ComputedStep, LookupPlan, LookupStep
from iscp.algebra.result_types import OTHER
from iscp.model.query_plan import Operator, OperatorKind
from iscp.model.values.watermark import NO_TOTALS, QueryTotals, Totals
from iscp.spark.spark_frames import cached, frame_of_arrow, release
from iscp.views.catalyst.aggregates import finished_rows
from iscp.views.catalyst.algebra_reader import QueryAlgebra
from iscp.views.catalyst.catalyst import Catalyst, Columns, Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.catalyst.time_marks import clock_literal
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows, Instants, TableChange, collected, netted, whole_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# --- Catalyst's plans of relations ------------------------------------------------------------------------------------
# An operator of the query is Catalyst's, over other inputs. A planner adds few kinds of relations: columns and keys
# that are passed on, their different values, unions, and joins that keep the rows with one of some keys.


class PlanBuilder:
    """The plans of one refresh. `leaf` gives the plan of a leaf, under the ids of its columns.

    A relation is built once. The columns of its plan are those of the relation, in their order.
    """

    def __init__(
        self, catalyst: Catalyst, query: QueryAlgebra, instants: Instants, leaf: Callable[[Table], Plan]
    ) -> None:
        self.catalyst = catalyst
        self.nodes: dict[int, PlanNode] = dict(query.nodes)
        self._query, self._instants, self._leaf = query, instants, leaf
        self._attributes: dict[int, Expression] = {}
        self._keys: dict[int, Expression] = dict(query.keys)
        self._built: dict[int, tuple[Rel, Plan]] = {}

    def plan(self, relation: Rel) -> Plan:
        """Return the plan. Raises UnplannedError for a relation that neither a query nor the planner has."""
        known = self._built.get(id(relation))
        if known is None:
            known = self._built[id(relation)] = relation, self._plan(relation)
        return known[1]

    def _plan(self, relation: Rel) -> Plan:
        match relation:
            case Table():
                return self._leaf(relation)
            case Union() if self._adds_weight(relation) or relation.number not in self.nodes:
                return self._union(relation)
            case _ if relation.number in self.nodes:
                return self._of_query(relation, self.nodes[relation.number])
            case Project():
                return self._project(relation.items, self.plan(relation.inputs[0]), relation.inputs[0])
            case Group() if relation.keys == relation.items:
                return self.catalyst.different(self.plan(relation.inputs[0]))
            case Join(kind=JoinKind.LEFT_SEMI, condition=Expr() as condition):
                left, right = map(self.plan, relation.inputs)
                return self.catalyst.semi_join(left, right, self._value(condition, (left, right)))
            case _:
                raise UnplannedError(f"{type(relation).__name__} is no relation that a planner adds")

    # --- columns ------------------------------------------------------------------------------------------------------

    def stand_for(self, column: TypedColumn, attribute: Expression) -> None:
        """Have an attribute be the column wherever it is read."""
        self._attributes[column.id] = attribute

    def number_of(self, expression: Expression) -> int:
        """Return the number by which an expression of the algebra is this one of Catalyst's from now on."""
        number = len(self._keys)
        self._keys[number] = expression
        return number

    def _id(self, number: int) -> int:
        """Return Catalyst's id of a column."""
        if number in self._attributes:
            return self.catalyst.id_of(self._attributes[number])
        return self._query.columns.get(number, UNNUMBERED)

    def _attribute(self, number: int, plans: Sequence[Plan]) -> Expression:
        known = self._attributes.get(number)
        if known is not None:
            return known
        wanted = self._id(number)
        for each in plans:
            ids = self.catalyst.ids(each)
            if wanted in ids:
                return each.output().apply(ids.index(wanted))
        raise UnplannedError(f"column {number} is none of the inputs'")

    def attributes(self, columns: Sequence[TypedColumn], plans: Sequence[Plan]) -> list[Expression]:
        return [self._attribute(each.id, plans) for each in columns]

    # --- operators of the query ---------------------------------------------------------------------------------------

    def _of_query(self, relation: Rel, node: PlanNode) -> Plan:
        """Return an operator of the query over the inputs that the relation has."""
        catalyst, plan = self.catalyst, self._with_values(relation, node)
        inputs = [self.plan(each) for each in relation.inputs]
        match relation:
            case Project():
                more = [each.column for each in relation.items[len(catalyst.ids(node.plan)) :]]
                return catalyst.project(self._listed(plan.projectList(), self.attributes(more, inputs)), inputs[0])
            case Expand() if self._adds_weight(relation):
                return catalyst.expand(plan, self._attribute(relation.fields[-1].id, inputs), inputs[0])
            case Filter(untrue=True):
                return catalyst.filter(catalyst.untrue(plan.condition()), inputs[0])
            case Opaque(linear=True):
                whole = catalyst.with_inputs(plan, inputs)
                return self._project([each.value for each in relation.fields], whole, relation)
            case _:
                return catalyst.with_inputs(plan, inputs)

    def _adds_weight(self, relation: Union | Expand) -> bool:
        """Return whether the rows have one column more than those of the query's operator."""
        node = self.nodes.get(relation.number)
        return node is not None and len(relation.fields) > len(self.catalyst.ids(node.plan))

    def _with_values(self, relation: Rel, node: PlanNode) -> Plan:
        """Return the operator with the values that its subqueries and the clock have."""
        if not (node.subqueries or node.clock):
            return node.plan
        return self.catalyst.with_values(node.plan, *self._values(relation.subqueries))

    def _values(self, subqueries: Sequence[Rel]) -> tuple[list[Plan], list[Plan | Expression]]:
        """Return the plans that stand for values in an operator, and the values."""
        before: list[Plan] = []
        after: list[Plan | Expression] = []
        for each in subqueries:
            if each.number in self._query.clock:
                stands, value = self._query.clock[each.number]
                at = each.at if isinstance(each, Table) else TableRows.NEW
                before.append(stands)
                after.append(clock_literal(self.catalyst, value, self._instants.at(at)))
            else:
                before.append(self.nodes[each.number].plan)
                after.append(self.plan(each))
        return before, after

    # --- relations of the planner -------------------------------------------------------------------------------------

    def _project(self, items: Sequence[Expr], below: Plan, relation: Rel) -> Plan:
        """Return columns and aliases over a plan, which is that of `relation`."""
        catalyst, like = self.catalyst, self.nodes.get(relation.number)
        rest, base = [*items], None
        for plan in (below, *([] if like is None else [like.plan])):
            ids = catalyst.ids(plan)
            if base is None and ids == [self._id(each.column.id) for each in items[: len(ids)] if each.op == "Column"]:
                base, rest = plan.output(), [*items[len(ids) :]]
                if plan is below and not rest:
                    return below
        named = [self._item(each, below) for each in rest]
        found = catalyst.project(named if base is None else self._listed(base, named), below)
        if all(self._is_known_as(each, column) for each, column in zip(rest, named, strict=True)):
            return found
        return catalyst.renamed_as(found, self.attributes([each.column for each in items], [below]))

    def _is_known_as(self, item: Expr, column: Expression) -> bool:
        """Return whether what an item makes has the id that its column has everywhere."""
        number = item.column.id
        if item.op != "Alias" or number in self._query.columns:
            return True
        known = self._attributes.setdefault(number, column.toAttribute())
        return self.catalyst.id_of(known) == self.catalyst.id_of(column)

    def _item(self, item: Expr, below: Plan) -> Expression:
        if item.op != "Alias":
            return self._value(item, (below,))
        return self.catalyst.alias(self._value(item.args[0], (below,)), item.column.name)

    def _union(self, union: Union) -> Plan:
        """Return the rows of all inputs, each under ids of its own, so that they meet others of the same nowhere."""
        catalyst, plans = self.catalyst, [self.plan(each) for each in union.inputs]
        node = self.nodes.get(union.number)
        if node is not None:
            own = catalyst.ids(node.plan)
            wanted = self._listed(node.plan.output(), self.attributes(union.fields[len(own) :], plans))
        elif catalyst.ids(plans[0]) == [self._id(each.id) for each in union.fields]:
            wanted = plans[0].output()
        else:
            wanted = catalyst.seq(self.attributes(union.fields, plans))
        return catalyst.renamed_as(catalyst.union([catalyst.afresh(each, each.output()) for each in plans]), wanted)

    def _listed(self, columns: Columns, more: Sequence[Expression]) -> Columns:
        for each in more:
            columns = columns.appended(each)
        return columns

    def _value(self, expression: Expr, plans: Sequence[Plan]) -> Expression:
        """Return an expression over columns of some plans: one of the query's, or one that the planner has made."""
        if expression.op == "Column":
            return self._attribute(expression.column.id, plans)
        if (known := self._keys.get(expression.number)) is not None:
            return self.catalyst.with_values_in(known, *self._values(expression.plans)) if expression.plans else known
        match expression.op:
            case "And":
                return self.catalyst.both([self._value(each, plans) for each in expression.args])
            case "EqualNullSafe":
                return self.catalyst.same(*(self._value(each, plans) for each in expression.args))
            case "Literal" if expression.type == "long":
                return self.catalyst.whole_number(int(str(expression.info[0])))
            case _:
                raise UnplannedError(f"{expression.op} is no expression that a planner adds")


# --- totals of aggregates without GROUP BY ----------------------------------------------------------------------------
# The totals before the tables' changes and after them.


@dataclass
class KnownTotals:
    """Totals before and after; `before` is empty where all rows are computed. `learn_totals` fills `after`."""

    before: Mapping[PlanNode, Totals] = field(default_factory=dict)
    after: dict[PlanNode, Totals] = field(default_factory=dict)

    def __contains__(self, node: PlanNode) -> bool:
        return node in self.after

    def changed(self, node: PlanNode) -> bool:
        return self.before.get(node) != self.after[node]

    def row(self, catalyst: Catalyst, node: PlanNode, at: TableRows) -> Plan:
        """Return the aggregate's one row, under its ids."""
        totals = self.after[node] if at is TableRows.NEW else self.before[node]
        states = [each.total_state(total) for each, total in zip(node.functions, totals, strict=True)]
        return finished_rows(catalyst, node.plan, node.functions, states, catalyst.one_row)

    def of(self, root: PlanNode) -> QueryTotals:
        """Return the totals of a query, or no totals if one is not known."""
        nodes = adding_up(root)
        if not nodes or not all(each in self.after for each in nodes):
            return NO_TOTALS
        return QueryTotals(_shape(nodes), tuple(self.after[each] for each in nodes))


def adding_up(root: PlanNode) -> list[PlanNode]:
    """Return the aggregates whose totals are stored; those that one is made of come before it."""
    return [each for each in root.walk() if each.functions]


def totals_before(root: PlanNode, stored: QueryTotals) -> dict[PlanNode, Totals] | None:
    """Return the stored totals by operator, or None if they are of another query, or of columns of other types."""
    nodes = adding_up(root)
    fits = not nodes or (stored.shape == _shape(nodes) and len(stored.totals) == len(nodes))
    return dict(zip(nodes, stored.totals, strict=True)) if nodes and fits else {} if fits else None


def _shape(nodes: list[PlanNode]) -> str:
    described = [[each.operator.title, *[one.described for one in each.functions]] for each in nodes]
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


# --- plans of one refresh ---------------------------------------------------------------------------------------------
# Keys that rows are read by on both sides of the changes are computed first: few of them are collected, so that Spark
# knows how many they are before it plans, and so that rows of large tables are looked up by them without Spark.

LARGE_BYTES = 1024**2
"""Bytes of a table beyond which its rows are looked up by the keys of changed ones, or reduced to these before they are
joined; all rows of a smaller one are read.
"""

COMPUTED_ROWS_MAX = 20_000
"""Rows that are computed on the way to a refresh's changes, collected here and handed back; more stay cached in
Spark.
"""


@dataclass
class SparkPlans:
    """Plans of one query's rows and changes for one refresh. `close` frees what was cached for them.

    Up to `collected_max` changed rows of the result, or of its keys, are collected from Spark in one step; if there
    are more it computes them twice. 0 is for refreshes in which many are expected. Totals that are not among `totals`
    are computed of all rows. `given` has the rows of operators that are known, after the changes.
    """

    catalyst: Catalyst
    query: QueryAlgebra
    tables: Mapping[str, TableChange]
    instants: Instants
    collected_max: int = 0
    totals: KnownTotals = field(default_factory=KnownTotals)
    large_bytes: int = LARGE_BYTES
    given: Mapping[PlanNode, DataFrame] = field(default_factory=dict)
    _cached: list[DataFrame] = field(default_factory=list, init=False)
    _planned: tuple[frozenset[PlanNode], _Planned] | None = field(default=None, init=False)

    def close(self) -> None:
        while self._cached:
            release(self._cached.pop())

    # --- all rows -------------------------------------------------------------------------------------------------

    def result(self, root: PlanNode, at: TableRows) -> DataFrame:
        """Return all rows of an operator, in columns without the marks that they had below."""
        plan = self.rows(root, at)
        return self.catalyst.frame(self.catalyst.afresh(plan, plan.output()))

    def result_over(self, root: PlanNode, stored: PlanNode, rows: DataFrame) -> DataFrame:
        """Return all rows of the query, where `rows` are those of its operator `stored`."""
        return replace(self, given={**self.given, stored: rows}).result(root, TableRows.NEW)

    def rows(self, node: PlanNode, at: TableRows) -> Plan:
        """Return the plan of all rows of an operator, under its ids."""
        planned = self._plans()
        return planned.builder.plan(planned.planner.rows(planned.relation(node), at))

    # --- changes --------------------------------------------------------------------------------------------------

    def changes(self, root: PlanNode) -> ChangedRows | None:
        """Return how the rows of an operator change, or None if they stay as they are.

        Each distinct row comes once, under the names `c0`, `c1`, …, with WEIGHT. The rows stay cached until `close`.
        """
        signed = self.signed(root)
        if signed is None:
            return None
        plan, weight = signed
        numbered = self.catalyst.numbered(plan, root.plan, [self.catalyst.alias(weight, WEIGHT)])
        return self.compute(netted(self.catalyst.frame(numbered)), self.collected_max)

    def signed(self, node: PlanNode) -> tuple[Plan, Expression] | None:
        """Return the plan of an operator's changed rows, under its ids, and the column that is their weight.

        A row may come several times. None: no row can change.
        """
        planned = self._plans()
        found = planned.planner.changes(planned.relation(node))
        return None if found is None else (planned.plan_over_lookups(found), planned.weight)

    def signed_values(self, node: PlanNode, value: Expression) -> tuple[Plan, Expression, Expression] | None:
        """Return how different values of an expression over an operator's rows come and go: the plan, the column of the
        values and that of their weight; or None if none can.
        """
        planned = self._plans()
        found, attribute = planned.different_values(node, value)
        changes = planned.planner.changes(found)
        return None if changes is None else (planned.plan_over_lookups(changes), attribute, planned.weight)

    def touched(self, root: PlanNode) -> TouchedFrames | None:
        """Return keys that changes touch, and all rows of them now, of a result that has keys, or None if none can
        change.
        """
        planned = self._plans()
        root_relation = planned.relation(root)
        found = planned.planner.keyed_rows(root_relation)
        if found is None:
            return None
        keys = planned.lookups.over_some_lookups(found.keys.inputs[0])
        assert isinstance(keys, Table), "keys that rows are read by are computed in a step"
        frame = planned.frame_of(keys)
        places = {each.id: place for place, each in enumerate(root_relation.columns)}
        names = [f"c{places[each.id]}" for each in found.keys.columns]
        rows = self.catalyst.frame(planned.plan_over_lookups(found.rows))
        named_rows = rows.toDF(*[f"c{place}" for place in range(len(rows.columns))])
        return TouchedFrames(frame.toDF(*names), named_rows, planned.arrow.get(keys.name))

    # --- what is computed -----------------------------------------------------------------------------------------

    def cache(self, frame: DataFrame) -> DataFrame:
        """Return a frame that is evaluated once, when it is needed, and cached until `close`."""
        frame = cached(frame)
        self._cached.append(frame)
        return frame

    def compute(self, frame: DataFrame, collected_max: int) -> ChangedRows | None:
        """Evaluate a frame now; return its rows, or None if there are none.

        Up to `collected_max` rows are collected; more stay cached until `close`.
        """
        arrow = collected(frame, collected_max) if collected_max else None
        if arrow is not None:
            return ChangedRows(frame, len(arrow), arrow) if len(arrow) else None
        frame = self.cache(frame)
        rows = frame.count()
        return ChangedRows(frame, rows) if rows else None

    def _plans(self) -> _Planned:
        """Return the plans for the totals that are known by now."""
        known = frozenset(self.totals.after)
        if self._planned is None or self._planned[0] != known:
            self._planned = known, _Planned(self)
        return self._planned[1]


@dataclass(frozen=True, slots=True)
class TouchedFrames:
    """Keys that changed rows have or had, and all rows that have them, by the places of the columns: `c0`, `c1`, …

    `arrow` has the keys too, by other names, if they are few.
    """

    keys: DataFrame
    rows: DataFrame
    arrow: pa.Table | None


class _Planned:
    """The plans of one refresh for one set of known totals. Steps are carried out when a plan needs their rows."""

    def __init__(self, plans: SparkPlans) -> None:
        self._plans, self._catalyst = plans, plans.catalyst
        query = plans.query
        known = {query.relations[node].number: node for node in (*plans.totals.after, *plans.given)}
        leaves = {
            number: Table((), query.relations[node].columns, f"\0{number}", number=number)  # as no table is called
            for number, node in known.items()
        }
        self._known = known
        root = with_leaves(query.root, leaves)
        self.planner = ChangePlan(
            root, [*self._changed(), *self._changed_totals(leaves)], max(query.columns, default=0)
        )
        large = {name for name, each in plans.tables.items() if each.bytes > plans.large_bytes}
        self.lookups = LookupPlan(self.planner.ids, large, self.planner.is_shared)
        self.builder = PlanBuilder(plans.catalyst, query, plans.instants, self._leaf)
        self.weight: Expression = plans.catalyst.alias(plans.catalyst.whole_number(1), WEIGHT).toAttribute()
        self.builder.stand_for(self.planner.weight, self.weight)
        self.arrow: dict[str, pa.Table] = {}
        self._given: dict[str, Plan] = {}
        self._leaves, self._relations = leaves, {each.number: each for each in root.walk()}

    def _changed(self) -> list[str]:
        found = [name for name, each in self._plans.tables.items() if each.changes() is not None]
        return [*found, CLOCK] if self._plans.instants.apart else found

    def _changed_totals(self, leaves: Mapping[int, Table]) -> list[str]:
        totals = self._plans.totals
        return [
            leaf.name
            for number, leaf in leaves.items()
            if (node := self._known[number]) in totals and totals.before and totals.changed(node)
        ]

    def relation(self, node: PlanNode) -> Rel:
        """Return an operator of the query, over what is known."""
        found = self._plans.query.relations[node]
        if found.number not in self._relations:  # it lies below what is known
            self._relations[found.number] = with_leaves(found, self._leaves)
        return self._relations[found.number]

    def different_values(self, node: PlanNode, value: Expression) -> tuple[Rel, Expression]:
        """Return the different values of an expression over an operator's rows, and the column that they are in."""
        catalyst, below = self._catalyst, self.relation(node)
        numbers = {each: number for number, each in self._plans.query.columns.items()}
        read = [numbers[catalyst.id_of(each)] for each in catalyst.items(value.references().toSeq())]
        columns = tuple(Expr("Column", (), OTHER, (each, "")) for each in read)
        key = Expr("Opaque", columns, OTHER, ("value", ""), number=self.builder.number_of(value))
        plan = catalyst.distinct(value, node.plan)
        column = TypedColumn(next(self.planner.ids), "value", OTHER)
        (attribute,) = catalyst.output(plan)
        self.builder.stand_for(column, attribute)
        operator = Operator(OperatorKind.AGGREGATE, "Distinct", (node.operator,), keyed=True)
        number = max(self.builder.nodes) + 1
        self.builder.nodes[number] = PlanNode(operator, plan, (node,), ((value,),))
        return Group((below,), (key,), (named(key, column),), number=number), attribute

    def plan_over_lookups(self, relation: Rel) -> Plan:
        return self.builder.plan(self.lookups.over_some_lookups(relation))

    def frame_of(self, leaf: Table) -> DataFrame:
        """Return the rows of a leaf that a step gives."""
        return self._catalyst.frame(self._given_plan(leaf.name))

    # --- leaves ---------------------------------------------------------------------------------------------------

    def _leaf(self, table: Table) -> Plan:
        catalyst, node = self._catalyst, self.builder.nodes.get(table.number)
        if table.at is TableRows.GIVEN:
            rows = self._given_plan(table.name)
            if node is None:
                return catalyst.renamed_as(rows, self.builder.attributes(table.fields, ()))
            return catalyst.renamed(catalyst.widened(rows, node.plan, weighted=False), node.plan)
        assert node is not None, "the planner adds no table"
        if table.at is TableRows.CHANGES:
            changes = catalyst.widened(catalyst.plan_of(self._changes_of(table, node)), node.plan, weighted=True)
            return catalyst.renamed_as(changes, node.plan.output().appended(self.weight))
        return catalyst.renamed(self._rows_of(table, node, table.at), node.plan)

    def _rows_of(self, table: Table, node: PlanNode, at: TableRows) -> Plan:
        if table.number not in self._known:
            return self._catalyst.plan_of(self._plans.tables[table.name].rows(at))
        if (given := self._plans.given.get(node)) is not None:
            return self._catalyst.plan_of(given)
        return self._plans.totals.row(self._catalyst, node, at)

    def _changes_of(self, table: Table, node: PlanNode) -> DataFrame:
        if table.number not in self._known:
            changes = self._plans.tables[table.name].changes()
            assert changes is not None, "only tables that have changed have changed rows"
            return changes
        now, before = (self._catalyst.frame(self._rows_of(table, node, at)) for at in (TableRows.NEW, TableRows.OLD))
        return now.withColumn(WEIGHT, whole_number(1)).unionAll(before.withColumn(WEIGHT, whole_number(-1)))

    # --- steps ----------------------------------------------------------------------------------------------------

    def _given_plan(self, name: str) -> Plan:
        if name not in self._given:
            step = self.lookups.steps[int(name)]
            self._given[name] = self._computed(step) if isinstance(step, ComputedStep) else self._looked_up(step)
        return self._given[name]

    def _computed(self, step: ComputedStep) -> Plan:
        frame = self._catalyst.frame(self.builder.plan(step.rows)).toDF(*[each.name for each in step.into.fields])
        collected_max = min(self._plans.collected_max, COMPUTED_ROWS_MAX)
        arrow = collected(frame, collected_max) if collected_max else None
        if arrow is None:
            frame = self._plans.cache(frame)
            frame.count()  # Spark knows how many they are before it plans what is read by them
        else:
            self.arrow[step.into.name] = arrow
            frame = frame_of_arrow(frame.sparkSession, arrow)
        return self._catalyst.plan_of(frame)

    def _looked_up(self, step: LookupStep) -> Plan:
        """Return the rows of a table with some keys, found without Spark where keys and rows are few."""
        self._given_plan(step.keys.name)
        find, keys = self._plans.tables[step.source.name].find, self.arrow.get(step.keys.name)
        if find is not None and keys is not None:
            found = find(step.source.at, pa.table({own: keys[key] for own, key in step.pairs}))
            if found is not None:
                return self._catalyst.plan_of(found.frame)
        own = {each.name: each for each in step.source.fields}
        theirs = {each.name: each for each in step.keys.fields}
        values, columns = [own[each].value for each, _ in step.pairs], [theirs[each] for _, each in step.pairs]
        condition = all_of(same_values(values, columns))
        return self.builder.plan(Join((step.source, step.keys), JoinKind.LEFT_SEMI, condition))
