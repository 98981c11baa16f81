"""Writes rows into a target, by deltalake or by Spark, each time in one commit that carries the job's seq and its tag;
and prepares what such commits need: conditions on keys, what an append-only target lacks, table features, and the table
itself.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from iscp.delta.log.commits import APP_ID, commit_file, commit_stamp
from iscp.delta.log.table_opening import add_actions_of, bring_up, guard_log, open_delta
from iscp.delta.rows.net_changes import OP, UnlikeSchemaError, alike, conformed, fits_arrow, narrowed, unified
from iscp.delta.rows.row_keys import TableKeys, bounds_of_arrow
from iscp.delta.sink.bag_write import VECTORS, content_of, heads
from iscp.delta.sink.sink_position import tag_json
from iscp.delta.sink.table_diff import comparing
from iscp.delta.source.spark_read import require_files_of
from iscp.model.rows.key_ranges import ABSENT_AFTER, ABSENT_BEFORE, Op
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import Conflict, EngineError, ErrorCode, PermanentError, TableNotFound
from iscp.ports.sink import CommitTag
from iscp.ports.source import KeysSharedError
from iscp.spark.spark_engine import settings_for
from iscp.spark.spark_errors import naming_lost_changes, spark_faults
from iscp.spark.spark_frames import REPLACEMENT, are_utf8, is_of_text_bytes
from iscp.storage import files
from iscp.storage.delta_errors import delta_faults, direct_work
from iscp.storage.s3_settings import table_options
from iscp.storage.table_files import files_of
from iscp.system.late_imports import F, T, pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


# --- conditions on keys -----------------------------------------------------------------------------------------------
# A condition holds for the rows with some keys and no others, in the SQL of deltalake's engine. Such a condition costs
# the engine little, however many columns a table has: its plan of a merge pairs each column of one side with all of the
# other's, which takes seconds for a thousand of them.

KEYS_NAMED_MAX = 2_000
"""Keys that a condition names; more are merged, whose costs do not grow with their number."""


def names_keys(keys: pa.Table) -> bool:
    """Return whether such a condition can be written. `keys` has no nulls."""
    kinds = keys.schema.types
    return 0 < len(keys) <= KEYS_NAMED_MAX and all(map(is_literal, kinds))


def key_predicate(keys: pa.Table) -> str:
    """Return the condition for all columns of `keys`, for which `names_keys` is True."""
    within = range_predicate(keys, keys.schema.names)  # by which files are left out, as they are not by long lists
    columns = [column.to_pylist() for column in keys.columns]
    names = [quoted(name) for name in keys.schema.names]
    if len(names) == 1:
        return f"{within} AND {names[0]} IN ({', '.join(map(literal, columns[0]))})"
    each = [
        " AND ".join(f"{name} = {literal(value)}" for name, value in zip(names, values, strict=True))
        for values in zip(*columns, strict=True)
    ]
    return f"{within} AND ({_any_of(each)})"


def range_predicate(keys: pa.Table, names: Sequence[str]) -> str:
    """Return a condition that holds for rows whose values of these columns lie between those of all `keys`.

    The condition is empty if it bounds no column.
    """
    ends = bounds_of_arrow(keys, names).items()
    called = {name.lower(): quoted(name) for name in names}
    return " AND ".join(f"{called[name]} BETWEEN {literal(low)} AND {literal(high)}" for name, (low, high) in ends)


def is_literal(kind: pa.DataType) -> bool:
    """Return whether `literal` writes values of this type."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def literal(value: int | str) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _any_of(conditions: Sequence[str]) -> str:
    """Join the conditions by OR, as a tree that is not deep: engines go down a condition by recursion."""
    if len(conditions) == 1:
        return f"({conditions[0]})"
    half = len(conditions) // 2
    return f"({_any_of(conditions[:half])} OR {_any_of(conditions[half:])})"


