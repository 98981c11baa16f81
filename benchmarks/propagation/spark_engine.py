"""Plain recomputation by Spark, in one session that stays, with the settings of a node."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.propagation.engine import Engine, Tables
from benchmarks.propagation.medallion import below
from iscp.spark.session import SparkRuntime, SparkSettings


class SparkEngine(Engine):
    """Each refresh overwrites all tables below the changed ones."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._spark = SparkRuntime.start(SparkSettings(work_dir=tables.folder.parent / "spark-work"))

    def create(self) -> None:
        self.recompute(self._tables.sources)

    def resume(self) -> None:
        """There is nothing that it would have to know."""

    def recompute(self, changed: Iterable[str]) -> None:
        for each in below(changed, self._tables.derived):
            rows = self._spark.root.sql(self._tables.spark_sql(each))
            rows.write.format("delta").mode("overwrite").save(self._tables.uri(each.name))

    def settle(self) -> None:
        """A refresh has ended when it is answered."""

    def stop(self) -> None:
        self._spark.stop()
