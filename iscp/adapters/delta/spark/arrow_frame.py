"""Hands rows that are held in this process to Spark, all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def frame_of_arrow(session: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """As `createDataFrame`, which loses whatever comes after a batch without rows: Spark takes that for the end."""
    batches = [batch for batch in rows.to_batches() if len(batch)]
    filled = pa.Table.from_batches(batches, rows.schema)
    return session.createDataFrame(filled) if schema is None else session.createDataFrame(filled, schema)
