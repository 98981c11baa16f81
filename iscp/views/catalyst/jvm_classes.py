"""The JVM's classes that plans are built of."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


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
