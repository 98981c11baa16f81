"""Find the texts in SQL of which Spark makes the time at which it reads them.

Its parser does so with literals of a type (`timestamp'now'`), and its optimizer with constant texts that become times
(`CAST('today' AS DATE)`). So tokens and plans are searched, as these two have them: comments and texts that become no
time are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from iscp.core.values.untrusted_values import shown
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
