"""The span of one refresh of a view: from which version of each table to which, such that no versions of a table are
mixed; the parts of the refresh that are measured, and the time after which a refresh by changes is given up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from py4j.protocol import Py4JJavaError

from iscp.delta.rows.net_changes import CHANGE_TYPE, STAMPS, WRITES
from iscp.model.job.iteration import Bounds
from iscp.model.values.errors import Canceled, EngineError
from iscp.model.values.progress import TableSize, total_size
from iscp.model.values.watermark import NO_TOTALS, Position, QueryTotals, SourceMark, SourceMarks, committed_apart
from iscp.ports.consumer import Consumed, Refreshed
from iscp.ports.source import NO_ORIGIN, ChangeSet, ChangeSource, ChangesUnavailableError, CommitOrigin, SourceRange
from iscp.ports.system import Clock, Guard
from iscp.spark.spark_engine import JobBudget
from iscp.system.late_imports import E, F
from iscp.views.changes.signed_rows import WEIGHT
from iscp.views.refresh.refresh_choice import (
    Held,
    Mix,
    RefreshChoice,
    Stand,
    Stands,
    VersionChoice,
    choose_versions,
    find_mix,
    merged_stands,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# --- parts of a refresh -----------------------------------------------------------------------------------------------
# How long the parts of a refresh take, and how many rows of its tables it reads, is measured for the history.

P = ParamSpec("P")
R = TypeVar("R")


class Part(StrEnum):
    """The part of a refresh. SPANS reads the tables' logs. PLAN has Spark analyze the query. CHANGES reads changed
    rows, and sums them up where that is done without Spark. STATE computes and writes what is stored beside the target.
    ROWS is all else, mostly to compute the rows and to write them.
    """

    SPANS = "spans"
    PLAN = "plan"
    CHANGES = "changes"
    STATE = "state"
    ROWS = "rows"


@dataclass(slots=True)
class RefreshParts:
    """The parts of one refresh. `rows_in` is -1 once somebody cannot say how many rows it has read.

    `bytes_in` are those of the files with what it reads.
    """

    clock: Clock
    parts_s: dict[str, float] = field(default_factory=dict)
    rows_in: int = 0
    bytes_in: int = 0
    inner_s: float = 0.0

    def count(self, rows: int | None) -> None:
        self.rows_in = -1 if rows is None or self.rows_in < 0 else self.rows_in + rows

    @contextmanager
    def measure(self, part: Part) -> Iterator[None]:
        """Measure what happens within, without the parts within it."""
        began_s, outer_s, self.inner_s = self.clock.monotonic_s(), self.inner_s, 0.0
        try:
            yield
        finally:
            took_s = self.clock.monotonic_s() - began_s
            own_s = self.parts_s.get(part.value, 0.0) + took_s - self.inner_s
            self.parts_s[part.value] = max(0.0, round(own_s, 4))
            self.inner_s = outer_s + took_s


_current: ContextVar[RefreshParts | None] = ContextVar("refresh_parts", default=None)


@contextmanager
def measuring(clock: Clock) -> Iterator[RefreshParts]:
    """Measure what happens within, on this thread, as ROWS where it is no other part."""
    parts = RefreshParts(clock)
    token = _current.set(parts)
    try:
        with parts.measure(Part.ROWS):
            yield parts
    finally:
        _current.reset(token)


def measured_as(part: Part) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have the calls of a function count as this part of the refresh that they are made in, if there is one."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            parts = _current.get()
            if parts is None:
                return function(*args, **kwargs)
            with parts.measure(part):
                return function(*args, **kwargs)

        return call

    return decorate


def count_read(rows: int | None) -> None:
    """Count changed rows that the refresh has read; None: nobody has counted them."""
    if (parts := _current.get()) is not None:
        parts.count(rows)


def count_bytes(size: int) -> None:
    """Count the bytes of files with changes that the refresh reads."""
    if (parts := _current.get()) is not None:
        parts.bytes_in += size


# --- versions that a view goes through --------------------------------------------------------------------------------

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


# --- the end of a refresh that takes too long -------------------------------------------------------------------------
# A refresh by changes ends when it has taken as long as a recomputation is expected to.


class RefreshAbandonedError(Exception):
    """The changes of the result have taken longer to compute than they were given, and nothing was committed."""


class _EndingGuard:
    """A guard that lets what is about to be committed take its time: it is computed."""

    def __init__(self, guard: Guard, budget: JobBudget) -> None:
        self._guard = guard
        self._budget = budget

    def check(self) -> None:
        self._budget.end()
        self._guard.check()


@contextmanager
def abandoning_after(session: SparkSession, guard: Guard, choice: RefreshChoice) -> Iterator[Guard]:
    """Give what computes within the choice's budget of Spark, until it checks the yielded guard.

    Raises RefreshAbandonedError.
    """
    with JobBudget(session, choice.budget_s) as budget:
        try:
            yield _EndingGuard(guard, budget)
        except (Canceled, EngineError, E.PySparkException, Py4JJavaError) as error:
            # A cancelled job shows in as many ways as there are things that need it.
            if not budget.spent:
                raise
            raise RefreshAbandonedError from error


# --- versions that mix nothing ----------------------------------------------------------------------------------------
# At these versions of its tables a refresh of a view mixes no versions of a table that several follow from. What a
# table's rows are made of is in its commits. The newest commit of each table that the view reads is read for the
# refresh anyway; more are read only if two of these tables follow from one table, and others of iscp's are between.

HARMLESS_MAX = 100
"""Commits in a row without rows (OPTIMIZE, a renewal) that are read to find what a table's rows are made of; with more
of them a table counts as one that follows from no other.
"""

PLACES_MAX = 1_000
"""Tables below those of a view that are searched for one that several follow from; what lies below others counts as
tables that follow from no other.
"""

APART_S = 60.0
"""Seconds for which tables of a view that follow from no table in common are taken to stay so, while what they are made
of at once stays the same: for so long, what is behind that costs no reads.
"""


@dataclass
class Agreement:
    """The memory of one view: the tables that it `held` at its last refresh, and what its tables were made of when they
    were found to follow from none in common (`apart`), which is trusted until `until_s`.
    """

    held: Mapping[str, Held] = field(default_factory=dict)
    apart: object = None
    until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AgreedEnd:
    """The end of a refresh; None: it is put off. `waits_for` says what the view waits for, for `wait_s` seconds at most
    before it is refreshed without that, and `mixed` what it mixes; both are empty if there is nothing of the kind.
    """

    end: RefreshEnd | None
    waits_for: str = ""
    wait_s: float = 0.0
    mixed: str = ""

    def put_off(self, position: Position) -> Refreshed:
        """Return the result of a refresh that is put off, of a view at this position."""
        there = Consumed(position, 0, 0)
        return self.noted(Refreshed(there, "unchanged", f"it waits for {self.waits_for}", committed=False))

    def noted(self, done: Refreshed) -> Refreshed:
        """Return a result that says what the view waits for, or mixes."""
        if self.mixed:
            warning = f"{done.warning}; {self.mixed}" if done.warning else self.mixed
            done = replace(done, warning=warning, reason=f"{done.reason}; {self.mixed}")
        return replace(done, waits_for=self.waits_for, wait_s=self.wait_s)


class TableStands:
    """Finds at which versions of other tables a view's tables stand, as their commits say. For one refresh.

    `places` are the URIs of all tables that were met, by their ids; `shared` is True if one was met on two ways.
    """

    def __init__(self, source: ChangeSource, newest: RefreshEnd) -> None:
        self._source, self._newest = source, newest
        self._origins: dict[tuple[str, int], CommitOrigin | None] = {
            (uri, each.to.version): each.origin for uri, each in newest.tables.items()
        }
        self._found: dict[tuple[str, int, bool], Stands] = {}
        self.places: dict[str, str] = {}
        self.shared = False

    def structure(self) -> object:
        """Return, of each table, the ids of those that it follows from at once; equal if these are the same."""
        tables = self._newest.tables.items()
        return {
            (uri, each.table_id): frozenset(
                mark.table_id for mark in self.origin(uri, each.to.version).sources.values()
            )
            for uri, each in tables
        }

    def at_newest(self) -> dict[str, Stands]:
        """Return the stands of all tables by their newest versions alone."""
        tables = self._newest.tables.items()
        found = {uri: self._stands(uri, each.table_id, each.to.version, (), wide=False) for uri, each in tables}
        self._merge(found.values())
        return found

    def at(self, uri: str, version: int) -> Stands:
        """Return the stands of one of the tables, at every version whose data is equal to this one's."""
        return self._stands(uri, self._newest.tables[uri].table_id, version, (), wide=True)

    def origin(self, uri: str, version: int) -> CommitOrigin:
        """Return what the rows are made of, which the last commit with rows, or of iscp's, says."""
        for each in range(version, max(-1, version - HARMLESS_MAX), -1):
            origin = self._origin(uri, each)
            if origin is None or origin.sources or origin.changes_data:
                return origin or NO_ORIGIN
        return NO_ORIGIN

    def _origin(self, uri: str, version: int) -> CommitOrigin | None:
        key = uri, version
        if key not in self._origins:
            self._origins[key] = self._source.origin(uri, version)
        return self._origins[key]

    def _stands(self, uri: str, table_id: str, version: int, path: tuple[str, ...], *, wide: bool) -> Stands:
        key = uri, version, wide
        if key not in self._found:
            self.places.setdefault(table_id, uri)
            last, path = self._last_equal(uri, version) if wide else version, (*path, table_id)
            stands = self._made_of(self.origin(uri, version), path, wide=wide)
            if last > version:
                later = self._made_of(self.origin(uri, last), path, wide=wide)
                stands = {each: _from(stands.get(each), stand) for each, stand in later.items()}
            self._found[key] = {**stands, table_id: Stand(version, last)}
        return self._found[key]

    def _made_of(self, origin: CommitOrigin, path: tuple[str, ...], *, wide: bool) -> dict[str, Stand]:
        found: list[Stands] = []
        for uri, mark in origin.sources.items():
            version = mark.watermark.version
            if mark.watermark.steps:  # a commit is applied in part
                found.append({mark.table_id: Stand(version + 1, version)})
            elif not uri or uri in origin.beyond or len(self.places) >= PLACES_MAX:
                found.append({mark.table_id: Stand(version, version)})
            elif mark.table_id not in path:  # views in a circle follow from themselves as they were
                found.append(self._stands(uri, mark.table_id, version, path, wide=wide))
        return self._merge(found)

    def _merge(self, each: Collection[Stands]) -> dict[str, Stand]:
        merged = merged_stands(each)
        self.shared |= len(merged) < sum(map(len, each))
        return merged

    def _last_equal(self, uri: str, version: int) -> int:
        for last in range(version, version + HARMLESS_MAX):
            origin = self._origin(uri, last + 1)
            if origin is None or origin.changes_data:
                return last
        return version


