"""The net change of each key in the changes of a range, as Arrow and Spark find it; and what this needs to know of
columns: the columns that a table lacks for other rows, the properties of types, and how rows are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from iscp.delta.rows.row_search import beyond, row_codes
from iscp.model.rows.key_ranges import ABSENT_AFTER, NET_OPS, Op
from iscp.model.sql.sql_names import OP as OP
from iscp.model.sql.sql_names import quoted
from iscp.ports.source import KeysSharedError, Rows
from iscp.spark.spark_frames import spark_schema
from iscp.system.late_imports import A, F, T, pc

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# --- columns for the rows of another table ----------------------------------------------------------------------------
# The columns that a table needs to hold the rows of another one besides its own, and how rows are given these columns.
# Names count without regard to case. Nothing is ever narrowed: a type follows another only where it holds all its
# values.


@cache
def _digits() -> dict[type[T.DataType], int]:
    """Return how many digits a value of each type of whole numbers may have."""
    return {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}


class UnlikeSchemaError(Exception):
    """No type fits the values of both: `path` is the column's, `present` and `wanted` are its types."""

    def __init__(self, path: str, present: T.DataType, wanted: T.DataType) -> None:
        super().__init__(f"{path} is {present.simpleString()} and {wanted.simpleString()}")
        self.path, self.present, self.wanted = path, present.simpleString(), wanted.simpleString()


def unified(present: T.StructType, wanted: T.StructType, path: str = "") -> T.StructType:
    """Return the fields of `present`, as wide as `wanted` needs them, and those that only `wanted` has; raises
    Unlike.
    """
    new = {field.name.lower(): field for field in wanted.fields}
    fields = []
    for field in present.fields:
        other = new.pop(field.name.lower(), None)
        kind = field.dataType if other is None else _wider(field.dataType, other.dataType, f"{path}{field.name}")
        fields.append(T.StructField(field.name, kind))
    return T.StructType([*fields, *[T.StructField(field.name, _nullable(field.dataType)) for field in new.values()]])


def narrowed(present: T.StructType, wanted: T.StructType) -> T.StructType:
    """Return the fields of `present` that `wanted` has, in its order."""
    known = {field.name.lower(): field for field in present.fields}
    found = [(known[field.name.lower()], field) for field in wanted.fields]
    return T.StructType([T.StructField(ours.name, _fewer(ours.dataType, theirs.dataType)) for ours, theirs in found])


def alike(first: T.DataType, second: T.DataType) -> bool:
    """Return whether two types are the same but for what may be null, and for comments."""
    return _nullable(first) == _nullable(second)


def without_void(frame: DataFrame) -> DataFrame:
    """Return the frame without fields of the type void, which Delta reads from no table, but has in its changes."""
    present = _nullable(frame.schema, without=T.NullType)
    assert isinstance(present, T.StructType)
    return frame if alike(present, frame.schema) else conformed(frame, present)


def conformed(frame: DataFrame, schema: T.StructType) -> DataFrame:
    """Return the columns of `schema`, each taken by its name; null where `frame` has none."""
    if alike(frame.schema, schema):
        return frame
    fields = {field.name.lower(): field for field in frame.schema.fields}
    columns = []
    for field in schema.fields:
        known = fields.get(field.name.lower())
        value = (
            F.lit(None).cast(field.dataType)
            if known is None
            else _converted(F.col(quoted(known.name)), known.dataType, field.dataType)
        )
        columns.append(value.alias(field.name))
    return frame.select(*columns)


def _wider(present: T.DataType, wanted: T.DataType, path: str) -> T.DataType:
    match present, wanted:
        case T.StructType(), T.StructType():
            return unified(present, wanted, f"{path}.")
        case T.ArrayType(elementType=ours), T.ArrayType(elementType=theirs):
            return T.ArrayType(_wider(ours, theirs, f"{path}.element"))
        case T.MapType(), T.MapType():
            key = _wider(present.keyType, wanted.keyType, f"{path}.key")
            return T.MapType(key, _wider(present.valueType, wanted.valueType, f"{path}.value"))
    if holds(present, wanted):
        return present
    if holds(wanted, present):
        return wanted
    raise UnlikeSchemaError(path, present, wanted)


