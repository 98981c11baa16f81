"""Find the versions of its tables that a view goes through in a refresh."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE, STAMPS, WRITES
from iscp.adapters.system.late_imports import F
from iscp.core.job.iteration import Bounds
from iscp.core.values.progress import TableSize, total_size
from iscp.core.values.totals import NO_TOTALS, QueryTotals
from iscp.core.values.watermark import Position, SourceMark, SourceMarks, committed_apart
from iscp.ports.source import ChangeSet, ChangeSource, ChangesUnavailableError, SourceRange
from iscp.views.changes.signed_rows import WEIGHT
from iscp.views.refresh.refresh_parts import Part, count_bytes, count_read, measured_as

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CHANGED_ROWS_MAX = 200_000
"""Changed rows of a result that are collected here, and taken out and put in without Spark; more are left with it."""

NO_ENDS: Mapping[str, int] = MappingProxyType({})
"""No versions, by URI: every table is read at its newest."""

_UNBOUNDED = Bounds(sys.maxsize, sys.maxsize, sys.maxsize)
"""No bounds: a view is at one version of each table, never between two."""


@dataclass(frozen=True, slots=True)
class Spans:
    """The changes of each table, by its URI, since the view's last refresh; `as_of_s` and `totals` are its
    Position's.
    """

    by_uri: Mapping[str, SourceRange]
    as_of_s: float = 0.0
    totals: QueryTotals = NO_TOTALS

    @property
    def changed(self) -> bool:
        return any(span.changes_data for span in self.by_uri.values())

    @property
    def bytes(self) -> int:
        return sum(span.bytes for span in self.by_uri.values() if span.changes_data)


@dataclass(frozen=True, slots=True)
class RefreshEnd:
    """The state for which a query is computed: a version of each table, by its URI, and the Unix time, if it depends on
    that.
    """

    tables: Mapping[str, SourceRange]
    instant_s: float

    @property
    def marks(self) -> SourceMarks:
        return {uri: SourceMark(span.table_id, span.to) for uri, span in self.tables.items()}


def later_ends(ends: Mapping[str, int], marks: SourceMarks) -> Mapping[str, int]:
    """Return the versions of `ends`, by URI, or those that were read already, where these are later."""
    return {uri: max(end, marks[uri].watermark.version) if uri in marks else end for uri, end in ends.items()}


def newest_until(source: ChangeSource, uri: str, version: int | None) -> SourceRange:
    """Return the empty range at this version, or at the newest one if that is earlier, or this one is gone, or None."""
    if version is not None:
        with suppress(ChangesUnavailableError):
            return source.at(uri, version)
    return source.newest(uri)


@measured_as(Part.SPANS)
def resolve_spans(source: ChangeSource, position: Position, end: RefreshEnd) -> Spans:
    """Return the changes of all tables since `position`.

    Raises ChangesUnavailableError, saying why, if one of them cannot be followed by its changes.
    """
    found = {}
    for uri, newest in end.tables.items():
        mark = position.sources.get(uri)
        if mark is None:
            raise ChangesUnavailableError(f"the view has not read {uri} before")
        if mark.table_id != newest.table_id:
            raise ChangesUnavailableError(f"{uri} was replaced")
        span = source.resolve(uri, mark.watermark, newest.to.version, _UNBOUNDED)
        if span.to.version < newest.to.version:
            # It ends before a commit whose changes are not known. A range that begins there is refused, saying why.
            source.resolve(uri, span.to, newest.to.version, _UNBOUNDED)
            raise ChangesUnavailableError(f"the changes of {uri} after version {span.to.version} are not known")
        _refuse_unfit(uri, span, mark.watermark.at_s)
        found[uri] = span
    spans = Spans(found, position.as_of_s, position.totals)
    count_bytes(spans.bytes)
    return spans


def _refuse_unfit(uri: str, span: SourceRange, applied_at_s: float) -> None:
    if committed_apart(span.from_at_s, applied_at_s):
        raise ChangesUnavailableError(f"the log of {uri} was recreated")
    if span.new_schema:
        raise ChangesUnavailableError(f"the columns of {uri} have changed")
    if span.changes_data and not (span.cdf_on or span.inserts_only):
        raise ChangesUnavailableError(f"the change data feed of {uri} is off, and rows of it were changed")


def tables_at(source: ChangeSource, marks: SourceMarks) -> dict[str, SourceRange]:
    """Return the tables as they were at these marks. Raises ChangesUnavailableError if one is no longer there as it
    was.
    """
    found = {}
    for uri, mark in marks.items():
        found[uri] = table = source.at(uri, mark.watermark.version)
        if table.table_id != mark.table_id or committed_apart(table.to.at_s, mark.watermark.at_s):
            raise ChangesUnavailableError(f"{uri} was replaced, or its log recreated")
    return found


@contextmanager
def reading(
    session: SparkSession, source: ChangeSource, uri: str, span: SourceRange, columns: Sequence[str], readers: int
) -> Iterator[ChangeSet]:
    """Yield these columns of a table's changes, as ChangeSource.read_cdf; rows that are equal to others are
    included.
    """
    read = source.read_cdf if span.cdf_on else source.read_appends
    changes = read(session, uri, span, columns, readers)
    try:
        yield changes.with_equal_rows()
    finally:
        changes.release()


class WeightedRows(NamedTuple):
    """Changed rows: in a plan with WEIGHT as the last column, and as they were read, if that was without Spark."""

    frame: DataFrame
    arrow: pa.Table | None


@measured_as(Part.CHANGES)
def read_weighted(
    stack: ExitStack, session: SparkSession, source: ChangeSource, uri: str, span: SourceRange, columns: Sequence[str]
) -> WeightedRows:
    """Return all changes of these columns; `stack` releases them."""
    changes = stack.enter_context(reading(session, source, uri, span, columns, 2))
    count_read(None if changes.table is None else len(changes.table))
    # What one task has of few rows needs no exchange, and no place in their order.
    frame = changes.all(()) if changes.table is None else changes.every().coalesce(1)
    weight = F.when(F.col(CHANGE_TYPE).isin(*WRITES), F.lit(1)).otherwise(F.lit(-1)).cast("long")
    return WeightedRows(frame.withColumn(WEIGHT, weight).drop(CHANGE_TYPE, *STAMPS), changes.table)


def size_of_tables(source: ChangeSource, tables: SourceMarks) -> TableSize:
    """Return the size of all tables together, as their logs say."""
    return total_size(source.size(uri, mark.watermark.version) for uri, mark in tables.items())