# --- writing without Spark --------------------------------------------------------------------------------------------
# Few rows are written without Spark: deltalake commits at exactly the version that it is given, or not. It does so only
# where the outcome is the same as Spark's: tables without features of their own, keys without nulls.

REWRITTEN_BYTES_MAX = 256 * 1024**2
"""Bytes of the files that a direct merge may have to rewrite; a larger merge goes to Spark, which spreads it over
tasks, and spills.
"""

MERGED_COLUMNS_MAX = 200
"""Columns of a target that deltalake merges changes into, which takes a tenth of a second of that many and grows with
their square; of more, rows are replaced by their keys where these are whole numbers and texts.
"""

_FEATURES = frozenset({"appendOnly", "invariants", "changeDataFeed", "timestampNtz", "v2Checkpoint"})
_WRITER_VERSION_MAX, _WRITER_VERSION_FEATURES = 4, 7
_CONSTRAINT = "delta.constraints."
_DIGITS_OF_A_DOUBLE = 15
KEY_TAKEN = "a key that is new is in the target already"


class DirectWriter:
    """Writes one target, which stays open from commit to commit, as opening costs with the log's length."""

    def __init__(
        self,
        uri: str,
        target_keys: TableKeys,
        rewritten_bytes_max: int = REWRITTEN_BYTES_MAX,
        merged_columns_max: int = MERGED_COLUMNS_MAX,
    ) -> None:
        self._uri = uri
        self._rewritten_bytes_max = rewritten_bytes_max
        self._merged_columns_max = merged_columns_max
        self._target_keys = target_keys
        self._table: DeltaTable | None = None
        self._stamp: tuple[int, ...] | None = None

    def append(self, rows: pa.Table, version: int, properties: CommitProperties) -> bool:
        """Commit the rows as version + 1, or return False where Spark has to do it. Raises Conflict."""
        with direct_work(), delta_faults(f"append to {self._uri}"):
            table = self._at(version)
            if not is_plain(table) or not is_described(rows):
                return False
            write_deltalake(table, rows, mode="append", commit_properties=properties)
            self._remember(table)
            return True

    def merge(self, rows: pa.Table, key: Sequence[str], version: int, properties: CommitProperties) -> bool:
        """Merge the rows as version + 1, or return False if Spark has to do it. Raises Conflict.

        Raises KeysSharedError if a key of op `i` or `p` is there already.
        """
        with direct_work(), delta_faults(f"merge into {self._uri}"):
            table = self._at(version)
            names = {name.lower(): name for name in rows.schema.names}
            keys = [names[name.lower()] for name in key]
            plain = is_plain(table) and is_described(rows) and all(_is_key(rows[name]) for name in keys)
            if not plain:
                return False
            files = add_actions_of(table)
            if not self._little(files, rows, keys) or _has_vague_ends(files, keys):
                return False
            try:
                self._refuse_taken(table, rows, keys)
                rows = rows.filter(pc.not_equal(rows[OP], Op.PASSED))
                if len(table.schema().fields) > self._merged_columns_max and names_keys(rows.select(keys)):
                    _replace(table, rows, keys, properties)
                elif len(rows):
                    _merge(table, rows, keys, properties)
            except (DeltaError, pa.ArrowInvalid) as error:
                if is_of_text_bytes(error):  # in a row that is there
                    return False
                raise
            if table.version() == version:  # it changed nothing; its seq has to be committed none the less
                table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
            self._remember(table)
            return True

    def _at(self, version: int) -> DeltaTable:
        table, self._table = self._table, None  # a handle that a write failed with is not used again
        if table is None or table.version() > version or commit_stamp(self._uri, table.version()) != self._stamp:
            table = open_delta(self._uri)
        elif table.version() < version:
            bring_up(table)
        if table.version() != version:
            raise Conflict(f"{self._uri} is at version {table.version()}, not at {version} any more")
        return table

    def _remember(self, table: DeltaTable) -> None:
        self._table, self._stamp = table, commit_stamp(self._uri, table.version())

    def _little(self, files: pa.Table, rows: pa.Table, keys: Sequence[str]) -> bool:
        """Return whether the files that may have the keys, by their statistics, have few enough bytes."""
        sizes = files["size_bytes"]
        if (pc.sum(sizes).as_py() or 0) <= self._rewritten_bytes_max:
            return True
        if "min" not in files.schema.names:
            return False
        bounded = {field.name for field in files.schema.field("min").type}
        names = [name for name in keys if is_literal(rows.schema.field(name).type) and name in bounded]
        for name, (low, high) in bounds_of_arrow(rows, names).items():
            at = next(each for each in bounded if each.lower() == name)
            outside = pc.or_kleene(
                pc.less(pc.struct_field(files["max"], at), low), pc.greater(pc.struct_field(files["min"], at), high)
            )
            sizes = pc.if_else(pc.fill_null(outside, False), 0, sizes)
        return bool(pc.sum(sizes).as_py() <= self._rewritten_bytes_max)

    def _refuse_taken(self, table: DeltaTable, rows: pa.Table, keys: Sequence[str]) -> None:
        """Raise KeysSharedError if the target has a key of op `i` or `p` already.

        Deltalake's merge cannot fail on a match, so that this is checked before; nobody can commit between.
        """
        new = rows.filter(pc.is_in(rows[OP], value_set=pa.array(ABSENT_BEFORE))).select(keys)
        names = [name for name in keys if is_literal(rows.schema.field(name).type)]
        if not len(new) or self._target_keys.lack(bounds_of_arrow(new, names), table.version()):
            return
        within = range_predicate(new, names) or "true"
        query = f"SELECT {', '.join(map(quoted, keys))} FROM t WHERE {within}"
        present = pa.table(QueryBuilder().register("t", table).execute(query)).cast(new.schema)
        if len(new.join(present, list(keys), join_type="inner")):
            raise KeysSharedError(KEY_TAKEN)


