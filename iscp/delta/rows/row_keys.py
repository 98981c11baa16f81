"""Bounds and hashes of keys: bounds show that keys are new; hashes are found by Spark, or are the same without it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iscp.delta.log.actions import is_count, statistics_of
from iscp.delta.log.commits import commit_stamp, statistics_added
from iscp.delta.log.table_opening import add_actions_of, open_delta
from iscp.model.sql.sql_names import quoted
from iscp.ports.source import KeyBounds
from iscp.spark.spark_frames import REPLACEMENT
from iscp.storage.delta_errors import delta_faults
from iscp.system.late_imports import F, T, pc

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# --- bounds -----------------------------------------------------------------------------------------------------------
# The bounds of keys are those of changed rows, and those of the rows in a table's files, by their statistics. Where a
# key is new and lies outside of all that the table has, rows can be appended without reading the table's rows. Most
# keys are like that, as they count upwards. Each key column is taken for itself: rows that differ in one have other
# keys.

FOLLOWED_MAX = 100
"""Commits of a target whose statistics are read one by one; after more the statistics of all its files are read."""

_PREFIX_LENGTH_MIN = 32
_BEYOND = "\U0010ffff" * 8
"""Put behind a greatest text that may be the beginning of greater ones: who wrote it may have cut it."""

# Lowest and highest value; empty: there is none; None: nothing is known.
_Ends = tuple[Any, ...] | None


def bounded(schema: T.StructType, key: Sequence[str]) -> list[str]:
    """Return the columns of the key whose bounds can be known."""
    keys = {name.lower() for name in key}
    return [
        field.name
        for field in schema.fields
        if field.name.lower() in keys
        # Of these types statistics hold the values themselves, or, of long strings, bounds in the same order.
        and isinstance(field.dataType, T.IntegralType | T.StringType)
        and not (isinstance(field.dataType, T.StringType) and field.dataType.collation != "UTF8_BINARY")
    ]


def bounds_of_arrow(rows: pa.Table, names: Sequence[str]) -> KeyBounds:
    """A column with a null in it has no bounds."""
    found = {}
    for name in names:
        if len(rows) and not rows[name].null_count:
            with suppress(UnicodeDecodeError):  # Spark lets such strings be written
                found[name.lower()] = tuple(pc.min_max(rows[name]).as_py().values())
    return _readable(found)


def bounds_aggregates(names: Sequence[str]) -> list[Column]:
    """Return the aggregates for `bounds_of_row`, three columns for each name."""
    columns = [F.col(quoted(name)) for name in names]
    return [each for column in columns for each in (F.min(column), F.max(column), F.count_if(column.isNull()))]


def bounds_of_row(names: Sequence[str], found: Sequence[Any]) -> KeyBounds:
    triples = [found[i : i + 3] for i in range(0, len(found), 3)]
    return _readable(
        {
            name.lower(): (low, high)
            for name, (low, high, nulls) in zip(names, triples, strict=True)
            if low is not None and not nulls
        }
    )


def spanning(each: Sequence[KeyBounds]) -> KeyBounds:
    """Return the bounds of all of them together."""
    names = reduce(and_, (bounds.keys() for bounds in each), each[0].keys()) if each else ()
    return {name: (min(ends[name][0] for ends in each), max(ends[name][1] for ends in each)) for name in names}


def _readable(bounds: KeyBounds) -> KeyBounds:
    """Return the bounds without columns of strings that were not UTF-8: what was put in their place has another
    order.
    """
    return {name: ends for name, ends in bounds.items() if not any(_replaced(end) for end in ends)}


def _replaced(value: Any) -> bool:
    return isinstance(value, str) and REPLACEMENT in value


def may_hold(add: Mapping[str, Any], column: str, values: Sequence[Any]) -> bool:
    """Return whether a file, by its statistics, may have one of `values` (whole numbers or texts, ascending) in the
    column.
    """
    ends = _ends(statistics_of(add), column.lower())
    if not ends:
        return ends is None
    if not values or type(values[0]) is not type(ends[0]):
        return bool(values)
    place = bisect_left(values, ends[0])
    return place < len(values) and bool(values[place] <= ends[1])


class TableKeys:
    """The bounds of all keys that a table has had since it was first read: they grow, and never shrink."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._version = -1
        self._stamp: tuple[int, ...] | None = None
        self._bounds: dict[str, _Ends] = {}

    def lack(self, bounds: KeyBounds, version: int) -> bool:
        """Return whether certainly no row of the table, as of `version`, has a key within `bounds`."""
        if not bounds:
            return False
        if not (bounds.keys() <= self._bounds.keys() and self._follow(version)):
            self._read(self._bounds.keys() | bounds.keys(), version)
        return any(_apart(self._bounds[name], ends) for name, ends in bounds.items())

    def _follow(self, version: int) -> bool:
        """Go on to `version` commit by commit; False: that is not possible, or would cost more than to start over."""
        if not 0 <= version - self._version <= FOLLOWED_MAX or commit_stamp(self._uri, self._version) != self._stamp:
            return False
        for later in range(self._version + 1, version + 1):
            stats = statistics_added(self._uri, later)
            if stats is None:
                return False
            self._bounds = {name: _widened(known, name, stats) for name, known in self._bounds.items()}
        self._version, self._stamp = version, commit_stamp(self._uri, version)
        return True

    def _read(self, names: Iterable[str], version: int) -> None:
        """Read the bounds from the statistics of all files, at a cost that follows their number."""
        with delta_faults(f"read the statistics of {self._uri}"):
            files = add_actions_of(open_delta(self._uri, version=version)).to_pylist()
        # A table without indexed columns has none of these.
        parts = {"numRecords": "num_records", "minValues": "min", "maxValues": "max", "nullCount": "null_count"}
        stats = [{part: file.get(column) for part, column in parts.items()} for file in files]
        self._bounds = {name: _widened((), name, stats) for name in names}
        self._version, self._stamp = version, commit_stamp(self._uri, version)


