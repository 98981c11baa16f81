"""Bounds of keys: those of changed rows, and those of the rows in a table's files, by their statistics.

Where a key is new and lies outside of all that the table has, rows can be appended without reading its rows. Most keys
are like that, as they count upwards. Each key column is taken for itself: rows that differ in one have other keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.log.actions import is_count, statistics_of
from iscp.adapters.delta.log.add_actions import add_actions_of
from iscp.adapters.delta.log.commits import commit_stamp, statistics_added
from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.spark.text_bytes import REPLACEMENT
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.adapters.system.late_imports import F, T
from iscp.core.sql.sql_names import quoted
from iscp.ports.source import KeyBounds

if TYPE_CHECKING:
    from pyspark.sql import Column

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
