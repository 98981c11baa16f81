"""Have Spark analyze a filter, without reading a row, and say why it does not take it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from iscp.adapters.delta.spark.spark_engine import session_of
from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.adapters.delta.spark.user_sql import restrict_condition
from iscp.adapters.system.late_imports import E, T
from iscp.core.sql.sql_bounds import too_deep
from iscp.core.values.untrusted_values import first_line
from iscp.views.analysis.query_analysis import STACK_FULL
from iscp.views.catalyst.special_times import special_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AnalyzeCondition = Callable[[str, str], str]
"""A function that returns why a condition (2nd) on rows of a schema (1st, JSON) is refused; empty: it is not. It raises
InvalidRequest for a condition that reads more than the rows.
"""


def condition_analyzer(beside: SparkSession) -> AnalyzeCondition:
    """Return a function that analyzes conditions in a session of its own; it runs no job."""
    session = session_of(beside.newSession)
    jvm: Any = session._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern

    def analyze(schema_json: str, condition: str) -> str:
        with spark_faults("analyze a condition"):
            schema = T.StructType.fromJson(json.loads(schema_json))
            rows = session.createDataFrame(session.sparkContext.emptyRDD(), schema)
            try:
                restrict_condition(session, condition)
                execution = rows.where(condition)._jdf.queryExecution()
                execution.optimizedPlan()  # where constants are computed: what ends Spark ends it here, and not later
                plan = execution.analyzed()
            except E.AnalysisException as error:
                return first_line(error)
            except Py4JJavaError as error:
                if STACK_FULL in str(error):
                    raise too_deep("where") from error
                raise
            # The time and the user are taken for constants there, of each query again.
            changing = not plan.deterministic() or plan.containsPattern(patterns.CURRENT_LIKE())
            by = special_time(session, condition, plan)
            because = f", by {by}, of which Spark makes the time at which it reads the condition" if by else ""
            return f"its outcome changes each time that it is evaluated{because}" if changing or by else ""

    return analyze
