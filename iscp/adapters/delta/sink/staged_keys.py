"""Decides whether rows of staged files share a key, by their key columns alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from iscp.adapters.delta.rows.net_changes import has_own_keys
from iscp.adapters.delta.sink.staging import staged_paths, staged_rows
from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.adapters.delta.storage.delta_errors import delta_faults, direct_work
from iscp.adapters.delta.storage.table_files import files_of
from iscp.adapters.system.late_imports import F
from iscp.core.sql.sql_names import quoted
from iscp.ports.sink import Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS_CACHED_BYTES_MAX = 256 * 1024**2
"""Memory for the keys of staged rows; more of them are compared by Spark, which takes longer to begin."""

FILES_AT_ONCE = 16
"""Files whose keys are read side by side, as a store may take long to answer; others wait."""


def have_own_keys(session: SparkSession, uri: str, manifests: Sequence[Manifest], key: Sequence[str]) -> bool:
    """Return whether each row has a key that no other has; null equals null.

    The files are of tables without mapped names.
    """
    if not key or not manifests:
        return True
    fields = {field["name"].lower(): field for field in json.loads(manifests[0].schema_json)["fields"]}
    names = [str(fields[name.lower()]["name"]) for name in key]
    keys = _read_keys(uri, staged_paths(manifests), names)
    if keys is not None and has_own_keys(keys, names):
        return True
    # Rows that share one, or values that compare in Spark in a way of their own.
    with spark_faults(f"compare the keys of what is staged for {uri}"):
        rows = staged_rows(session, uri, manifests, names)
        counted = rows.groupBy(*[F.col(quoted(name)) for name in names]).agg(F.count("*").alias("_iscp_rows"))
        return counted.where("_iscp_rows > 1").isEmpty()


def _read_keys(uri: str, paths: Sequence[str], names: Sequence[str]) -> pa.Table | None:
    """Return the key columns of the files, or None if they take more memory than they are allowed."""
    store, left = files_of(uri), KEYS_CACHED_BYTES_MAX
    parts: list[pa.Table] = []

    def read(path: str) -> pa.Table:
        with store.open_input_file(path) as source:
            return pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read(list(names))

    with (
        direct_work(),
        delta_faults(f"read the keys of what is staged for {uri}"),
        ThreadPoolExecutor(FILES_AT_ONCE, "iscp-keys") as pool,
    ):
        for start in range(0, len(paths), FILES_AT_ONCE):
            some = list(pool.map(read, paths[start : start + FILES_AT_ONCE]))
            left -= sum(part.nbytes for part in some)
            if left < 0:
                return None
            parts += some
        return pa.concat_tables(parts)
