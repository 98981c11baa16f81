"""Hands rows in this process's memory to Spark, and takes all rows of a frame from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.spark.text_bytes import are_utf8
from iscp.adapters.system.late_imports import A, F, T
from iscp.core.sql.sql_names import quoted
from iscp.ports.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of_arrow(session: SparkSession, rows: pa.Table, schema: T.StructType | None = None) -> DataFrame:
    """Return a frame of `rows`, by `createDataFrame` and without two of its faults: it takes a batch without rows for
    the end, and loses what comes after; and it fails at an array's column without any batch.
    """
    batches = [batch for batch in rows.to_batches() if len(batch)]
    if not batches:
        batches = [pa.RecordBatch.from_arrays([pa.array([], each.type) for each in rows.schema], schema=rows.schema)]
    filled = pa.Table.from_batches(batches, rows.schema)
    return session.createDataFrame(filled) if schema is None else session.createDataFrame(filled, schema)


def rows_of_table(session: SparkSession, table: pa.Table) -> Rows:
    """Return few rows for whoever writes them; the session makes a frame of them only where one is wanted."""
    return Rows(lambda: frame_of_arrow(session, table), lambda: table)


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Return these columns as Spark has them; an instant without a zone stays one."""
    return A.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def columns_of(rows: Rows) -> T.StructType:
    """Return the columns of `rows` as Spark has them, without making a frame where there is a table."""
    return rows.frame.schema if rows.table is None else spark_schema(rows.table.schema)


def utf8_rows(frame: DataFrame) -> pa.Table | None:
    """Return the frame's rows; None if some texts are no UTF-8, so that only Spark can work with these rows."""
    rows = frame.toArrow()
    return rows if are_utf8(rows) else None


def arrow_of_frame(frame: DataFrame) -> pa.Table:
    """Return the frame's rows with all columns nullable: `toArrow` fails at a null struct whose fields may not
    be null.
    """
    wide = T.StructType.fromJson(json.loads(frame._jdf.schema().asNullable().json()))
    if wide == frame.schema:
        return frame.toArrow()
    return frame.select(*[F.col(quoted(each.name)).cast(each.dataType).alias(each.name) for each in wide]).toArrow()
