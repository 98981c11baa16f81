"""Delta tables as users name them: finds them, describes them (port Catalog), sets their properties, holds what they
retain, and compares their columns with those before.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from iscp.delta.log.commits import APP_ID, log_of, newest_version, read_commit
from iscp.delta.log.live_files import LoadState, NotReadableHere, load_plain_state
from iscp.delta.log.readable_files import logs_at, table_around
from iscp.delta.log.table_opening import target_fault
from iscp.delta.rows.net_changes import arrow_schema, fits_arrow, holds
from iscp.delta.source.arrow_read import Shape, has_special_texts
from iscp.delta.source.open_table import BrokenLogError, BySpark, open_version, size_at
from iscp.delta.source.spark_read import state_loader, table_opener
from iscp.model.job.source_holds import hold_properties
from iscp.model.job.start_rule import TargetLog
from iscp.model.query_plan import QueryShape
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import EngineError, ErrorCode, InvalidRequest, TableNotFound
from iscp.model.values.ids import table_id_fault
from iscp.model.values.progress import TableSize
from iscp.model.values.untrusted_values import exact_name, exact_version
from iscp.model.values.watermark import lost_fields, physical_name, void_fields
from iscp.ports.source import TableDescription
from iscp.spark.spark_errors import spark_faults
from iscp.storage import files
from iscp.storage.delta_errors import delta_faults, storage_faults
from iscp.storage.files import missing_parent
from iscp.storage.locations import first_link, local_path, refuse_no_path, s3_place
from iscp.system.late_imports import T

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- the catalog ------------------------------------------------------------------------------------------------------

_CATALOG_NAME = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}$")
_NOT_THERE = (
    "TABLE_OR_VIEW_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "REQUIRES_SINGLE_PART_NAMESPACE",  # by Spark's own catalog, where a name begins with a catalog that there is not
)
SINK_COMMITS_MAX = 50
"""Newest commits of a table among which the last one of a job that keeps it is searched; if it is none of them, it is
not known whose the table is.
"""

_NOT_WRITTEN = ("is one that deltalake does not open, so that it cannot be committed to", "Choose a new path")


def name_resolver(session: SparkSession) -> Callable[[str], str]:
    """Return a function that maps `db.table` to its location, by the catalogs that Spark is configured with."""

    def resolve(name: str) -> str:
        try:
            with spark_faults(f"resolve {name}"):
                detail = session.sql(f"DESCRIBE DETAIL {name}").first()
        except EngineError as error:
            if any(mark in error.message for mark in _NOT_THERE):
                raise TableNotFound(
                    f"{name} is not a table of the catalog",
                    about="table",
                    remedy="Check the name; or give the path, as --table NAME=URI does for views",
                ) from error
            raise
        return str(detail["location"] if detail else "")

    return resolve


class SqlAnalysis(Protocol):
    """Analyzes SQL that is not trusted.

    `query_shape` returns the shape of a query over tables with these schemas. `condition_fault` returns what is wrong
    with a condition over a schema, and an empty text if nothing is.
    """

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape: ...

    def condition_fault(self, schema_json: str, condition: str) -> str: ...


class DeltaCatalog:
    """Finds Delta tables by path, URI, or name in a catalog of Spark, and describes them through deltalake (no JVM for
    paths).

    `resolve_name` maps `db.table` to a location; None: no catalog is configured. `analysis` takes users' SQL; None:
    every condition passes, and there are no queries. `s3`: Spark and the log store were set up for S3. `by_spark` opens
    tables that deltalake does not; None: nobody does. `load_state` is a `state_loader`.
    """

    def __init__(
        self,
        resolve_name: Callable[[str], str] | None = None,
        analysis: SqlAnalysis | None = None,
        *,
        s3: bool = False,
        by_spark: BySpark | None = None,
        load_state: LoadState = load_plain_state,
    ) -> None:
        self._resolve_name = resolve_name
        self._analysis = analysis
        self._s3 = s3
        self._by_spark = by_spark
        self._load_state = load_state

    @classmethod
    def of(cls, session: SparkSession, analysis: SqlAnalysis, *, s3: bool = False) -> DeltaCatalog:
        """Return one with all that a session of Spark adds: names, and tables that deltalake does not open."""
        return cls(
            name_resolver(session),
            analysis,
            s3=s3,
            by_spark=table_opener(session),
            load_state=state_loader(session),
        )

    def normalize(self, uri: str) -> str:
        """Return an absolute path without a trailing slash or links, or `s3://BUCKET/KEY`.

        Raises InvalidRequest for other stores.
        """
        if not uri.strip():
            raise InvalidRequest("is empty", field="table", remedy="Give a path or a URI")
        path = local_path(uri)
        if path is None:
            if not self._s3:
                raise InvalidRequest(
                    "lies on S3, for which the node is not set up",
                    field="table",
                    remedy="Use a path, or set storage.s3.region in the node's configuration",
                )
            return s3_place(uri)
        refuse_no_path(path)
        return os.path.realpath(path)

    def locate(self, table: str) -> str:
        return self.normalize(self._place(table))

    def _place(self, table: str) -> str:
        """Return the place of a table, unfollowed; the catalog's, if it is named as in a catalog."""
        return self._resolve_name(table) if self._resolve_name and _CATALOG_NAME.match(table) else table

    def refuse_links(self, table: str) -> None:
        where = self._place(table)
        leads_to, path = self.normalize(where), local_path(where)
        if path is not None and (link := first_link(path)):
            raise InvalidRequest(
                f"{table} leads through the link {link} to {leads_to}; nobody would notice the link being switched to "
                "another table",
                about="table",
                remedy=f"Give the path that it leads to: {leads_to}",
            )

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        if self._analysis is None or _is_plain(condition, table.schema_json):
            return ""
        return self._analysis.condition_fault(table.schema_json, condition)

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        if self._analysis is None:
            raise InvalidRequest(
                "cannot be analyzed, as there is no engine here", field="sql", remedy="Use a node that has one"
            )
        return self._analysis.query_shape(sql, schemas)

    def logs_at(self, uri: str) -> frozenset[TargetLog]:
        with storage_faults(f"list {uri}"):
            return logs_at(uri)

    def table_around(self, uri: str) -> str:
        with storage_faults(f"search around {uri}"):
            return table_around(uri)

    def missing_parent(self, uri: str) -> str:
        return missing_parent(uri)

    def has_version(self, uri: str, version: int) -> bool:
        return read_commit(uri, version) is not None

    def newest_version(self, uri: str) -> int:
        return newest_version(uri)

    def size(self, uri: str) -> TableSize:
        """Return the table's size without rows that are marked as deleted, for which the log is read file by file."""
        version = newest_version(uri)
        found = size_at(uri, version)
        with suppress(NotReadableHere):
            if found.rows < 0 and (rows := self._load_state(uri, version).rows) is not None:
                return replace(found, rows=rows)
        return found

    def describe(self, table: str) -> TableDescription:
        """Raises TableNotFound, InvalidRequest (another store, or no engine reads it), StorageError."""
        uri = self.locate(table)
        try:
            version = newest_version(uri)
        except TableNotFound as error:
            raise _without_commits(table, uri) from error
        try:
            shape, handle = open_version(uri, version, self._by_spark)
        except BrokenLogError as error:
            raise InvalidRequest(
                f"{table} {error.message}", about="table", remedy=error.remedy, code=ErrorCode.TABLE_UNREADABLE
            ) from error
        _refuse_shape(table, shape)
        commit = read_commit(uri, version)
        described = TableDescription(
            table_id=shape.table_id,
            name=table,
            uri=uri,
            version=version,
            committed_at_s=commit.committed_at_s if commit else 0.0,
            columns={field["name"]: _type_name(field["type"]) for field in shape.every_field},
            configuration=dict(shape.configuration),
            schema_json=shape.schema_json,
            void=void_fields(shape.every_field),
            collated=shape.collated,
            empty=False,
            target_fault=_NOT_WRITTEN,
        )
        if handle is None:
            return described
        with delta_faults(f"open {table}"):
            sink_seq = handle.transaction_version(APP_ID) or 0
            return replace(
                described,
                sink_seq=sink_seq,
                sink_job_id=_job_id_of(uri, version, sink_seq) if sink_seq else "",
                empty=not handle.file_uris(),
                target_fault=target_fault(handle),
            )


