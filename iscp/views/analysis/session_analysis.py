"""Analyze users' SQL in this process: for SQL that is trusted, as it may end the process.

The versions of the programs on which it depends what is found in the plan of a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING

from iscp.ports.engine import leave_to_spark
from iscp.spark.java import delta_release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iscp.model.query_plan import QueryShape


class SessionAnalysis:
    """The analysis by a session of Spark (port SqlAnalysis of the catalog), whose code is loaded when it is needed."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        from iscp.views.analysis.query_analysis import query_shaper

        leave_to_spark("its query is analyzed")
        return query_shaper(self._session)(sql, schemas)

    def condition_fault(self, schema_json: str, condition: str) -> str:
        from iscp.views.analysis.query_analysis import condition_analyzer

        leave_to_spark("its filter is analyzed")
        return condition_analyzer(self._session)(schema_json, condition)


@lru_cache(maxsize=1)
def analysis_versions() -> Mapping[str, str]:
    """Return the versions of Spark, Delta and DuckDB, as they are installed; no JVM is needed for that."""
    return MappingProxyType({"spark": version("pyspark"), "delta": delta_release(), "duckdb": version("duckdb")})