def _merge(table: DeltaTable, rows: pa.Table, keys: Sequence[str], properties: CommitProperties) -> None:
    columns = {quoted(name): f"s.{quoted(name)}" for name in rows.schema.names if name != OP}
    (
        table.merge(
            rows,
            " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in keys),
            source_alias="s",
            target_alias="t",
            # Otherwise it would not leave out files by the statistics of their keys.
            streamed_exec=False,
            commit_properties=properties,
        )
        .when_matched_delete(f"s.{OP} = '{Op.DELETE}'")
        .when_matched_update(columns)
        .when_not_matched_insert(columns, predicate=f"s.{OP} <> '{Op.DELETE}'")
        .execute()
    )


def _replace(table: DeltaTable, rows: pa.Table, keys: Sequence[str], properties: CommitProperties) -> None:
    """Merge rows whose keys can be named: those that are there go, and the others come."""
    names = {name.lower(): name for name in rows.schema.names}
    coming = rows.filter(pc.not_equal(rows[OP], Op.DELETE))
    # deltalake puts them beside what is left of files column by column, in order.
    in_order = {field.name: coming[names[field.name.lower()]] for field in table.schema().fields}
    predicate = key_predicate(rows.select(keys))
    write_deltalake(table, pa.table(in_order), mode="overwrite", predicate=predicate, commit_properties=properties)


def _has_vague_ends(files: pa.Table, keys: Sequence[str]) -> bool:
    """Return whether statistics of a key may be no bounds.

    Another character stands in them for bytes that are no UTF-8.
    """
    if "min" not in files.schema.names:
        return False
    called = {name.lower() for name in keys}
    for ends in ("min", "max"):
        for each in files.schema.field(ends).type:
            if each.name.lower() in called and _is_text(each.type):
                values = pc.struct_field(files[ends], each.name).cast(pa.string())
                if pc.any(pc.match_substring(values, REPLACEMENT)).as_py():
                    return True
    return False


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_key(column: pa.ChunkedArray) -> bool:
    """Return whether deltalake's merge finds rows by this column.

    Null is not equal to null there, and it refuses lists and structs.
    """
    return not column.null_count and not pa.types.is_nested(column.type)


