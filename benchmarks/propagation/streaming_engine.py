"""Structured Streaming with MERGE: a streaming query for each derived table, on the change data feeds of its inputs.

What its users would write by hand is written once here, from what `Derived` says. A batch of a table that is made row
by row is reduced to the last change of each key, and merged. For other tables the parts that the changed rows are in
are computed again from the inputs as they are, and merged: rows that differ are updated, and those of these parts that
are no more are deleted. A change that concerns no part, or too many, has all rows computed and merged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable as SparkDeltaTable
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from benchmarks.propagation.engine import Engine, Tables
from benchmarks.propagation.medallion import Derived, Kind
from iscp.delta.log.commits import newest_version
from iscp.spark.session import SparkRuntime, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS_MAX = 1_000
"""Parts that a condition may name; where more have changed, all rows are computed."""

WAIT_S, POLL_S = 600.0, 0.05
NO_OFFSET = "-"
"""What stands in a query's log for a source of which nothing was read."""

CONF = {"spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true"}
"""What is derived is read by queries above it."""


class StreamingEngine(Engine):
    """`interval_s`: each query begins a batch at most once in this time."""

    def __init__(self, tables: Tables, *, interval_s: float) -> None:
        self._tables = tables
        self._interval_s = interval_s
        self._spark = SparkRuntime.start(SparkSettings(work_dir=tables.folder.parent / "spark-work", conf=CONF))
        self._queries: list[Any] = []

    def create(self) -> None:
        for each in self._tables.derived:
            self._create_table(each)
        self.resume()

    def resume(self) -> None:
        self._queries = [self._follow(each) for each in self._tables.derived]

    def recompute(self, changed: Iterable[str]) -> None:
        """The queries see by themselves that there are changes."""

    def settle(self) -> None:
        """Return when each query, after those below it, has processed the newest version of its inputs."""
        until_s = time.monotonic() + WAIT_S
        for each, query in zip(self._tables.derived, self._queries, strict=True):
            while not self._has_caught_up(each):
                if query.exception() or time.monotonic() > until_s:
                    raise RuntimeError(f"{each.name} has not caught up: {query.exception()}")
                time.sleep(POLL_S)

    def stop(self) -> None:
        for query in self._queries:
            query.stop()
        self._spark.stop()

    def _create_table(self, derived: Derived) -> None:
        rows = self._spark.root.sql(self._tables.spark_sql(derived)).limit(0)
        if derived.kind is Kind.FEED:
            rows = _as_feed(rows.withColumns({"_change_type": F.lit(""), "_commit_version": F.lit(0).cast("long")}))
        rows.write.format("delta").save(self._tables.uri(derived.name))

    def _checkpoint(self, derived: Derived) -> Path:
        return self._tables.folder / "checkpoints" / derived.name

    def _follow(self, derived: Derived) -> Any:
        if derived.row_wise or derived.kind is Kind.FEED:
            rows = self._changes(derived.inputs[0])
            write = _append if derived.kind is Kind.FEED else self._merge_rows
        else:
            parts = (
                self._changes(name).selectExpr(f"CAST({derived.parts.get(name, 'NULL')} AS STRING) AS part")
                for name in derived.inputs
            )
            rows, write = reduce(lambda one, other: one.union(other), parts), self._merge_parts
        return (
            rows.writeStream.foreachBatch(partial(write, derived, self._tables))
            .queryName(derived.name)
            .option("checkpointLocation", str(self._checkpoint(derived)))
            .trigger(processingTime=f"{round(self._interval_s * 1000)} milliseconds")
            .start()
        )

    def _changes(self, name: str) -> DataFrame:
        stream = self._spark.root.readStream.format("delta").option("readChangeFeed", "true")
        return stream.option("startingVersion", 0).load(self._tables.uri(name))

    @staticmethod
    def _merge_rows(derived: Derived, tables: Tables, batch: DataFrame, number: int) -> None:
        last = Window.partitionBy(*derived.key).orderBy(
            F.col("_commit_version").desc(), F.col("_change_type").isin("delete").asc()
        )
        net = batch.where("_change_type <> 'update_preimage'").withColumn("_place", F.row_number().over(last))
        net = net.where("_place = 1").drop("_place")
        session, name = batch.sparkSession, f"changes_of_{derived.name}"
        net.where("_change_type <> 'delete'").drop(
            "_change_type", "_commit_version", "_commit_timestamp"
        ).createOrReplaceTempView(name)
        written = session.sql(tables.spark_sql(derived, **{derived.inputs[0]: name})).withColumn("_there", F.lit(True))
        rows = net.select(*derived.key).join(written, list(derived.key), "left")
        columns = [column for column in written.columns if column != "_there"]
        values = {column: F.col(f"s.{column}") for column in columns}
        (
            _merge_of(session, tables, derived, rows)
            .whenMatchedDelete("s._there IS NULL")
            .whenMatchedUpdate(_differs(columns), values)
            .whenNotMatchedInsert("s._there", values)
            .execute()
        )

    @staticmethod
    def _merge_parts(derived: Derived, tables: Tables, batch: DataFrame, number: int) -> None:
        parts = [row["part"] for row in batch.distinct().limit(PARTS_MAX + 1).collect()]
        if not parts:
            return
        session = batch.sparkSession
        rows, gone = session.sql(tables.spark_sql(derived)), None
        if derived.part and None not in parts and len(parts) <= PARTS_MAX:
            kind = rows.selectExpr(derived.part).schema[0].dataType
            named = F.expr(derived.part).isin([F.lit(part).cast(kind) for part in parts])
            rows = rows.where(named)
            columns = ("t." + word if word in rows.columns else word for word in derived.part.split())
            gone = F.expr(" ".join(columns)).isin([F.lit(part).cast(kind) for part in parts])
        (
            _merge_of(session, tables, derived, rows)
            .whenMatchedUpdate(_differs(rows.columns), {name: F.col(f"s.{name}") for name in rows.columns})
            .whenNotMatchedInsertAll()
            .whenNotMatchedBySourceDelete(gone)
            .execute()
        )

    def _has_caught_up(self, derived: Derived) -> bool:
        """Return whether the last batch that has ended is up to the newest versions, by the query's checkpoint."""
        folder = self._checkpoint(derived)
        numbers = [int(path.name) for path in (folder / "commits").glob("[0-9]*") if path.name.isdigit()]
        if not numbers:
            return False
        lines = (folder / "offsets" / str(max(numbers))).read_text().splitlines()[2:]
        newest = [newest_version(self._tables.uri(name)) for name in derived.inputs]
        return all(_covers(line, version) for line, version in zip(lines, newest, strict=True))