def _widened(known: _Ends, name: str, stats: Sequence[Mapping[str, Any]]) -> _Ends:
    for each in stats:
        ends = _ends(each, name)
        if known is None or ends is None or not _alike(known, ends):
            return None
        known = (min(known[0], ends[0]), max(known[1], ends[1])) if known and ends else known or ends
    return known


def _ends(stats: Mapping[str, Any], name: str) -> _Ends:
    """Return the ends of a column in one file, by its statistics as Delta writes them; None: they are not known."""
    rows, nulls = stats.get("numRecords"), _of_column(stats, "nullCount", name)
    if is_count(rows) and is_count(nulls) and rows == nulls:
        return ()
    low, high = _of_column(stats, "minValues", name), _of_column(stats, "maxValues", name)
    return None if not _ordered(low, high) or _replaced(low) or _replaced(high) else (low, _at_most(high))


def _ordered(low: Any, high: Any) -> bool:
    """Return whether these can be two ends: they are of one type that has bounds, and in their order."""
    return type(low) is type(high) and type(low) in (int, str) and bool(low <= high)


def _at_most(high: Any) -> Any:
    return high + _BEYOND if isinstance(high, str) and len(high) >= _PREFIX_LENGTH_MIN else high


def _of_column(stats: Mapping[str, Any], part: str, name: str) -> Any:
    """Return a statistic of a column; None where there is none, or two: names are compared without regard to case, as
    in Spark.
    """
    values = stats.get(part)
    found = [value for column, value in values.items() if column.lower() == name] if isinstance(values, dict) else []
    return found[0] if len(found) == 1 else None


def _alike(known: tuple[Any, ...], ends: tuple[Any, ...]) -> bool:
    """Return whether all ends are of one type; a column may have been replaced by one of another."""
    return len({type(end) for end in (*known, *ends)}) <= 1


def _apart(known: _Ends, ends: tuple[Any, Any]) -> bool:
    return known is not None and _alike(known, ends) and (not known or ends[1] < known[0] or known[1] < ends[0])


# --- hashes without Spark ---------------------------------------------------------------------------------------------
# They are the same that Spark has for `hash_sql`, of keys for which that is certain. Spark's xxhash64 is XXH64 (Yann
# Collet, https://xxhash.com), of a double its eight bytes, of a text those of UTF-8; the hash of each value is the seed
# of the next, and nulls are passed over. A key's value counts as a double if its text is a number, and as its text
# otherwise. Which texts Java takes for numbers is decided here only where it is plain.