def holds(wide: T.DataType, narrow: T.DataType) -> bool:
    """Return whether every value of `narrow` is one of `wide` (Delta's own type widening; no nested types)."""
    if wide == narrow:
        return True
    match wide:
        case T.DecimalType(precision=precision, scale=scale):
            if isinstance(narrow, T.DecimalType):
                return scale >= narrow.scale and precision - scale >= narrow.precision - narrow.scale
            return type(narrow) in _digits() and precision - scale >= _digits()[type(narrow)]
        case T.DoubleType():
            return isinstance(narrow, T.ByteType | T.ShortType | T.IntegerType | T.FloatType)
        case T.TimestampNTZType():
            return isinstance(narrow, T.DateType)
    digits = _digits()
    return type(wide) in digits and type(narrow) in digits and digits[type(wide)] > digits[type(narrow)]


def _fewer(present: T.DataType, wanted: T.DataType) -> T.DataType:
    match present, wanted:
        case T.StructType(), T.StructType():
            return narrowed(present, wanted)
        case T.ArrayType(elementType=ours), T.ArrayType(elementType=theirs):
            return T.ArrayType(_fewer(ours, theirs))
        case T.MapType(), T.MapType():
            return T.MapType(_fewer(present.keyType, wanted.keyType), _fewer(present.valueType, wanted.valueType))
    return present


def _nullable(kind: T.DataType, without: type[T.DataType] | None = None) -> T.DataType:
    """Return the type with all parts nullable, and no fields of the type `without`."""
    match kind:
        case T.StructType(fields=fields):
            fields_left = [field for field in fields if without is None or not isinstance(field.dataType, without)]
            return T.StructType(
                [T.StructField(field.name, _nullable(field.dataType, without)) for field in fields_left]
            )
        case T.ArrayType(elementType=inner):
            return T.ArrayType(_nullable(inner, without))
        case T.MapType(keyType=key, valueType=value):
            return T.MapType(_nullable(key, without), _nullable(value, without))
    return kind


def _converted(value: Column, have: T.DataType, want: T.DataType) -> Column:
    if alike(have, want):
        return value
    match have, want:
        case T.StructType(), T.StructType():
            known = {field.name.lower(): field for field in have.fields}
            parts = [
                (
                    _converted(value.getField(ours.name), ours.dataType, field.dataType)
                    if (ours := known.get(field.name.lower())) is not None
                    else F.lit(None).cast(field.dataType)
                ).alias(field.name)
                for field in want.fields
            ]
            return F.when(value.isNotNull(), F.struct(*parts))
        case T.ArrayType(elementType=ours), T.ArrayType(elementType=theirs):
            return F.transform(value, lambda each: _converted(each, ours, theirs))
        case T.MapType(), T.MapType():
            return F.map_from_entries(
                F.transform(
                    F.map_entries(value),
                    lambda each: F.struct(
                        _converted(each["key"], have.keyType, want.keyType),
                        _converted(each["value"], have.valueType, want.valueType),
                    ),
                )
            )
    return value.cast(want)


# --- values by their types in Spark -----------------------------------------------------------------------------------
# Whether the values of a column can be compared, and whether equal ones may differ.


