"""Make the time in a query's conditions a value that each refresh sets.

Spark's optimizer puts the time at which it runs in the place of `now()` and its like. So in the analyzed plan each of
them becomes the one value of a subquery over a relation that stands for the clock: the optimizer moves that along with
its condition, and knows nothing of it. When a plan is carried out, the value is a literal again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, assert_never

from iscp.adapters.system.late_imports import T
from iscp.core.sql.time_dependence import TimeDependence
from iscp.core.values.errors import InvalidRequest
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEW_ZONE = "UTC"
"""The zone of days and times of day in views, whatever zone a node has."""


class ClockValue(Enum):
    """A value of the time that a query may use, by Spark's names of the types."""

    TIMESTAMP = "timestamp"
    LOCAL = "timestamp_ntz"
    DATE = "date"

    @property
    def function(self) -> str:
        return _SHOWN[self]

    @property
    def dependence(self) -> TimeDependence:
        return TimeDependence.DATE if self is ClockValue.DATE else TimeDependence.MOMENT


def _type_of(value: ClockValue) -> T.DataType:
    match value:
        case ClockValue.TIMESTAMP:
            return T.TimestampType()
        case ClockValue.LOCAL:
            return T.TimestampNTZType()
        case ClockValue.DATE:
            return T.DateType()


_SHOWN = {
    ClockValue.TIMESTAMP: "current_timestamp()",
    ClockValue.LOCAL: "localtimestamp()",
    ClockValue.DATE: "current_date()",
}
_FUNCTIONS = {
    "CurrentTimestamp": ClockValue.TIMESTAMP,
    "Now": ClockValue.TIMESTAMP,
    "LocalTimestamp": ClockValue.LOCAL,
    "CurrentDate": ClockValue.DATE,
}
_TIMES = (*_FUNCTIONS, "CurrentTime")


@dataclass
class TimeMarks:
    """The marks in a plan. `values` says what a relation stands for, by the id of its empty RDD; `marked` fills it."""

    session: SparkSession
    catalyst: Catalyst
    values: dict[int, ClockValue] = field(default_factory=dict)
    _relations: dict[ClockValue, Plan] = field(default_factory=dict)

    def marked(self, analyzed: Plan) -> Plan:
        """Return the plan with values of the clock in the place of functions, in conditions.

        Raises InvalidRequest if there are some elsewhere, or others whose value is another each time.
        """
        if not self._asks(analyzed):
            return analyzed
        plan = self._plan(analyzed)
        if self._asks(plan):
            names = [str(each.prettyName()) for each in self._asked(plan) if _class_of(each) in _TIMES]
            if not names:
                raise changing()
            raise InvalidRequest(
                f"has {names[0]}() elsewhere than in the condition of a WHERE, ON or HAVING",
                field="sql",
                remedy="Use it in WHERE only; and let whoever reads the view compute what else depends on the time",
            )
        return plan

    def _asks(self, node: Plan | Expression) -> bool:
        return bool(node.containsPattern(self._pattern))

    @property
    def _pattern(self) -> Any:
        jvm: Any = self.session._jvm
        return jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()

    def _plan(self, plan: Plan) -> Plan:
        if not self._asks(plan):
            return plan
        inputs = [self._plan(each) for each in self.catalyst.children(plan)]
        if inputs:
            plan = plan.withNewChildren(self.catalyst.seq(inputs))
        conditional = self.catalyst.is_a(plan, "Filter") or self.catalyst.is_a(plan, "Join")
        return self.catalyst.with_expressions(plan, lambda each: self._expression(each, conditional))

    def _expression(self, expression: Expression, conditional: bool) -> Expression:
        if not self._asks(expression):
            return expression
        value = _FUNCTIONS.get(_class_of(expression))
        if value is not None:
            return self.catalyst.scalar_subquery(self._relation(value)) if conditional else expression
        if self.catalyst.is_subquery(expression):
            expression = expression.withNewPlan(self._plan(expression.plan()))
        return self.catalyst.with_arguments(expression, lambda each: self._expression(each, conditional))

    def _relation(self, value: ClockValue) -> Plan:
        if value not in self._relations:
            schema = T.StructType([T.StructField(value.value, _type_of(value), nullable=False)])
            frame = self.session.createDataFrame(self.session.sparkContext.emptyRDD(), schema)
            plan = self.catalyst.plan_of(frame)
            self.values[int(plan.rdd().id())] = value
            self._relations[value] = plan
        return self._relations[value]

    def _asked(self, node: Plan | Expression) -> Iterator[Expression]:
        """Yield the functions that are left, anywhere."""
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if not self._asks(each):
                continue
            parts = self.catalyst.parts(each)
            if not parts:
                yield each
            waiting += parts


def clock_literal(catalyst: Catalyst, value: ClockValue, at_s: float) -> Expression:
    there = catalyst.instant(at_s, VIEW_ZONE)
    match value:
        case ClockValue.TIMESTAMP:
            return catalyst.literal(there.toInstant())
        case ClockValue.LOCAL:
            return catalyst.literal(there.toLocalDateTime())
        case ClockValue.DATE:
            return catalyst.literal(there.toLocalDate())
        case _:
            assert_never(value)


def changing() -> InvalidRequest:
    return InvalidRequest(
        "gives other rows each time that it is evaluated",
        field="sql",
        remedy="Leave out what is random, or goes by the user or the session; and use the time in WHERE only",
    )


def _class_of(expression: Expression) -> str:
    return str(expression.getClass().getSimpleName())
