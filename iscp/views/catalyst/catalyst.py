"""Plans of Spark's Catalyst, built through py4j of the JVM's classes.

An operator's expressions name the columns of its inputs by ids. What takes an input's place (its rows of another
version, or its changes) therefore gets columns of the very same ids, and the expressions stay as Spark made them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

from iscp.system.late_imports import T, frame_of_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- classes of the JVM -----------------------------------------------------------------------------------------------


class _Package:
    """A package of the JVM, or a class. To look up what is in it is a call to the JVM, and is done once."""

    def __init__(self, package: Any) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._package, name)
        setattr(self, name, found)
        return found


class JvmClasses:
    """The classes of one JVM that plans are built of; `none` is an object of it."""

    def __init__(self, jvm: Any) -> None:
        sql = jvm.org.apache.spark.sql
        self.expressions = _Package(sql.catalyst.expressions)
        self.logical = _Package(sql.catalyst.plans.logical)
        self.plans = _Package(sql.catalyst.plans)
        self.columns = _Package(jvm.io.iscp.plans.PlanColumns)
        plans = jvm.io.iscp.plans
        self.ties, self.ranges = _Package(plans.TieBreaking), _Package(plans.UtcRanges)
        self.sums, self.sizes = _Package(plans.DecidingSums), _Package(plans.SizeBounds)
        self.dataset, self.utils, self.option = sql.classic.Dataset, jvm.PythonUtils, jvm.scala.Option
        self.none = self.option.empty()


classes_of = lru_cache(maxsize=1)(JvmClasses)
"""Return the classes; there is one JVM in a process at a time."""


# --- plans ------------------------------------------------------------------------------------------------------------

Plan = Any
"""A LogicalPlan of the JVM."""

Expression = Any
"""An Expression of the JVM; an attribute is one too."""

Columns = Any
"""A Seq, in Scala, of expressions."""


class Catalyst:
    """Builds plans for one session."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._jvm: Any = session._jvm
        self._classes = classes_of(self._jvm)
        self._expressions, self._logical = self._classes.expressions, self._classes.logical
        self._columns = self._classes.columns
        self._none = self._classes.none

    def seq(self, items: Iterable[Any]) -> Any:
        return self._classes.utils.toSeq(list(items))

    def items(self, seq: Any) -> list[Any]:
        # By their places: an iterator of Java's ends with an exception, which takes longer than all the rest.
        return [seq.apply(place) for place in range(seq.size())]

    def children(self, node: Plan | Expression) -> list[Any]:
        return self.items(node.children())

    def output(self, plan: Plan) -> list[Expression]:
        return self.items(plan.output())

    def inputs(self, plan: Plan) -> list[Plan]:
        """Return the inputs of the operator.

        A limit is several plans, which together are planned as one: none of them alone preserves the order of its rows.
        """
        children = self.children(plan)
        return self.inputs(children[0]) if self._parts_limit(plan, children) else children

    def with_inputs(self, plan: Plan, inputs: Sequence[Plan]) -> Plan:
        children = self.children(plan)
        if self._parts_limit(plan, children):
            inputs = [self.with_inputs(children[0], inputs)]
        return plan.withNewChildren(self.seq(inputs))

    def limit_parts(self, plan: Plan) -> list[Plan]:
        """Return the plans that a limit is, the highest first."""
        parts = [plan]
        while self._is_limit(parts[-1].child()):
            parts.append(parts[-1].child())
        return parts

    def _parts_limit(self, plan: Plan, children: Sequence[Plan]) -> bool:
        return self._is_limit(plan) and self._is_limit(children[0])

    def _is_limit(self, plan: Plan) -> bool:
        return str(plan.nodeName()) in ("GlobalLimit", "Offset", "LocalLimit")

    def plan_of(self, frame: DataFrame) -> Plan:
        return frame._jdf.queryExecution().analyzed()

    def frame(self, plan: Plan) -> DataFrame:
        """Return the plan's rows."""
        dataset = self._classes.dataset.ofRows(self._session._jsparkSession, plan)
        return frame_of_java(dataset, self._session)

    def is_a(self, node: Any, name: str) -> bool:
        """Return whether `node` is of the class of Catalyst's `expressions` or `plans.logical` with this name."""
        return bool(node.getClass().getSimpleName().rstrip("$") == name)

    def type_of(self, expression: Expression) -> T.DataType:
        return T._parse_datatype_json_value(json.loads(expression.dataType().json()))

    # --- expressions ----------------------------------------------------------------------------------------------

    def alias(self, value: Expression, name: str) -> Expression:
        """Return `value` under a new id."""
        return self._columns.alias(value, name)

    def both(self, conditions: Sequence[Expression]) -> Expression:
        return reduce(self._expressions.And, conditions)

    def same(self, left: Expression, right: Expression) -> Expression:
        """Return the condition that both are equal; null equals null."""
        return self._expressions.EqualNullSafe(left, right)

    def id_of(self, attribute: Expression) -> int:
        return int(attribute.exprId().id())

    def ids(self, plan: Plan) -> list[int]:
        """Return the ids of its columns."""
        return [*map(int, self._columns.ids(plan).split())]

    def names(self, plan: Plan) -> list[str]:
        """Return the names of its columns."""
        return str(self._columns.names(plan)).split("\0")[:-1]

    # --- operators ------------------------------------------------------------------------------------------------

    def project(self, columns: Sequence[Expression] | Columns, child: Plan) -> Plan:
        return self._logical.Project(self.seq(columns) if isinstance(columns, Sequence) else columns, child)

    def renamed(self, child: Plan, like: Plan) -> Plan:
        """Return the child's columns, in their order, under the names and ids of those of another plan."""
        return self._columns.renamed(child, like)

    def renamed_as(self, child: Plan, wanted: Sequence[Expression] | Columns) -> Plan:
        """Return the child's columns as `renamed` does, where the wanted columns are of no plan."""
        return self._columns.renamedAs(child, self.seq(wanted) if isinstance(wanted, Sequence) else wanted)

    def numbered(self, child: Plan, like: Plan, more: Sequence[Expression] = ()) -> Plan:
        """Return the child's columns for those of the other plan, as `c0`, `c1`, …, and `more` as they are."""
        return self._columns.numbered(child, like, self.seq(more))

    def afresh(self, child: Plan, columns: Columns) -> Plan:
        """Return these columns under new ids, so that they meet others of the same ids in no operator."""
        return self._columns.afresh(child, columns)

    def union(self, plans: Sequence[Plan]) -> Plan:
        """Return the union of plans, each of whose columns have ids of their own."""
        return self._logical.Union(self.seq(plans), False, False) if len(plans) > 1 else plans[0]

    def semi_join(self, left: Plan, right: Plan, condition: Expression) -> Plan:
        kind = self._classes.plans.JoinType.apply("leftsemi")
        hint = getattr(self._logical, "JoinHint$").__getattr__("MODULE$").NONE()
        return self._logical.Join(left, right, kind, self._classes.option.apply(condition), hint)

    def widened(self, plan: Plan, like: Plan, *, weighted: bool) -> Plan:
        """Return the plan with all columns of the other one, in its order, and the weight; columns that it lacks are
        null.
        """
        return self._columns.widened(plan, like, weighted)

    def different(self, plan: Plan) -> Plan:
        """Return each different row of the plan once."""
        return self._logical.Distinct(plan)

    def one_row(self, values: Sequence[str]) -> Plan:
        """Return one row of values in SQL; the optimizer knows what is in it."""
        return self.plan_of(self._session.sql(f"SELECT {', '.join(values)}"))

    def distinct(self, value: Expression, child: Plan) -> Plan:
        """Return the different values of an expression."""
        columns = self.seq([self.alias(value, "value")])
        return self._logical.Aggregate(self.seq([value]), columns, child, self._none)

    def expand(self, plan: Plan, carried: Expression, child: Plan) -> Plan:
        """Return an Expand whose rows carry one more column of its input."""
        rows = [self.seq([*self.items(row), carried]) for row in self.items(plan.projections())]
        return self._logical.Expand(self.seq(rows), self.seq([*self.output(plan), carried]), child)

    def ordered(self, plan: Plan) -> Plan:
        """Return the plan with rows that tie ordered by all of their columns, and ranges of times by UTC."""
        return self._classes.ties.settled(self._classes.ranges.settled(plan))

    def reproducible(self, ordered: Plan, found: Plan | None = None) -> Plan:
        """Return an `ordered` plan changed such that the same rows give the same result each time.

        Sums of doubles that something is decided by are exact, and so are those in the columns of `found`, an operator
        in the plan whose rows are found again by their values.
        """
        return self._classes.sums.settled(ordered, self._columns_of(found))

    def undecided(self, plan: Plan, found: Plan | None = None) -> str:
        """Return functions that decide something in a `reproducible` plan though their value differs between runs."""
        return str(self._classes.sums.unsettled(plan, self._columns_of(found)))

    def _columns_of(self, plan: Plan | None) -> Columns:
        return self.seq(()) if plan is None else plan.output()

    # --- expressions within operators -----------------------------------------------------------------------------

    def with_expressions(self, plan: Plan, change: Callable[[Expression], Expression]) -> Plan:
        """Return the plan with each expression of a Project, Filter, Sort, Join or Aggregate changed; others stay as
        they are.
        """
        if self.is_a(plan, "Project"):
            return self.project([change(each) for each in self.items(plan.projectList())], plan.child())
        if self.is_a(plan, "Filter"):
            return self._logical.Filter(change(plan.condition()), plan.child())
        if self.is_a(plan, "Sort"):
            order = [change(each) for each in self.items(plan.order())]
            return self._logical.Sort(self.seq(order), getattr(plan, "global")(), plan.child(), plan.hint())
        if self.is_a(plan, "Join") and plan.condition().isDefined():
            return self.with_condition(plan, change(plan.condition().get()))
        if self.is_a(plan, "Aggregate"):
            groups, columns = self.items(plan.groupingExpressions()), self.items(plan.aggregateExpressions())
            changed = [self.seq(map(change, each)) for each in (groups, columns)]
            return self._logical.Aggregate(*changed, plan.child(), plan.hint())
        return plan

    def with_condition(self, join: Plan, condition: Expression | None) -> Plan:
        found = self._classes.option.apply(condition)
        return self._logical.Join(join.left(), join.right(), join.joinType(), found, join.hint())

    def with_arguments(self, expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
        children = self.children(expression)
        return expression.withNewChildren(self.seq(map(change, children))) if children else expression

    def with_values(self, plan: Plan, before: Sequence[Plan], after: Sequence[Plan | Expression]) -> Plan:
        """Return the plan with these subqueries replaced, by others or by values."""
        return self.with_expressions(plan, lambda each: self.with_values_in(each, before, after))

    def with_values_in(
        self, expression: Expression, before: Sequence[Plan], after: Sequence[Plan | Expression]
    ) -> Expression:
        return _Swap(self, tuple(before), tuple(after)).within(expression)

    def is_subquery(self, node: Plan | Expression) -> bool:
        return self._is_instance(node, self._expressions.SubqueryExpression)

    def parts(self, node: Plan | Expression) -> list[Any]:
        """Return the parts of a node: inputs, arguments, expressions, and the plan of a subquery."""
        parts = self.children(node)
        if self._is_instance(node, self._logical.LogicalPlan):
            parts += self.items(node.expressions())
        elif self.is_subquery(node):
            parts.append(node.plan())
        return parts

    def _is_instance(self, node: Any, kind: Any) -> bool:
        return bool(self._jvm.java.lang.Class.forName(kind._fqn).isInstance(node))

    def scalar_subquery(self, plan: Plan) -> Expression:
        made = getattr(self._expressions, "ScalarSubquery$").__getattr__("MODULE$")
        return made.apply(plan, *[getattr(made, f"apply$default${place}")() for place in range(2, 8)])

    def whole_number(self, value: int) -> Expression:
        """Return the literal of a number of 64 bits."""
        return self.one_row([f"{value}L AS number"]).projectList().apply(0).child()

    def literal(self, value: Any) -> Expression:
        """Return the literal of a java.time value."""
        return getattr(self._expressions, "Literal$").__getattr__("MODULE$").apply(value)

    def instant(self, at_s: float, zone: str) -> Any:
        """Return the time as java.time has it; `at_s` counts to the millisecond."""
        time = self._jvm.java.time
        return time.Instant.ofEpochMilli(round(at_s * 1000)).atZone(time.ZoneId.of(zone))

    def split(self, condition: Expression) -> list[Expression]:
        """Return the conditions that all have to be true, in order."""
        if self.is_a(condition, "And"):
            return [*self.split(condition.left()), *self.split(condition.right())]
        return [condition]

    def untrue(self, condition: Expression) -> Expression:
        """Return the condition that another is false or null, written so that files can be passed over by their
        statistics.
        """
        return self._expressions.Or(self._expressions.Not(condition), self._expressions.IsNull(condition))

    def filter(self, condition: Expression, child: Plan) -> Plan:
        return self._logical.Filter(condition, child)


@dataclass(frozen=True, slots=True)
class _Swap:
    catalyst: Catalyst
    before: tuple[Plan, ...]
    after: tuple[Plan | Expression, ...]

    def within(self, expression: Expression) -> Expression:
        if self.catalyst.is_a(expression, "ScalarSubquery"):
            plan = expression.plan()
            place = next(number for number, each in enumerate(self.before) if plan.fastEquals(each))
            after = self.after[place]
            return after if self.catalyst.is_a(after, "Literal") else expression.withNewPlan(after)
        return self.catalyst.with_arguments(expression, self.within)