@cache
def whole_types() -> tuple[type[T.DataType], ...]:
    """Return the types of whole numbers."""
    return (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


def comparable(kind: T.DataType) -> bool:
    """Return whether Spark can compare two values of the type for equality."""
    return not any(isinstance(part, (T.MapType, T.VariantType)) for part in parts_of(kind))


def is_double(kind: T.DataType) -> bool:
    return isinstance(kind, (T.DoubleType, T.FloatType))


def is_collated(kind: T.DataType) -> bool:
    """Return whether texts of the type that differ may be equal; rows with them count as different all the same."""
    return isinstance(kind, T.StringType) and not kind.isUTF8BinaryCollation()


def is_one_of(kind: T.DataType, kinds: tuple[type[T.DataType], ...]) -> bool:
    """Return whether the type is one of `kinds` and its values compare as they are written."""
    return isinstance(kind, kinds) and not is_collated(kind)


def same_values(one: str, other: str, names: Iterable[str]) -> list[Column]:
    """Return the conditions that rows of two frames, named by these aliases, are equal in these columns, nulls too."""
    return [F.col(f"{one}.{quoted(name)}").eqNullSafe(F.col(f"{other}.{quoted(name)}")) for name in names]


def parts_of(kind: T.DataType) -> Iterator[T.DataType]:
    """Yield the type itself, or the types that an array or a struct is made of."""
    match kind:
        case T.ArrayType():
            yield from parts_of(kind.elementType)
        case T.StructType():
            for each in kind.fields:
                yield from parts_of(each.dataType)
        case _:
            yield kind


# --- net changes ------------------------------------------------------------------------------------------------------
# The changes of a range are reduced to the net change of each key (`NET_OPS`), by Arrow or by Spark. Small ranges are
# reduced in this process, on Arrow: planning and running Spark jobs costs more than the rows do.
#
# Rows that a filter refuses are left out before: a row that enters the filter is new then, a row that leaves it is
# gone, and a key counts as shared only by rows that pass.

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
STAMPS = (COMMIT_VERSION, COMMIT_TIMESTAMP)
DOUBTFUL = "_iscp_doubtful"
_WRITTEN, _ROWS = "_iscp_written", "_iscp_rows"
WRITES = ("insert", "update_postimage")
_BY_ENDS = [NET_OPS[first, last] for first in (False, True) for last in (False, True)]


@cache
def _key_types() -> tuple[type[T.DataType], ...]:
    """Return the types whose values come back from Arrow as they were, and whose equality is the same there."""
    return (T.IntegralType, T.StringType, T.BooleanType, T.DateType, T.TimestampType, T.DecimalType, T.BinaryType)


@cache
def _value_types() -> tuple[type[T.DataType], ...]:
    return (*_key_types(), T.TimestampNTZType, T.FloatType, T.DoubleType)


def fits_arrow(schema: T.StructType, key: Sequence[str], *, arrays: bool = False, lists: bool = False) -> bool:
    """Return whether rows of this schema survive the way through Arrow unchanged, and its keys compare there.

    With `lists` values may also be arrays of whole numbers, texts, booleans and decimals, which `row_search` compares;
    with `arrays` these, and arrays of real numbers, which are not compared.
    """
    keys = {name.lower() for name in key}
    return all(
        (
            isinstance(field.dataType, _key_types() if field.name.lower() in keys else _value_types())
            or (field.name.lower() not in keys and _is_array(field.dataType, arrays, lists))
        )
        and not (isinstance(field.dataType, T.StringType) and field.dataType.collation != "UTF8_BINARY")
        for field in schema.fields
    )


def _is_array(kind: T.DataType, arrays: bool, lists: bool) -> bool:
    if not isinstance(kind, T.ArrayType):
        return False
    if isinstance(kind.elementType, T.FloatType | T.DoubleType):
        return arrays
    from iscp.algebra.result_types import element_of  # a run does without it while no table has arrays

    return (arrays or lists) and kind.containsNull and element_of(f"array<{kind.elementType.typeName()}>") is not None


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return these columns as pyspark gives them to Arrow, each of which may be null."""
    return pa.schema([pa.field(field.name, A.to_arrow_type(field.dataType)) for field in schema.fields])


def weights_of(raw: pa.Table) -> pa.ChunkedArray:
    """Return for each change +1 for a row that came, and -1 for one that went."""
    came = pc.is_in(raw[CHANGE_TYPE], value_set=pa.array(WRITES))
    return pc.if_else(came, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))


def net_by_arrow(raw: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the net changes as `net_by_spark`, but without `_iscp_doubtful`.

    Raises KeysSharedError where rows share a key.
    """
    keys, versions = _numbered(raw, key), raw[COMMIT_VERSION].to_numpy()
    written = pc.is_in(raw[CHANGE_TYPE], value_set=pa.array(WRITES)).to_numpy().astype(np.bool_)
    order = np.lexsort((written, versions, keys))
    keys, written = keys[order], written[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))[: len(keys)]
    last = np.append(first[1:], len(keys))[: len(first)] - 1
    steps = np.where(written, 1, -1)
    rows = np.cumsum(steps)
    rows += np.repeat(~written[first] - rows[first] + steps[first], last - first + 1)
    if np.any(rows < 0) or np.any(rows[last] != written[last]):
        doubt(key)
    ops = pa.array(_BY_ENDS, pa.string()).take(pa.array(2 * written[first].astype(np.int8) + written[last]))
    return raw.take(pa.array(order[last])).drop_columns([CHANGE_TYPE]).append_column(OP, ops)


