"""Cuts rows on their way to an index into tables of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from iscp.adapters.delta.spark.spark_engine import arrow_batches
from iscp.ports.rows import Rows

BATCH_ROWS_MAX = 50_000
"""Rows that are analysed and written at once; their vectors are in memory too."""

SHARED_KEY = "its key is shared by several rows"
"""The fault of a row whose key others have too."""


def index_tables(rows: Rows, rows_max: int = BATCH_ROWS_MAX) -> Iterator[pa.Table]:
    """Yield rows in tables of about so many, as Spark's batches are small."""
    if rows.table is not None:
        for start in range(0, len(rows.table), rows_max):
            yield rows.table.slice(start, rows_max)
        return
    gathered: list[pa.Table] = []
    count = 0
    for table in arrow_batches(rows.frame, rows_max):
        gathered.append(table)
        count += len(table)
        if count >= rows_max:
            yield pa.concat_tables(gathered)
            gathered, count = [], 0
    if count:
        yield pa.concat_tables(gathered)
