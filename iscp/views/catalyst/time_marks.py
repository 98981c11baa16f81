"""The time in users' SQL: marks make the time in a query's conditions a value that each refresh sets, and texts of
which Spark makes the time at which it reads them are found, so that they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, assert_never

from iscp.algebra.algebra import CLOCK_TYPES
from iscp.model.sql.sql_names import TimeDependence
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import shown
from iscp.system.late_imports import T
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- marks of the time in conditions ----------------------------------------------------------------------------------
# Spark's optimizer puts the time at which it runs in the place of `now()` and its like. So in the analyzed plan each of
# them becomes the one value of a subquery over a relation that stands for the clock: the optimizer moves that along
# with its condition, and knows nothing of it. When a plan is carried out, the value is a literal again.

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
        return CLOCK_TYPES[self.value]


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


# --- texts that become the time ---------------------------------------------------------------------------------------
# Spark's parser makes the time of literals of a type (`timestamp'now'`), and its optimizer of constant texts that
# become times (`CAST('today' AS DATE)`). So tokens and plans are searched, as these two have them: comments and texts
# that become no time are none.

_TYPE_TOKENS = ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
_TEXT_TOKENS = ("STRING_LITERAL", "DOUBLEQUOTED_STRING")
_CONSTANT = "epoch"
"""A text that Spark reads as the others, though it always is the same time."""


def special_time(session: SparkSession, sql: str, analyzed: Plan) -> str:
    """Return the first such text, as SQL, in a query or condition that Spark has analyzed; empty if there is none."""
    found = _typed(session, sql) or _converted(session, analyzed)
    return shown(found) if found else ""


def _typed(session: SparkSession, sql: str) -> str:
    """Return the first literal as `date'today'`, or an empty text."""
    jvm: Any = session._jvm
    parser, antlr = jvm.org.apache.spark.sql.catalyst.parser, jvm.org.antlr.v4.runtime
    java_session: Any = session._jsparkSession
    parse = java_session.sessionState().sqlParser().parseExpression
    lexer = parser.SqlBaseLexer
    types = jvm.java.util.HashSet([getattr(lexer, name) for name in _TYPE_TOKENS])
    texts = {getattr(lexer, name) for name in _TEXT_TOKENS}
    stream = antlr.CommonTokenStream(lexer(parser.UpperCaseCharStream(antlr.CharStreams.fromString(sql))))
    stream.fill()
    for kind in stream.getTokens(0, stream.size() - 1, types) or ():
        stream.seek(kind.getTokenIndex())
        text = stream.LT(2)  # the next one that is neither a blank nor a comment
        if text.getType() in texts and _is_special(jvm, str(parse(text.getText()).toString())):
            return f"{kind.getText()}{text.getText()}"
    return ""


def _converted(session: SparkSession, analyzed: Plan) -> str:
    """Return the first cast, or function that comes to a cast, in the plan and those of its subqueries; empty if there
    is none.
    """
    jvm: Any = session._jvm
    catalyst, optimizer = Catalyst(session), jvm.org.apache.spark.sql.catalyst.optimizer
    without_functions, special = (
        getattr(optimizer, f"{name}$").__getattr__("MODULE$")
        for name in ("ReplaceExpressions", "SpecialDatetimeValues")
    )
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    waiting = [analyzed]
    while waiting:
        plan = without_functions.apply(waiting.pop())
        if not special.apply(plan).fastEquals(plan):
            for each in _parts(catalyst, plan, patterns.CAST()):
                if _makes_special(jvm, each):
                    return str(each.sql())
        waiting += [
            each.plan() for each in _parts(catalyst, plan, patterns.PLAN_EXPRESSION()) if catalyst.is_subquery(each)
        ]
    return ""


def _parts(catalyst: Catalyst, plan: Plan, pattern: Any) -> Iterator[Plan | Expression]:
    """Yield the nodes in which the pattern is found, but those of subqueries."""
    waiting = [plan]
    while waiting:
        each = waiting.pop()
        if each.containsPattern(pattern):
            yield each
            waiting += catalyst.children(each) if catalyst.is_subquery(each) else catalyst.parts(each)


def _makes_special(jvm: Any, node: Plan | Expression) -> bool:
    if str(node.getClass().getSimpleName()) != "Cast":
        return False
    text = node.child()
    if not text.foldable() or not str(text.dataType().catalogString()).startswith("string"):
        return False
    value = text.eval(None)
    return value is not None and _is_special(jvm, str(value))


def _is_special(jvm: Any, text: str) -> bool:
    times = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils
    found = times.convertSpecialTimestamp(text, jvm.java.time.ZoneOffset.UTC).isDefined()
    return bool(found) and not text.strip().lower().startswith(_CONSTANT)