def inserts_of(changes: Rows) -> Rows:
    """Return the rows of changes that are new, without their op; a key that came and went has none."""
    return changes.transformed(
        lambda frame: frame.where(F.col(OP) == Op.INSERT).drop(OP),
        lambda table: table.filter(pc.equal(table[OP], Op.INSERT)).drop_columns([OP]),
    )


def has_own_keys(rows: pa.Table, key: Sequence[str]) -> bool:
    """Return whether each of these rows has a key that no other has; null equals null. False too where Arrow cannot
    decide.
    """
    if not key:
        return True
    sharing = sharing_rows(rows, key)
    return sharing is not None and not sharing.any()


Sharing = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""Says for each of some rows whether another one has its key."""


def sharing_rows(rows: pa.Table, key: Sequence[str]) -> Sharing | None:
    """Return for each row whether another one has its key; null equals null. None: Arrow cannot decide it."""
    if not fits_arrow(spark_schema(rows.schema), key):
        return None
    _, places, counts = np.unique(_numbered(rows, key), return_inverse=True, return_counts=True)
    return np.asarray(counts[places] > 1)


def distinct_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table | None:
    """Return each key of these rows once, as the columns of the key. None: Arrow does not compare such values."""
    keys = key_columns(rows, key)
    if not fits_arrow(spark_schema(keys.schema), key):
        return None
    return keys.group_by(keys.column_names).aggregate([]).select(keys.column_names)


def key_columns(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the columns of the key; names count without regard to case."""
    names = {name.lower(): name for name in rows.column_names}
    return rows.select([names[name.lower()] for name in key])