TEXTS_HASHED_MAX = 20_000
"""Rows whose keys are hashed without Spark where a key is a text: each takes some microseconds."""

_SEED = 42
_MASK = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_STRIPE, _LANE = 32, 8
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,14}", re.ASCII)
# All that Java takes for a number, and perhaps more, and what Spark does besides.
_DECIMAL = r"(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?"
_HEXADECIMAL = r"0x[\da-f]*(\.[\da-f]*)?p[+-]?\d+"
_MAY_BE_NUMBER = re.compile(
    rf"[\x00-\x20]*[+-]?(nan|inf|infinity|({_DECIMAL}|{_HEXADECIMAL})[fd]?)[\x00-\x20]*", re.IGNORECASE
)

Hashes = npt.NDArray[np.uint64]


def key_hashes(rows: pa.Table, key: Sequence[str]) -> pa.Array | None:
    """Return the hash of each row's key, a signed number of 64 bits; None: Spark has to find them."""
    names = {name.lower(): name for name in rows.column_names}
    hashes = np.full(len(rows), _SEED, np.uint64)
    for name in key:
        found = _hashed(rows[names[name.lower()]].combine_chunks(), hashes)
        if found is None:
            return None
        hashes = found
    return pa.array(hashes.view(np.int64))


def _hashed(values: pa.Array, seeds: Hashes) -> Hashes | None:
    kind = values.type
    if pa.types.is_integer(kind):
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        doubles = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
        return np.where(valid, _hash_doubles(doubles, seeds), seeds)
    if len(values) > TEXTS_HASHED_MAX:
        return None
    if pa.types.is_boolean(kind):
        texts = [None if each is None else str(each).lower() for each in values.to_pylist()]
    elif pa.types.is_date32(kind):
        try:
            texts = [None if each is None else each.isoformat() for each in values.to_pylist()]
        except (ValueError, OverflowError):  # a year that Python does not have
            return None
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = values.to_pylist()
        if any(map(_may_be_odd_number, texts)):
            return None
    else:
        return None
    return np.fromiter(_each_hash(texts, seeds), np.uint64, len(texts))


def _may_be_odd_number(text: str | None) -> bool:
    return text is not None and _MAY_BE_NUMBER.fullmatch(text) is not None and _WHOLE.fullmatch(text) is None


def _each_hash(texts: Sequence[str | None], seeds: Hashes) -> Iterator[int]:
    known: dict[tuple[str, int], int] = {}
    for text, seed in zip(texts, seeds.tolist(), strict=True):
        if text is None:
            yield seed
            continue
        if (found := known.get((text, seed))) is None:
            number = _WHOLE.fullmatch(text) is not None
            bytes_of = np.float64(text).tobytes() if number else text.replace(" 00:00:00", "").encode()
            found = known[text, seed] = xxh64(bytes_of, seed)
        yield found


def _hash_doubles(doubles: npt.NDArray[np.float64], seeds: Hashes) -> Hashes:
    """Return the XXH64 of the eight bytes of each double."""
    p1, p2, p3, p4 = map(np.uint64, (_P1, _P2, _P3, _P4))
    with np.errstate(over="ignore"):
        lanes = _rotated(doubles.view(np.uint64) * p2, 31) * p1
        found = _rotated((seeds + np.uint64((_P5 + _LANE) & _MASK)) ^ lanes, 27) * p1 + p4
        found = (found ^ (found >> np.uint64(33))) * p2
        found = (found ^ (found >> np.uint64(29))) * p3
        return found ^ (found >> np.uint64(32))


def _rotated(values: Hashes, places: int) -> Hashes:
    return (values << np.uint64(places)) | (values >> np.uint64(64 - places))