def is_described(rows: pa.Table) -> bool:
    """Return whether deltalake writes these rows, and the statistics that it writes are bounds of them.

    deltalake takes decimals for doubles, and leaves out NaN, which Spark takes for the largest. Who skips files by such
    statistics would miss rows, its own merge too.
    """
    return are_utf8(rows) and not any(
        (pa.types.is_decimal(field.type) and field.type.precision > _DIGITS_OF_A_DOUBLE)
        or (pa.types.is_floating(field.type) and pc.any(pc.is_nan(rows[field.name])).as_py())
        for field in rows.schema
    )


def is_plain(table: DeltaTable, *, adds_only: bool = False) -> bool:
    """Return whether deltalake's commits do all that the table requires of writers.

    `adds_only`: the commits take no row away.
    """
    protocol = table.protocol()
    if any(name.startswith(_CONSTRAINT) for name in table.metadata().configuration):
        return False
    if protocol.min_writer_version <= _WRITER_VERSION_MAX:
        return True
    known = _FEATURES | {"deletionVectors"} if adds_only else _FEATURES
    return protocol.min_writer_version == _WRITER_VERSION_FEATURES and {*(protocol.writer_features or ())} <= known


# --- writing by Spark -------------------------------------------------------------------------------------------------

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# Delta keeps what it merges, since it reads twice and cannot know that it will see the same.
_AS_IT_IS = {"spark.databricks.delta.merge.materializeSource": "none"}
_ABSENT_BEFORE, _ABSENT_AFTER = (f"('{first}', '{second}')" for first, second in (ABSENT_BEFORE, ABSENT_AFTER))


def append_by_spark(frame: DataFrame, uri: str, tag: CommitTag, reread: bool, *, widen: bool = False) -> None:
    """Append the rows. Raises ChangesUnavailableError if they are gone before they are read.

    `reread`: they are read from the source only now. `widen`: the target gets the columns that it lacks.
    """
    guard_log(uri)
    with _reading(reread), spark_faults(f"append to {uri}"):
        _tagged(frame, "append", tag).option("mergeSchema", widen).save(uri)


def overwrite_by_spark(frame: DataFrame, uri: str, tag: CommitTag) -> None:
    """Replace all rows and all columns, whatever they were."""
    guard_log(uri)
    with spark_faults(f"overwrite {uri}"):
        writer = _tagged(frame, "overwrite", tag).option("overwriteSchema", "true")
        writer.option("partitionOverwriteMode", "static").save(uri)


def merge_by_spark(
    session: SparkSession,
    uri: str,
    frame: DataFrame,
    key: Sequence[str],
    tag: CommitTag,
    reread: bool = False,
    only_where: str = "",
) -> None:
    """Upsert and delete by key; null equals null. `only_where` is what else has to hold for a match.

    The commit's tag is in settings of `session` meanwhile, which nobody else may use then: not always the frame's own.

    Raises KeysSharedError where a key of op `i` or `p` is there already.
    """
    from delta.tables import DeltaTable

    settings = {_TXN_APP: APP_ID, _TXN_VERSION: str(tag.seq), _USER_METADATA: tag_json(tag)}
    if reread:
        settings |= _AS_IT_IS
    matches = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in key) + only_where
    values = {quoted(name): F.col(f"s.{quoted(name)}") for name in frame.columns if name != OP}
    # Either rows of the source share the key, or the target is not what it seems: a difference will show.
    taken = {quoted(key[0]): F.raise_error(F.lit(KEY_TAKEN))}
    require_files_of(session, uri)
    with _reading(reread), _merging(uri), settings_for(session, settings):
        (
            DeltaTable.forPath(session, uri)
            .alias("t")
            .merge(frame.alias("s"), matches)
            .whenMatchedDelete(f"s.{OP} = '{Op.DELETE}'")
            .whenMatchedUpdate(f"s.{OP} IN {_ABSENT_BEFORE}", set=taken)  # type: ignore[arg-type]
            .whenMatchedUpdate(set=values)  # type: ignore[arg-type]
            .whenNotMatchedInsert(f"s.{OP} NOT IN {_ABSENT_AFTER}", values=values)  # type: ignore[arg-type]
            .execute()
        )


