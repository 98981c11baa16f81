"""Brings what an application appends into the shape of its feed; refuses what does not fit, before anything is written.

Rows come as a table or batch of Arrow, as a list of dicts, as a frame of pandas or of Spark (neither of the two
libraries is loaded here), or as anything that hands over columns by Arrow's PyCapsule interface: a frame of Polars, a
relation of DuckDB, a stream.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from iscp.changefeed.model.ulid import UlidPlace, ulid_text
from iscp.changefeed.table.feed_schema import ulid_columns
from iscp.changefeed.table.file_writer import FeedRows
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import require, require_unicode

# --- input ------------------------------------------------------------------------------------------------------------

Rows: TypeAlias = Any
"""pa.Table, pa.RecordBatch, a list of dicts, a data frame of pandas or Spark, or an object with `__arrow_c_stream__` or
`__arrow_c_array__`.
"""

STREAM_BYTES_MAX = 2 * 1024**3
"""Bytes of columns that one append takes from a stream; a longer one is refused, as an append is one commit, and is in
memory as a whole before.
"""

STREAM_BATCHES_MAX = 100_000
"""Batches that one append takes from a stream, however small they are; a longer one is refused."""

OrderBy: TypeAlias = Sequence[str | tuple[str, str]] | str
"""Names of columns, or (name, "ascending") or (name, "descending"); a single name may stand alone."""

_DIRECTIONS = ("ascending", "descending")
_FIELD = "rows"


@dataclass(frozen=True, slots=True)
class SparkRows:
    """A frame of Spark, whose files Spark writes."""

    frame: Any
    order_by: Sequence[tuple[str, str]]
    operation: str


Prepared: TypeAlias = FeedRows | SparkRows


def prepare(rows: Rows, wanted: pa.Schema, order_by: OrderBy, operation: Any) -> Prepared:
    """Return rows with the columns `wanted`, in the order requested; `operation`: one text for all, or one for each.

    Raises InvalidRequest.
    """
    keys = list(_sort_keys(order_by, wanted))
    if _is_of("pyspark.sql", "DataFrame", rows):
        return _of_spark(rows, keys, operation)
    fitted = _fitted(_table_of(rows, wanted), wanted)
    operations = _operations(operation, len(fitted))
    if keys:
        try:
            places = pc.sort_indices(fitted, sort_keys=keys)  # is stable
        except pa.ArrowException as error:
            raise InvalidRequest(f"cannot be sorted by: {error}", field="order_by", remedy="Sort by others") from error
        fitted, operations = fitted.take(places), operations.take(places)
    return FeedRows(fitted, operations)


def _is_of(module: str, name: str, value: object) -> bool:
    """Return whether the value is of a class in a library that may not be loaded; if it is not, the answer is no."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _of_spark(frame: Any, keys: Sequence[tuple[str, str]], operation: Any) -> SparkRows:
    if not isinstance(operation, str):
        raise InvalidRequest("has to be one text for all rows of Spark's frame", field="operation")
    return SparkRows(frame, keys, operation)


def _sort_keys(order_by: OrderBy, wanted: pa.Schema) -> Iterator[tuple[str, str]]:
    require(order_by, Sequence, "order_by", 'names of columns, or ("name", "descending")')
    for each in [order_by] if isinstance(order_by, str) else order_by:
        name, direction = each if isinstance(each, tuple) and len(each) == 2 else (each, _DIRECTIONS[0])
        if name not in wanted.names or direction not in _DIRECTIONS:
            raise InvalidRequest(
                f"{each!r} says no order",
                about="order_by",
                remedy=f'Name any of {", ".join(wanted.names)}, or ("name", "descending")',
            )
        yield name, direction