def xxh64(data: bytes, seed: int) -> int:
    """Return the XXH64 of `data`, a number of 64 bits without a sign."""
    length, at = len(data), 0
    if length >= _STRIPE:
        sums = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at <= length - _STRIPE:
            lanes = [int.from_bytes(data[at + start : at + start + _LANE], "little") for start in range(0, _STRIPE, 8)]
            sums = [_round(total, lane) for total, lane in zip(sums, lanes, strict=True)]
            at += _STRIPE
        found = sum(_rotate(total, places) for total, places in zip(sums, (1, 7, 12, 18), strict=True)) & _MASK
        for total in sums:
            found = ((found ^ _round(0, total)) * _P1 + _P4) & _MASK
    else:
        found = (seed + _P5) & _MASK
    found = (found + length) & _MASK
    while at <= length - _LANE:
        lane = int.from_bytes(data[at : at + _LANE], "little")
        found = (_rotate(found ^ _round(0, lane), 27) * _P1 + _P4) & _MASK
        at += _LANE
    if at <= length - 4:
        half = int.from_bytes(data[at : at + 4], "little")
        found = (_rotate(found ^ ((half * _P1) & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = (_rotate(found ^ ((byte * _P5) & _MASK), 11) * _P1) & _MASK
    found = ((found ^ (found >> 33)) * _P2) & _MASK
    found = ((found ^ (found >> 29)) * _P3) & _MASK
    return found ^ (found >> 32)


def _round(total: int, lane: int) -> int:
    return (_rotate((total + lane * _P2) & _MASK, 31) * _P1) & _MASK


def _rotate(value: int, places: int) -> int:
    return ((value << places) | (value >> (64 - places))) & _MASK


# --- hashes by Spark --------------------------------------------------------------------------------------------------
# Rows and keys that differ have different hashes. Spark's own function passes over nulls, runs the elements of arrays
# into one another, and refuses maps and variants. So what is hashed is spelled out here: for each value first whether
# it is null; for each array its length and its elements' hashes; for each map the hashes of its entries, sorted. The
# float -0.0 counts as 0.0, and all NaN as one, as for Spark's `<=>`; texts count by their bytes, whatever their
# collation.

_SALTS = (1, 2)
"""They make two functions of one."""


def row_hashes(frame: DataFrame) -> tuple[Column, Column]:
    """Return two hashes of a row of `frame`, by its columns."""
    fields = frame.schema.fields
    nested = [part for field in fields if _is_nested(field) for part in _spelled(_column(field), field.dataType)]
    # As one text of SQL: a call of the JVM for each column takes longer than all that Spark does with a small table.
    names = [quoted(field.name) for field in fields if not _is_nested(field)]
    plain = "".join(f", isnull({name}), {name}" for name in names)
    first, second = (F.expr(f"xxhash64({salt}{plain})") for salt in _SALTS)
    return (F.xxhash64(first, *nested), F.xxhash64(second, *nested)) if nested else (first, second)


def key_hash(frame: DataFrame, key: Sequence[str]) -> Column:
    fields = {field.name.lower(): field for field in frame.schema.fields}
    spelled = [part for name in key for part in _spelled(F.col(quoted(name)), fields[name.lower()].dataType)]
    return F.xxhash64(*spelled)


def value_hash(value: Column, kind: T.DataType) -> Column:
    return F.xxhash64(*_spelled(value, kind))


def _is_nested(field: T.StructField) -> bool:
    return isinstance(field.dataType, T.StructType | T.ArrayType | T.MapType | T.VariantType)


def _column(field: T.StructField) -> Column:
    return F.col(quoted(field.name))


def _spelled(value: Column, kind: T.DataType) -> Iterator[Column]:
    """Yield the columns to hash for `value`."""
    yield value.isNull()
    match kind:
        case T.StructType(fields=fields):
            for field in fields:
                yield from _spelled(value.getField(field.name), field.dataType)
        case T.ArrayType(elementType=inner):
            yield F.size(value)
            yield F.transform(value, lambda each: value_hash(each, inner))
        case T.MapType(keyType=key, valueType=inner):
            yield F.size(value)
            yield F.array_sort(
                F.transform(
                    F.map_entries(value),
                    lambda entry: F.xxhash64(*_spelled(entry["key"], key), *_spelled(entry["value"], inner)),
                )
            )
        case T.VariantType():
            yield F.to_json(value)
            yield F.schema_of_variant(value)  # a date and a text of it print alike
        case _:
            yield value