def _from(first: Stand | None, last: Stand) -> Stand:
    """Return the stand of rows that have stood at `first`, and have not changed since."""
    return last if first is None or first.mixed or last.mixed else Stand(first.low, max(first.high, last.high))


def agree_on_end(
    source: ChangeSource,
    newest: RefreshEnd,
    position: Position | None,
    names: Mapping[str, str],
    memory: Agreement,
    limit_s: float,
    now_s: float,
) -> AgreedEnd:
    """Return the end of a refresh of a view at `position` (None: it does not wait), whose tables have these `names` in
    its query; `now_s` is of one monotonic clock.
    """
    held, memory.held = memory.held, {}
    if not any(each.origin.sources or not each.origin.changes_data for each in newest.tables.values()):
        return AgreedEnd(newest)  # none of them is iscp's
    stands = TableStands(source, newest)
    structure = stands.structure()
    if structure == memory.apart and now_s < memory.until_s:
        return AgreedEnd(newest)
    mix = find_mix(stands.at_newest())
    memory.apart, memory.until_s = None if stands.shared else structure, now_s + APART_S
    if mix is None:
        return AgreedEnd(newest)
    versions = {uri: each.to.version for uri, each in newest.tables.items()}
    floor = None if position is None else _floor(position, newest)
    choice = choose_versions(versions, floor, stands.at, held, now_s, limit_s)
    memory.held = choice.held
    if choice.mix is None:
        return AgreedEnd(newest)
    called = {uri: name for name, uri in names.items()}
    words = _words(choice.mix, called, stands.places)
    if not choice.waits:
        return AgreedEnd(newest, mixed=f"its rows mix versions of a table: {words}")
    try:
        end = None if _is_there(choice, floor, position) else _end_at(source, newest, choice.versions or {})
    except ChangesUnavailableError:
        return AgreedEnd(newest, mixed=f"its rows mix versions of a table: {words}")
    behind = ", ".join(sorted(called.get(uri, uri) for uri in choice.mix.behind))
    return AgreedEnd(end, f"{behind} ({words})", choice.wait_s)