def _numbered(raw: pa.Table, key: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a number for each row, the same where the key is; null equals null."""
    numbers = np.zeros(len(raw), np.int64)
    for column in key_columns(raw, key).columns:
        values = column.combine_chunks().dictionary_encode(null_encoding="encode")
        numbers = numbers * len(values.dictionary) + values.indices.to_numpy()
        if len(key) > 1:  # else they might outgrow 64 bits
            numbers = np.unique(numbers, return_inverse=True)[1]
    return numbers


def unhashable(kind: T.DataType) -> bool:
    """Return whether Spark has no hash of such values."""
    return any(mark in kind.json() for mark in ('"map"', "variant", "interval"))


def each_key(raw: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return one row for each key: its columns, `_iscp_op`, and `_iscp_doubtful` where it was changed more than once.

    The keys alone are shuffled. Where none is doubtful, `each_by_itself` is the net change.
    """
    kind = F.col(CHANGE_TYPE)
    counts = {
        "_iscp_all": F.count("*"),
        "_iscp_inserts": F.count_if(kind == "insert"),
        "_iscp_deletes": F.count_if(kind == "delete"),
        "_iscp_updates": F.count_if(kind == "update_postimage"),
        "_iscp_versions": F.max(COMMIT_VERSION) - F.min(COMMIT_VERSION),
    }
    each = raw.groupBy(*[F.col(quoted(name)) for name in key]).agg(*[count.alias(as_) for as_, count in counts.items()])
    rows, inserts, deletes, updates, versions = map(F.col, counts)
    alone = (rows == 1) & (inserts + deletes == 1)
    updated = (rows == 2) & (inserts + deletes == 0) & (updates == 1) & (versions == 0)
    op = F.when(inserts > 0, Op.INSERT).when(deletes > 0, Op.DELETE).otherwise(Op.UPDATE)
    return each.withColumn(OP, op).withColumn(DOUBTFUL, ~(alone | updated)).drop(*counts)


def each_by_itself(raw: DataFrame) -> DataFrame:
    """Takes and gives what `net_by_spark` does, where each row has its key's net change without reading others."""
    kind = F.col(CHANGE_TYPE)
    op = F.when(kind == "insert", Op.INSERT).when(kind == "delete", Op.DELETE).otherwise(Op.UPDATE)
    return raw.where(kind != "update_preimage").withColumn(OP, op).drop(CHANGE_TYPE)


def net_by_spark(raw: DataFrame, key: Sequence[str]) -> DataFrame:
    """Takes the wanted columns, `_change_type` and the stamps; gives the wanted columns, `_iscp_op`, the stamps of the
    key's last change, and `_iscp_doubtful` where rows share the key. One sort does for all that is needed of a key.
    """
    from pyspark.sql.window import Window

    in_order = Window.partitionBy(*[F.col(quoted(name)) for name in key]).orderBy(COMMIT_VERSION, _WRITTEN)
    written = F.col(_WRITTEN)
    ranked = raw.withColumn(_WRITTEN, F.col(CHANGE_TYPE).isin(*WRITES)).select(
        "*",
        F.lead(written).over(in_order).isNull().alias("_iscp_last"),
        F.first(written).over(in_order).alias("_iscp_first"),
        F.sum(F.when(written, 1).otherwise(-1)).over(in_order).alias("_iscp_sum"),
    )
    first, is_last = F.col("_iscp_first"), F.col("_iscp_last")
    rows = F.col("_iscp_sum") + F.when(first, 0).otherwise(1)
    marked = ranked.withColumn(DOUBTFUL, (rows < 0) | (is_last & (rows != written.cast("int"))))
    last = marked.where(is_last | F.col(DOUBTFUL)).withColumn(OP, _op(first, written))
    return last.drop(CHANGE_TYPE, _WRITTEN, "_iscp_last", "_iscp_first", "_iscp_sum")


def _op(first: Column, last: Column) -> Column:
    """Return the operation of a key by whether its first change writes, and whether its last one does."""
    by_ends = [F.when((first == ends[0]) & (last == ends[1]), op) for ends, op in NET_OPS.items()]
    return F.coalesce(*by_ends)


def contradicted(net: DataFrame, after: DataFrame, key: Sequence[str]) -> bool:
    """Return whether a key of `net` has a number of rows in `after`, the source's rows then, that contradicts its
    operation.
    """
    there, names = F.count("*"), [f"_iscp_key_{number}" for number in range(len(key))]
    of_key = [F.col(quoted(name)) for name in key]
    keys = net.select(*[column.alias(name) for column, name in zip(of_key, names, strict=True)], OP)
    same = [column.eqNullSafe(F.col(name)) for column, name in zip(of_key, names, strict=True)]
    counted = after.select(*of_key).join(keys, reduce(and_, same)).groupBy(*names, OP).agg(there.alias(_ROWS))
    return not counted.where(F.col(OP).isin(*ABSENT_AFTER) | (F.col(_ROWS) > 1)).isEmpty()


def doubt(key: Sequence[str]) -> NoReturn:
    """Raise KeysSharedError: which of the rows is left, and whether they still share the key, is not in the changes."""
    raise KeysSharedError(f"several rows share a key ({', '.join(key)})")


# --- changes from present to wanted rows ------------------------------------------------------------------------------
# They are found by key and without Spark.


def differing_rows(wanted: pa.Table, present: pa.Table, key: Sequence[str]) -> pa.Table | None:
    """Return rows of `wanted` that `present` lacks or has otherwise (op `u`), and keys that only `present` has (op
    `d`).

    Values compare as in Spark, in the columns of `wanted`. None: rows share a
    key in one of the two, or Arrow does not compare such values.
    """
    names = {name.lower(): name for name in present.column_names}
    if names.keys() != {name.lower() for name in wanted.column_names}:
        return None
    present = present.select([names[name.lower()] for name in wanted.column_names]).rename_columns(wanted.column_names)
    if present.schema.types != wanted.schema.types or not (has_own_keys(wanted, key) and has_own_keys(present, key)):
        return None
    wanted_codes, present_codes = row_codes(wanted, present)
    new = wanted.filter(pa.array(beyond(wanted_codes, present_codes)))
    old = present.filter(pa.array(beyond(present_codes, wanted_codes)))
    called = {name.lower(): name for name in wanted.column_names}
    keys = [called[name.lower()] for name in key]
    old_keys, new_keys = row_codes(old.select(keys), new.select(keys))
    gone = old.filter(pa.array(~np.isin(old_keys, new_keys)))
    return pa.concat_tables([_with_op(new, Op.UPDATE), _with_op(gone, Op.DELETE)])


def having_keys(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row whether one of `others` has its key; null equals null."""
    mine, theirs = row_codes(key_columns(rows, key), key_columns(others, key))
    return np.isin(mine, theirs)


def changes_of_keys(keys: pa.Table, own: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return `own` rows (op `u`), and those of `keys` that none of them has (op `d`), whose other columns are null."""
    gone = key_columns(keys.filter(pa.array(~having_keys(keys, own, key))), key)
    places = {name.lower(): place for place, name in enumerate(key)}
    columns = [
        gone.column(places[field.name.lower()]).cast(field.type)
        if field.name.lower() in places
        else pa.nulls(len(gone), field.type)
        for field in own.schema
    ]
    return pa.concat_tables([_with_op(own, Op.UPDATE), _with_op(pa.table(columns, own.schema.names), Op.DELETE)])


def _with_op(rows: pa.Table, op: Op) -> pa.Table:
    return rows.append_column(OP, pa.array([op.value] * len(rows), pa.string()))


# --- nearly equal rows ------------------------------------------------------------------------------------------------
# Rows are compared whose doubles were computed in another order, and so may differ in their last digits.

RELATIVE_MOST = 1e-9
"""The part of the larger one by which two doubles of a view may differ, and count as equal."""

_PLACE, _THERE = "_iscp_place", "_iscp_there"


def has_doubles(rows: DataFrame) -> bool:
    """Return whether rows may be nearly equal, and can be paired."""
    kinds = [field.dataType for field in rows.schema.fields]
    return any(map(is_double, kinds)) and all(map(comparable, kinds))


def are_near(wanted: DataFrame, present: DataFrame) -> bool:
    """Return whether the same rows are in both, as often, but for small differences of doubles in columns of their own.

    Rows that agree in all other columns are paired in the order of their doubles. Two of them that lie within such a
    difference of each other may be paired wrongly, and then count as different.
    """
    doubles = [field.name for field in wanted.schema.fields if is_double(field.dataType)]
    exact = [name for name in wanted.columns if name not in doubles]
    one, other = (_numbered_rows(frame, exact, doubles).alias(name) for frame, name in ((wanted, "w"), (present, "h")))
    paired = one.join(other, same_values("w", "h", (*exact, _PLACE)), "full_outer")
    there = F.col(f"w.{_THERE}").isNotNull() & F.col(f"h.{_THERE}").isNotNull()
    near = reduce(lambda left, right: left & right, [_near(name) for name in doubles])
    return paired.where(~(there & near)).isEmpty()


def _numbered_rows(frame: DataFrame, exact: list[str], doubles: list[str]) -> DataFrame:
    from pyspark.sql import Window

    window = Window.partitionBy(*map(quoted, exact)).orderBy(*map(quoted, doubles))
    return frame.withColumn(_PLACE, F.row_number().over(window)).withColumn(_THERE, F.lit(1))


def _near(name: str) -> Column:
    one, other = F.col(f"w.{quoted(name)}"), F.col(f"h.{quoted(name)}")
    apart = F.abs(one - other)
    near = (apart <= RELATIVE_MOST * F.greatest(F.abs(one), F.abs(other))) & (apart < F.lit(float("inf")))  # nor NaN
    return one.eqNullSafe(other) | F.coalesce(near, F.lit(False))
