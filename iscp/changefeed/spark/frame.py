"""A changefeed behind a cursor as a frame of Spark, of only those files that may have rows there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from iscp.adapters.delta.log.table_opening import list_again
from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.adapters.delta.storage.locations import on_s3, place
from iscp.changefeed.model.cursor import Cursor
from iscp.changefeed.spark.functions import listed
from iscp.changefeed.spark.plan import FeedPlan
from iscp.changefeed.table.feed_schema import SHARD, ULID_TEXT

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def frame_behind(spark: SparkSession, uri: str, cursor: Cursor | None) -> DataFrame:
    """Return the rows behind a cursor, or all that are left, as of now, in no order.

    Raises InvalidRequest for a cursor of another feed, CursorBehind, TableNotFound, ConfigurationError, StorageError.
    """
    plan = FeedPlan(uri)
    if cursor is not None:
        plan.own(cursor)
    with spark_faults(f"read the feed {uri}"):
        log, snapshot = list_again(partial(_snapshot, spark, spark_place(spark, uri)))
        # After the files: what was purged of those is known then.
        behind = plan.first_cursor() if cursor is None else plan.refuse_purged(cursor)
        shards = plan.shards
        chosen = snapshot.allFiles().filter(_may_lie_behind(behind, shards)._jc).collectAsList()
        rest = [getattr(log, f"createDataFrame$default${place_}")() for place_ in (3, 4)]
        files = spark._jvm.scala.jdk.javaapi.CollectionConverters.asScala(chosen).toSeq()  # type: ignore[union-attr]
        frame = DataFrame(log.createDataFrame(snapshot, files, *rest), spark)
        return frame.where(F.col(ULID_TEXT) > _ulid_of(behind, shards, F.col(SHARD)))


def spark_place(spark: SparkSession, uri: str) -> str:
    """Return the place of a table for Hadoop: its scheme for S3 is `s3a`, unless it was set otherwise, and a local path
    gets the scheme `file`, as the default may be another file system.
    """
    at = place(uri)
    if not on_s3(at):
        return f"file:{at}"
    if spark._jsc.hadoopConfiguration().get("fs.s3.impl"):
        return at
    return at.replace("s3://", "s3a://", 1)


def _snapshot(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """Return Delta's log of the table, and its newest snapshot."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, uri)
    return log, log.update(*(getattr(log, f"update$default${number}")() for number in (1, 2, 3)))


def _may_lie_behind(cursor: Mapping[int, str], shards: int) -> Column:
    """Return the condition that a file, as the log has it, may have rows behind the cursor."""
    shard = F.col("partitionValues")[SHARD].cast("int")
    last = F.get_json_object("stats", f"$.maxValues.{ULID_TEXT}")
    return F.coalesce(last > _ulid_of(cursor, shards, shard), F.lit(True))


def _ulid_of(cursor: Mapping[int, str], shards: int, shard: Column) -> Column:
    """Return the ulid of a file's shard in the cursor, without a condition for each shard: there may be many."""
    return F.get(listed(cursor.get(number, "") for number in range(shards)), shard)