def _refuse_shape(table: str, shape: Shape) -> None:
    if fault := table_id_fault(shape.table_id):
        why = f"has {fault}"
        remedy = "Copy the table to a new one by Spark or deltalake, which give it an id"
    elif not shape.fields:
        why, remedy = "has no columns", "Register the job when it has some"
    elif shape.doubled:
        named = " and ".join(shape.doubled)
        why = f"has columns whose names differ by case alone, which Spark does not distinguish: {named}"
        remedy = "Rename or drop one of them"
    else:
        return
    raise InvalidRequest(f"{table} {why}", about="table", remedy=remedy, code=ErrorCode.TABLE_UNREADABLE)


def _without_commits(table: str, uri: str) -> InvalidRequest | TableNotFound:
    """A log may have checkpoints alone: deltalake then reads the table, and neither it nor Spark commits to it."""
    with storage_faults(f"list the log of {table}"):
        checkpointed = any(".checkpoint." in name for name in files.names(log_of(uri)))
        indexed = TargetLog.LANCE in logs_at(uri)
    if checkpointed:
        return InvalidRequest(
            f"{table} has checkpoints but no commit in its log, and Spark reads no such table",
            about="table",
            remedy="Restore the newest commit's file from a backup, or copy the rows to a new table, as deltalake can",
            code=ErrorCode.TABLE_UNREADABLE,
        )
    if indexed:
        return InvalidRequest(
            f"{table} is an index, not a table",
            about="table",
            remedy="Name the table that the index follows",
            code=ErrorCode.TABLE_UNREADABLE,
        )
    return TableNotFound(
        f"{table} is not a Delta table", about="table", remedy="Check the path; create the table first"
    )


