"""Decides whether rows of staged files share a key, by their key columns alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.rows.net_changes import has_own_keys
from iscp.adapters.delta.sink.staging import staged_paths, staged_rows
from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.adapters.delta.storage.bounded_parquet import Allowance, TooLargeError, open_parquet
from iscp.adapters.delta.storage.delta_errors import delta_faults, direct_work
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
    allowance, parts = Allowance(KEYS_CACHED_BYTES_MAX), list[pa.Table]()

    def read(path: str) -> pa.Table:
        with (
            open_parquet(uri, path, None) as file,
            allowance.reserve(file.decoded_bytes_max(file.groups, names, allowance.left)),
        ):
            rows = file.read_groups(file.groups, names, None)
            allowance.take(rows.nbytes)
            return rows

    with (
        direct_work(),
        delta_faults(f"read the keys of what is staged for {uri}"),
        ThreadPoolExecutor(FILES_AT_ONCE, "iscp-keys") as pool,
    ):
        for start in range(0, len(paths), FILES_AT_ONCE):
            try:
                parts += pool.map(read, paths[start : start + FILES_AT_ONCE])
            except TooLargeError:
                return None
        return pa.concat_tables(parts)
