"""Carry out the plans of a query's changes by Spark: any query, and changes of any size.

The plans are those of the one planner (`core.algebra`). Keys that rows are read by on both sides of the changes are
computed first: few of them are collected, so that Spark knows how many they are before it plans, and so that rows of
large tables are looked up by them without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.spark.arrow_frame import frame_of_arrow
from iscp.adapters.delta.spark.cached_frame import cached, release
from iscp.core.algebra.algebra import CLOCK, Expr, Group, Join, JoinKind, Rel, Table, TableRows, TypedColumn
from iscp.core.algebra.change_plan import ChangePlan
from iscp.core.algebra.key_reduction import all_of, named, same_values, with_leaves
from iscp.core.algebra.lookup_plan import ComputedStep, LookupPlan, LookupStep
from iscp.core.algebra.result_types import OTHER
from iscp.core.query.query_plan import Operator, OperatorKind
from iscp.views.catalyst.algebra_reader import QueryAlgebra
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.known_totals import KnownTotals
from iscp.views.changes.plan_builder import PlanBuilder
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows, Instants, TableChange, collected, netted, whole_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