def _covers(offset: str, version: int) -> bool:
    """Return whether an offset of Delta's is behind all files of a version; none of them has too many for a batch."""
    if offset == NO_OFFSET:
        return False
    found: dict[str, Any] = json.loads(offset)
    at = int(found["reservoirVersion"]), int(found["index"])
    return at[0] > version or (at[0] == version and at[1] >= 0)


def _merge_of(session: SparkSession, tables: Tables, derived: Derived, rows: DataFrame) -> Any:
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in derived.key)
    return SparkDeltaTable.forPath(session, tables.uri(derived.name)).alias("t").merge(rows.alias("s"), same)


def _differs(columns: Iterable[str]) -> str:
    """What a row that is there differs from, so that those which are the same are not written."""
    return f"NOT ({' AND '.join(f't.{name} <=> s.{name}' for name in columns)})"


def _as_feed(changes: DataFrame) -> DataFrame:
    columns = [name for name in changes.columns if name not in ("_change_type", "_commit_version", "_commit_timestamp")]
    return changes.select(
        F.col("_change_type").alias("operation"),
        F.col("_commit_version").alias("version"),
        F.struct(*columns).alias("row"),
    )


def _append(derived: Derived, tables: Tables, batch: DataFrame, number: int) -> None:
    rows = _as_feed(batch).write.format("delta").mode("append")
    # A batch that is repeated after a crash is left out.
    rows.option("txnAppId", derived.name).option("txnVersion", number).save(tables.uri(derived.name))
