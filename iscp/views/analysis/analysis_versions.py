"""The versions of the programs on which it depends what is found in the plan of a query."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from types import MappingProxyType

from iscp.adapters.delta.spark.jars import delta_release


@lru_cache(maxsize=1)
def analysis_versions() -> Mapping[str, str]:
    """Return the versions of Spark, Delta and DuckDB, as they are installed; no JVM is needed for that."""
    return MappingProxyType({"spark": version("pyspark"), "delta": delta_release(), "duckdb": version("duckdb")})
