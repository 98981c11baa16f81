"""Finds Delta tables by path, URI, or name in a catalog of Spark, and tells what they are (port Catalog)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from iscp.adapters.delta import storage
from iscp.adapters.delta.commits import APP_ID, local_path, newest_version, read_commit
from iscp.adapters.delta.faults import delta_faults, storage_faults
from iscp.adapters.delta.neighbours import table_around
from iscp.adapters.delta.spark_faults import spark_faults
from iscp.adapters.delta.target import target_fault
from iscp.core.errors import EngineError, InvalidRequest, StorageError, TableNotFound
from iscp.ports.pipeline import TableDescription

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOG_NAME = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}$")
_NOT_THERE = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE")
_CATALOG_MANAGED = ("catalog-managed table", "coordinatedCommits")
"""What deltalake says of such a table: it does not open it."""


def name_resolver(session: SparkSession) -> Callable[[str], str]:
    """Maps `db.table` to its location, by the catalogs that Spark is configured with."""

    def resolve(name: str) -> str:
        try:
            with spark_faults(f"look up {name}"):
                detail = session.sql(f"DESCRIBE DETAIL {name}").first()
        except EngineError as error:
            if any(mark in error.message for mark in _NOT_THERE):
                raise TableNotFound(
                    f"{name} is not a table of the catalog", field="table", remedy="Check the name; or give the path"
                ) from error
            raise
        return str(detail["location"] if detail else "")

    return resolve


def condition_analyzer(session: SparkSession) -> Callable[[str, str], str]:
    """Says why Spark's analyzer refuses a condition (2nd argument) on rows of a schema (1st, JSON); runs no job."""

    jvm: Any = session._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern

    def analyze(schema_json: str, condition: str) -> str:
        with spark_faults("analyze a condition"):
            rows = session.createDataFrame([], StructType.fromJson(json.loads(schema_json)))
            try:
                plan = rows.where(condition)._jdf.queryExecution().analyzed()
            except AnalysisException as error:
                return str(error).splitlines()[0]
            # The time and the user are taken for constants there, of each query anew.
            changing = not plan.deterministic() or plan.containsPattern(patterns.CURRENT_LIKE())
            return "its outcome changes each time that it is looked at" if changing else ""

    return analyze


class DeltaCatalog:
    """Describes tables through deltalake (no JVM for paths); names are resolved by `resolve_name`.

    `resolve_name` maps `db.table` to a location; None: no catalog is configured. `analyze` is a `condition_analyzer`;
    None: every condition passes. `s3`: Spark and the log store were set up for S3.
    """

    def __init__(
        self,
        resolve_name: Callable[[str], str] | None = None,
        analyze: Callable[[str, str], str] | None = None,
        *,
        s3: bool = False,
    ) -> None:
        self._resolve_name = resolve_name
        self._analyze = analyze
        self._s3 = s3

    def normalize(self, uri: str) -> str:
        """An absolute path without a trailing slash or links, or `s3://BUCKET/KEY`.

        Raises InvalidRequest for other stores.
        """
        if not uri.strip():
            raise InvalidRequest("is empty", field="table", remedy="Give a path or a URI")
        if storage.on_s3(uri):
            if not self._s3:
                raise InvalidRequest(
                    "lies on S3, for which the node is not set up",
                    field="table",
                    remedy="Use a path, or set storage.s3.region in the node's configuration",
                )
            return storage.s3_place(uri)
        return str(Path(local_path(uri)).resolve())

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        return self._analyze(table.schema_json, condition) if self._analyze else ""

    def table_around(self, uri: str) -> str:
        with storage_faults(f"look around {uri}"):
            return table_around(uri)

    def has_version(self, uri: str, version: int) -> bool:
        return read_commit(uri, version) is not None

    def newest_version(self, uri: str) -> int:
        return newest_version(uri)

    def describe(self, table: str) -> TableDescription:
        """Raises TableNotFound, InvalidRequest (a table that the catalog manages, another store), StorageError."""
        uri = self._location(table)
        try:
            version = newest_version(uri)
            with delta_faults(f"open {table}"):
                opened = DeltaTable(uri)
        except TableNotFound as error:
            raise TableNotFound(
                f"{table} is not a Delta table", field="table", remedy="Check the path; create the table first"
            ) from error
        except StorageError as error:
            if any(mark in error.message for mark in _CATALOG_MANAGED):
                raise InvalidRequest(
                    "has its commits managed by a catalog, which iscp cannot follow",
                    field="table",
                    remedy="Drop the table feature that does it (catalogManaged, coordinatedCommits-preview)",
                ) from error
            raise
        metadata = opened.metadata()
        commit = read_commit(uri, version)
        return TableDescription(
            table_id=str(metadata.id),
            name=table,
            uri=uri,
            version=version,
            committed_at_s=commit.committed_at_s if commit else 0.0,
            columns={f.name: str(f.type.type if hasattr(f.type, "type") else f.type) for f in opened.schema().fields},
            configuration=dict(metadata.configuration),
            sink_seq=opened.transaction_version(APP_ID) or 0,
            empty=not opened.file_uris(),
            schema_json=opened.schema().to_json(),
            target_fault=target_fault(opened),
        )

    def _location(self, table: str) -> str:
        if self._resolve_name and _CATALOG_NAME.match(table):
            return self.normalize(self._resolve_name(table))
        return self.normalize(table)