def _tagged(frame: DataFrame, mode: str, tag: CommitTag) -> DataFrameWriter:
    writer = frame.write.format("delta").mode(mode).option("txnAppId", APP_ID).option("txnVersion", tag.seq)
    return writer.option("userMetadata", tag_json(tag))


def _reading(reread: bool) -> AbstractContextManager[None]:
    """Raise ChangesUnavailableError if changes that are read only now are gone while they are written."""
    return naming_lost_changes() if reread else nullcontext()


@contextmanager
def _merging(uri: str) -> Iterator[None]:
    try:
        with spark_faults(f"merge into {uri}"):
            yield
    except EngineError as error:
        if KEY_TAKEN in str(error.__cause__):  # its message is cut before that
            raise KeysSharedError(KEY_TAKEN) from error
        raise


# --- append-only targets ----------------------------------------------------------------------------------------------
# What an append-only target lacks of its source's rows is found here, and how both fit into one table. Such a target
# loses no row and no column: columns that are new in the source are null in what is there, columns that the source has
# lost are null in what comes, and a type becomes as wide as both need it. Rows are compared by the source's columns, as
# multisets, by hashes that every type has.


class Way(Enum):
    """Rows get into the target in one of these ways.

    APPEND adds them, WIDEN adds new columns within the append, REWRITE writes all rows of the target.
    """

    APPEND = auto()
    WIDEN = auto()
    REWRITE = auto()


@dataclass(frozen=True, slots=True)
class Lacking:
    """The rows that a target lacks: `rows` is their number.

    `frame` has them, with the columns that the target is to have (for REWRITE they are behind all rows that are there).
    """

    frame: DataFrame
    rows: int
    way: Way


@contextmanager
def lacking(wanted: DataFrame, target: DataFrame) -> Iterator[Lacking]:
    """Find what `target` lacks of `wanted`, each row as often.

    Raises PermanentError if a column cannot have the values of both, ChangesUnavailable if the rows of `wanted` cannot
    be read any more.
    """
    union = _union(target.schema, wanted.schema)
    with comparing(*comparable(wanted, target), ()) as compared:
        missing = compared.repair if compared.repair is not None else target.limit(0)
        new = conformed(missing.drop(OP), union)
        way = _way(target.schema, union)
        frame = conformed(target, union).unionByName(new) if way is Way.REWRITE else new
        yield Lacking(frame, compared.comparison.missing, way)


