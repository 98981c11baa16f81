"""Writes few rows into a target without Spark: deltalake commits at exactly the version that it is given, or not.

Only where the outcome is the same as Spark's: tables without features of their own, keys without nulls.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError

from iscp.adapters.delta.log.add_actions import add_actions_of
from iscp.adapters.delta.log.commits import commit_stamp
from iscp.adapters.delta.log.table_opening import bring_up, open_delta
from iscp.adapters.delta.rows.key_bounds import TableKeys, bounds_of_arrow
from iscp.adapters.delta.rows.net_changes import OP
from iscp.adapters.delta.sink.key_predicate import is_literal, key_predicate, names_keys, range_predicate
from iscp.adapters.delta.spark.text_bytes import REPLACEMENT, are_utf8, is_of_text_bytes
from iscp.adapters.delta.storage.delta_errors import delta_faults, direct_work
from iscp.core.rows.netting import ABSENT_BEFORE, Op
from iscp.core.sql.sql_names import quoted
from iscp.core.values.errors import Conflict
from iscp.ports.source import KeysSharedError

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