def _table_of(rows: Rows, wanted: pa.Schema) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    try:
        if _is_of("pandas", "DataFrame", rows):
            return pa.Table.from_pandas(rows, preserve_index=False)
        if isinstance(rows, list | tuple):
            return _table_of_dicts(rows, wanted)
        if hasattr(type(rows), "__arrow_c_stream__"):
            return _table_of_stream(rows)
        if hasattr(type(rows), "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(rows)])
    except (pa.ArrowException, OverflowError, OSError) as error:
        raise InvalidRequest(f"do not become columns: {error}", field=_FIELD, remedy="Append pa.Table") from error
    raise InvalidRequest(
        f"are a {type(rows).__name__}",
        field=_FIELD,
        remedy="Give pa.Table, pa.RecordBatch, a list of dicts, a data frame, or what has __arrow_c_stream__",
    )


def _table_of_stream(rows: Any) -> pa.Table:
    """Return all rows of a stream. Raises InvalidRequest for one that is too long, and has read no more by then."""
    batches: list[pa.RecordBatch] = []
    size = 0
    with pa.RecordBatchReader.from_stream(rows) as stream:
        for batch in stream:
            size += batch.nbytes
            if size > STREAM_BYTES_MAX or len(batches) == STREAM_BATCHES_MAX:
                raise InvalidRequest(
                    f"are more than {STREAM_BYTES_MAX} bytes, or {STREAM_BATCHES_MAX} batches, of a stream",
                    field=_FIELD,
                    remedy="Append them in several parts",
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, stream.schema)


def _table_of_dicts(rows: Sequence[Mapping[str, Any]], wanted: pa.Schema) -> pa.Table:
    names = set(wanted.names)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or row.keys() != names:
            raise InvalidRequest(
                f"row {number} is {'a dict with ' + ', '.join(row) if isinstance(row, Mapping) else repr(row)[:100]}",
                about=_FIELD,
                remedy=f"Give dicts with {', '.join(wanted.names)}, and None where there is no value",
            )
    return pa.table({field.name: _column([row[field.name] for row in rows], field) for field in wanted})


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    """Return the values as an array of the type that they have: given the feed's, Arrow would cut off what does not fit
    it.
    """
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise _misfit(field, error) from error


def _fitted(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    names = rows.column_names
    if sorted(names) != sorted(wanted.names):
        raise InvalidRequest(
            f"have the columns {', '.join(names)}", field=_FIELD, remedy=f"The feed's are {', '.join(wanted.names)}"
        )
    return pa.table([_cast(rows[field.name], field) for field in wanted], schema=wanted)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if field.type != column.type and (lost := _foreign(column.type, field.type)):
        raise InvalidRequest(lost, field=f"{_FIELD}.{field.name}", remedy=f"The feed's column is {field.type}")
    try:
        fitted = column.cast(field.type, safe=True)
        fitted.validate(full=True)  # texts may be bytes that no reader decodes
    except pa.ArrowException as error:
        raise _misfit(field, error) from error
    if fitted.null_count and not field.nullable:
        raise InvalidRequest("has nulls", field=f"{_FIELD}.{field.name}", remedy="The feed's column takes none")
    return fitted


def _foreign(given: pa.DataType, wanted: pa.DataType) -> str:
    """Return what even a safe cast would drop, or leave null, or an empty string."""
    if pa.types.is_timestamp(given) and pa.types.is_date(wanted):
        return "has times of a day"
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        has, takes = ([type_.field(n).name for n in range(type_.num_fields)] for type_ in (given, wanted))
        if sorted(has) != sorted(takes):
            return f"has structs of {', '.join(has)}, not of {', '.join(takes)}"
        return next(filter(None, (_foreign(given.field(name).type, wanted.field(name).type) for name in has)), "")
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _foreign(given.key_type, wanted.key_type) or _foreign(given.item_type, wanted.item_type)
    if pa.types.is_list(given) and pa.types.is_list(wanted):
        return _foreign(given.value_type, wanted.value_type)
    return ""


def _misfit(field: pa.Field, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"does not fit: {error}", field=f"{_FIELD}.{field.name}", remedy=f"The feed's column is {field.type}"
    )


def _operations(operation: Any, count: int) -> pa.Array:
    if isinstance(operation, str):
        require_unicode(operation, "operation")
        return pa.repeat(operation, count).cast(pa.string())
    try:
        given = pa.array(operation) if isinstance(operation, list | tuple) else operation
        texts = given.cast(pa.string()) if _is_text(given.type) else None
        if texts is not None:
            texts.validate(full=True)
    except (pa.ArrowException, AttributeError, UnicodeError) as error:
        raise InvalidRequest(f"is no column of texts: {error}", field="operation", remedy="Give pa.Array") from error
    if texts is None or len(texts) != count or texts.null_count:
        raise InvalidRequest(f"has to be one text for each of {count} rows, or one for all", field="operation")
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts


def _is_text(type_: pa.DataType) -> bool:
    plain = type_.value_type if pa.types.is_dictionary(type_) else type_
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain))


# --- the ulids of an append -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ulids:
    """The ulids that an append was given: `count` of them, the first of which is that of `place`, without holding each.

    There is one for each row, in the order in which these were sorted. The ulids are a sequence of their texts; readers
    see them once the transaction is committed.
    """

    place: UlidPlace
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> str:
        return ulid_text(self.bytes(number))

    def __iter__(self) -> Iterator[str]:
        return (ulid_text(self.place.ulid(number)) for number in range(self.count))

    @property
    def first(self) -> str:
        """Raises IndexError where there are none, as `last` does."""
        return self[0]

    @property
    def last(self) -> str:
        return self[-1]

    def bytes(self, number: int) -> bytes:
        """Return the 16 bytes of one ulid; a negative number counts from the end. Raises IndexError."""
        return self.place.ulid(range(self.count)[number])

    def columns(self) -> tuple[pa.Array, pa.Array]:
        """Return all ulids at once: as bytes (binary), and as texts (string)."""
        return ulid_columns(self.place, self.count)