def _job_id_of(uri: str, version: int, seq: int) -> str:
    """Return the registration whose commit has this seq, if that says which rows the table has."""
    for each in range(version, max(-1, version - SINK_COMMITS_MAX), -1):
        if (commit := read_commit(uri, each)) is None:
            return ""
        if commit.seq == seq:
            return _applied_by(commit.user_metadata)
    return ""


def _applied_by(user_metadata: str) -> str:
    try:
        tag = json.loads(user_metadata)
        return exact_name(tag["job_id"], "job_id") if exact_version(tag["to"], "to") >= 0 else ""
    except (ValueError, KeyError, TypeError, RecursionError):  # others may have written anything
        return ""


def _type_name(given: str | dict[str, Any]) -> str:
    return given if isinstance(given, str) else str(given["type"])


def _is_plain(condition: str, schema_json: str) -> bool:
    """Return whether a condition on rows of this schema is decided without Spark, which takes all such conditions."""
    from iscp.algebra.row_conditions import passing_rows  # only who registers a condition needs it

    fields = [
        field for field in json.loads(schema_json)["fields"] if not has_special_texts([field.get("metadata") or {}])
    ]
    each = [T.StructType.fromJson({"type": "struct", "fields": [{**field, "metadata": {}}]}) for field in fields]
    plain = T.StructType([field for schema in each if fits_arrow(schema, ()) for field in schema.fields])
    return passing_rows(arrow_schema(plain).empty_table(), condition) is not None


# --- properties -------------------------------------------------------------------------------------------------------
# The properties of a user's table are set by Spark: deltalake unsets none.

SetProperties = Callable[[str, Mapping[str, str | None]], None]
"""Sets properties of the table at a URI; None unsets one."""