def comparable(wanted: DataFrame, target: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return both with the columns of `wanted`, of types that fit the values of both; raises PermanentError."""
    shape = narrowed(_union(target.schema, wanted.schema), wanted.schema)
    return conformed(wanted, shape), conformed(target, shape)


def _union(target: T.StructType, wanted: T.StructType) -> T.StructType:
    try:
        return unified(target, wanted)
    except UnlikeSchemaError as unlike:
        raise PermanentError(
            f"the column {unlike.path} is {unlike.wanted} now and {unlike.present} in the target, which is append-only "
            "and cannot hold both",
            about="spec.iteration.consumer.columns",
            remedy="Give it its type back; or register a job with another target; or `iscp-admin job resync`, which "
            "drops the rows that the source has no more",
            code=ErrorCode.SCHEMA_CHANGED,
        ) from unlike


def _way(target: T.StructType, union: T.StructType) -> Way:
    if alike(target, union):
        return Way.APPEND
    as_before = T.StructType(union.fields[: len(target.fields)])
    return Way.WIDEN if alike(target, as_before) else Way.REWRITE


# --- table features ---------------------------------------------------------------------------------------------------
# A target needs features for columns of some types, which Delta does not add by itself.


def enable_features(session: SparkSession, uri: str, schema: T.StructType) -> None:
    """Enable the features on the table that columns of `schema` need.

    This is a commit that changes properties alone. So the target's position stays as it is, and no harm is done if the
    commit that needs the features never comes.
    """
    features = {T.TimestampNTZType: "timestampNtz", T.VariantType: "variantType"}
    needed = {features[kind] for kind in _types(schema) if kind in features}
    if not needed:
        return
    with suppress(TableNotFound), delta_faults(f"open {uri}"):  # one that is made now gets them by itself
        missing = needed - {*(open_delta(uri).protocol().writer_features or ())}
        if missing:
            _enable(session, uri, sorted(missing))


def _enable(session: SparkSession, uri: str, features: Sequence[str]) -> None:
    properties = ", ".join(f"'delta.feature.{name}' = 'supported'" for name in features)
    with spark_faults(f"enable {', '.join(features)} on {uri}"):
        session.sql(f"ALTER TABLE delta.{quoted(uri)} SET TBLPROPERTIES ({properties})")


def _types(kind: T.DataType) -> Iterator[type[T.DataType]]:
    """Yield the types of a schema, also those within others."""
    match kind:
        case T.StructType(fields=fields):
            for field in fields:
                yield from _types(field.dataType)
        case T.ArrayType(elementType=inner):
            yield from _types(inner)
        case T.MapType(keyType=key, valueType=value):
            yield from _types(key)
            yield from _types(value)
        case _:
            yield type(kind)


# --- the table itself -------------------------------------------------------------------------------------------------
# The table that a job writes is created, and its commits are marked as that job's.


def create_target(uri: str, schema: Mapping[str, Any], properties: Mapping[str, str], tag: CommitTag) -> None:
    """Create the table. Raises deltalake's errors, OSError, Conflict.

    The table gets deletion vectors only if rows of it can be taken out by them. deltalake would give such a table
    features that it has no use for, and that others do not read.
    """
    if VECTORS.items() <= properties.items():
        if fits_arrow(T.StructType.fromJson(dict(schema)), (), lists=True):
            _commit_first(uri, schema, properties, tag)
            return
        properties = {name: value for name, value in properties.items() if name not in VECTORS}
    DeltaTable.create(
        uri,
        Schema.from_json(json.dumps(schema)),
        mode="error",
        configuration=dict(properties),
        storage_options=table_options(uri),
        commit_properties=commit_properties(tag),
    )


def commit_properties(tag: CommitTag) -> CommitProperties:
    return CommitProperties(
        custom_metadata={"userMetadata": tag_json(tag)},
        app_transactions=[Transaction(APP_ID, tag.seq)],
        max_commit_retries=0,
    )


def _commit_first(uri: str, schema: Mapping[str, Any], properties: Mapping[str, str], tag: CommitTag) -> None:
    now_ms = int(time.time() * 1000)
    readers = ["deletionVectors"]
    if any(field["type"] == "timestamp_ntz" for field in schema["fields"]):
        readers.append("timestampNtz")
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": readers,
        "writerFeatures": [*readers, "appendOnly", "changeDataFeed", "invariants"],
    }
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": now_ms,
    }
    actions = [*heads("CREATE TABLE", tag, now_ms), {"protocol": protocol}, {"metaData": metadata}]
    files_of(uri).create_dir("_delta_log")
    if not files.create(commit_file(uri, 0), content_of(actions)):
        raise Conflict(f"{uri} has come to be meanwhile")