def _floor(position: Position, newest: RefreshEnd) -> dict[str, int]:
    """Return the versions at which the view is, and of tables that it has not read the newest ones."""
    found = {}
    for uri, each in newest.tables.items():
        mark = position.sources.get(uri)
        same = mark is not None and mark.table_id == each.table_id
        found[uri] = min(mark.watermark.version, each.to.version) if mark and same else each.to.version
    return found


def _is_there(choice: VersionChoice, floor: Mapping[str, int] | None, position: Position | None) -> bool:
    """Return whether the view is at the chosen versions, and its rows do not depend on the time."""
    if choice.versions is None:
        return True
    return choice.versions == floor and not (position and position.as_of_s)


def _end_at(source: ChangeSource, newest: RefreshEnd, versions: Mapping[str, int]) -> RefreshEnd:
    """Raises ChangesUnavailableError if a version is gone."""
    tables = newest.tables.items()
    at = {uri: each if each.to.version == versions[uri] else source.at(uri, versions[uri]) for uri, each in tables}
    return replace(newest, tables=at)


def _words(mix: Mix, called: Mapping[str, str], places: Mapping[str, str]) -> str:
    def stand(each: Stand) -> str:
        return f"at versions {each.high} and {each.low}" if each.mixed else f"at version {each.high}"

    (first, at), *others = sorted((called.get(uri, uri), found) for uri, found in mix.stands.items())
    common = f"{first} is {stand(at)} of {places.get(mix.table_id, mix.table_id)}"
    return ", ".join([common, *(f"{name} {stand(at)}" for name, at in others)])