def property_setter(session: SparkSession) -> SetProperties:
    return lambda uri, values: set_properties(session, uri, values)


def set_properties(session: SparkSession, uri: str, values: Mapping[str, str | None]) -> None:
    """Set the properties, then unset others: each is a commit of its own, and after the first nothing is lost yet.

    Raises Conflict where another writer was first.
    """
    given = [f"{_text(name)} = {_text(value)}" for name, value in values.items() if value is not None]
    gone = [_text(name) for name, value in values.items() if value is None]
    table = f"delta.{quoted(uri)}"
    with spark_faults(f"set properties of {uri}"):
        if given:
            session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({', '.join(given)})")
        if gone:
            session.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ({', '.join(gone)})")


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- holds ------------------------------------------------------------------------------------------------------------


class DeltaRetentionHold:
    """Holds of jobs on Delta tables, by properties of the tables themselves (port RetentionHold).

    Raises the properties by which Delta retains files and commits, and sets them back. `read_properties` returns a
    table's properties as of now.
    """

    def __init__(self, read_properties: Callable[[str], Mapping[str, str]], set_properties: SetProperties) -> None:
        self._read_properties = read_properties
        self._set_properties = set_properties

    def hold(self, uri: str, holder: str, hold_s: float) -> bool:
        changes = hold_properties(self._read_properties(uri), holder, hold_s)
        if changes:
            self._set_properties(uri, changes)
        return bool(changes)

    def release(self, uri: str, holder: str) -> None:
        self.hold(uri, holder, 0.0)


# --- columns that were retyped or lost --------------------------------------------------------------------------------
# The columns of a table that have another type than before, whose values old files do not give, or that are gone. Spark
# reads a file's column as the type that the table has now. Mostly it fails where that is another one; but what was a
# time is then a number, and what does not fit in a smaller integer is cut off, without a word.

_PARTS = ("elementType", "keyType", "valueType")
_VOID = "void"


def retyped_columns(before: Iterable[str], now: str) -> tuple[str, ...]:
    """Return the columns of the schema `now` that had a type in one of those `before` whose files cannot be read as
    theirs.

    Schemas are texts, as Delta has them. A wider type reads the files of a narrower one (Delta's type widening).
    """
    earlier = [_by_name(json.loads(schema)) for schema in {*before} - {now}]
    present = _by_name(json.loads(now))
    return tuple(
        field["name"]
        for known, field in present.items()
        if any(not _reads(field["type"], then[known]["type"]) for then in earlier if known in then)
    )


def fields_lost(before: str, now: str) -> tuple[str, ...]:
    """Return the fields lost between two schemas in Delta's form, as `lost_fields`, without fields that are in
    no file.
    """
    then, present = (json.loads(schema)["fields"] for schema in (before, now))
    void = {path.lower() for path in void_fields(then)}
    return tuple(path for path in lost_fields(then, present) if path.lower() not in void)


def _by_name(struct: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {physical_name(field).lower(): field for field in struct["fields"]}


def _reads(now: Any, then: Any) -> bool:
    if now == then or _VOID in (now, then):
        return True  # a column of the type void is in no file
    if not (isinstance(now, Mapping) and isinstance(then, Mapping)):
        return isinstance(now, str) and isinstance(then, str) and holds(_parsed(now), _parsed(then))
    if now["type"] != then["type"]:
        return False
    if "fields" in now:
        before = _by_name(then)
        return all(
            _reads(field["type"], before[name]["type"]) for name, field in _by_name(now).items() if name in before
        )
    return all(_reads(now[part], then[part]) for part in _PARTS if part in now)


def _parsed(kind: str) -> T.DataType:
    """Return the type; for those that Spark does not know NullType, whose values fit no other type."""
    field = {"name": "it", "type": kind, "nullable": True, "metadata": {}}
    try:
        return T.StructType.fromJson({"type": "struct", "fields": [field]}).fields[0].dataType
    except ValueError:
        return T.NullType()
