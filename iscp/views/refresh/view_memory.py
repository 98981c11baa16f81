"""The knowledge of a view between its refreshes: what a node caches of it, Spark's plans of views that were refreshed
lately, and the notes that are stored beside a view's rows. All of it can be found out again.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from iscp.algebra.duck_text import translate
from iscp.algebra.stored_query import (
    QUERY_BYTES_MAX,
    KeptInput,
    QueryOrigin,
    StoredQuery,
    query_from_json,
    query_to_json,
)
from iscp.model.sql.sql_names import TimeDependence, next_refresh_at_s
from iscp.model.values.errors import StorageError
from iscp.model.values.watermark import SourceMark
from iscp.ports.sink import TargetNotes
from iscp.ports.source import ChangeSource, SourceRange
from iscp.spark.spark_engine import heap_share_of
from iscp.views.analysis.query_analysis import AnalyzedQuery, algebra_of, analyze_query, depth_of_stored
from iscp.views.catalyst.catalyst import Catalyst, Plan
from iscp.views.refresh.refresh_choice import (
    RefreshHistory,
    RefreshSample,
    TrialName,
    refreshes_from_json,
    refreshes_to_json,
    with_sample,
)
from iscp.views.refresh.table_spans import Agreement, Part, measured_as

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)

# --- notes beside a view's rows ---------------------------------------------------------------------------------------
# Notes are stored for processes that have not seen the view. They are the view's query as Spark has read it once, and
# what former refreshes took. Nothing depends on either: without the first Spark analyzes the query again, without the
# second a refresh knows of no former ones.

QUERY_NOTE, REFRESH_NOTE = "query", "refreshes"
"""The names of the notes in the target's directory."""

REFRESHES_BYTES_MAX = 64 * 1024
"""Bytes that are read of what former refreshes took; a larger file was written by somebody else."""


@measured_as(Part.PLAN)
def read_query(query: AnalyzedQuery) -> StoredQuery:
    """Return an analyzed query as it is stored; without its algebra if something in it is computed by Spark alone."""
    root = algebra_of(query)
    if translate(root).gaps:
        return StoredQuery()
    if StoredQuery(root).clock_types:  # what is stored of a query would be of one time
        return StoredQuery(root)
    above = depth_of_stored(query)
    kept = None if above is None else KeptInput(root, above, query.sums is not None)
    return StoredQuery(root, kept if kept is not None and kept.is_sound else None)


class ViewNote:
    """A note of one view. Not safe for threads, as all of a view's memory. `notes` are those of its target."""

    def __init__(self, notes: TargetNotes, name: str, bytes_max: int) -> None:
        self._notes, self._name, self._bytes_max = notes, name, bytes_max
        self._content: bytes | None = None
        self._reported = False

    def read(self) -> bytes:
        """Return the content of the note, empty if it cannot be had."""
        try:
            self._content = self._notes.read_note(self._name, self._bytes_max) or b""
        except StorageError as error:
            self._report(error)
            self._content = b""
        return self._content

    def store(self, content: bytes) -> None:
        """Store the content, unless it is there already; a fault is logged once, and harms nobody."""
        if content == (self.read() if self._content is None else self._content):
            return
        try:
            self._notes.write_note(self._name, content)
            self._content = content
        except StorageError as error:
            self._report(error)

    def _report(self, error: StorageError) -> None:
        if not self._reported:
            log.warning("view.note_unstored", extra={"note": self._name, "error": str(error)})
            self._reported = True


class QueryNote:
    """The stored query of one view.

    The file follows from the query, the schemas of its tables and the versions of the programs alone. So it does not
    matter who has written it last. `origin` has no schemas, which are given with each call.
    """

    def __init__(self, notes: TargetNotes, origin: QueryOrigin) -> None:
        self._note, self._own = ViewNote(notes, QUERY_NOTE, QUERY_BYTES_MAX), origin
        self._found: tuple[StoredQuery, QueryOrigin] | None = None

    def read(self, schemas: Mapping[str, str]) -> StoredQuery | None:
        """Return the query over tables of these schemas, as their logs have them, or None if Spark has to read it."""
        return query_from_json(self._note.read(), self._origin(schemas))

    def learn(self, query: StoredQuery, schemas: Mapping[str, str]) -> None:
        """Take the query that was read over tables of these schemas, to be stored once a refresh has succeeded."""
        self._found = query, self._origin(schemas)

    def store(self) -> None:
        """Store what was learned last."""
        if self._found is not None:
            content, self._found = query_to_json(*self._found), None
            if content is not None:
                self._note.store(content)

    def _origin(self, schemas: Mapping[str, str]) -> QueryOrigin:
        return replace(self._own, schemas=schemas)


class RefreshNote:
    """The record of former refreshes of one view, of whichever process."""

    def __init__(self, notes: TargetNotes) -> None:
        self._note = ViewNote(notes, REFRESH_NOTE, REFRESHES_BYTES_MAX)
        self._known: RefreshHistory | None = None
        self._is_stored = True

    @property
    def history(self) -> RefreshHistory:
        if self._known is None:
            self._known = refreshes_from_json(self._note.read())
        return self._known

    def remember(self, sample: RefreshSample) -> None:
        self._learn(replace(self.history, samples=with_sample(self.history.samples, sample)))

    def learn(self, name: TrialName, *, found: bool) -> None:
        self._learn(self.history.after(name, found=found))

    def store(self) -> None:
        """Store what was remembered since; of processes that do so at once the last one's counts."""
        if not self._is_stored:
            self._is_stored = True
            self._note.store(refreshes_to_json(self.history))

    def _learn(self, history: RefreshHistory) -> None:
        if history != self._known:
            self._known, self._is_stored = history, False


# --- the memory of one view -------------------------------------------------------------------------------------------

SERVED_LEAST = 3
"""Refreshes that stored groups have to serve, on average, to be written again where they are of other versions: they
are computed of all rows, which views whose changes are now few and now many would pay each time.
"""


@dataclass
class StoringWorth:
    """The decision whether stored groups save more than it costs to write them, once other refreshes have come
    between.
    """

    written: int = 0
    served: int = 0

    def write(self) -> bool:
        """Return whether they are to be written; that counts as done."""
        if self.served < SERVED_LEAST * self.written:
            return False
        self.written += 1
        return True


@dataclass
class TableSizes:
    """The bytes of a view's tables, each as it was last; most are as they were from one refresh to the next."""

    _known: dict[str, tuple[SourceMark, int]] = field(default_factory=dict)

    def of_all(self, source: ChangeSource, tables: Mapping[str, SourceRange]) -> int:
        return sum(self.of(source, uri, each) for uri, each in tables.items())

    def of(self, source: ChangeSource, uri: str, at: SourceRange) -> int:
        mark = SourceMark(at.table_id, at.to)
        if uri not in self._known or self._known[uri][0] != mark:
            self._known[uri] = mark, source.size(uri, at.to.version).bytes
        return self._known[uri][1]


class ViewMemory:
    """The memory of one view. It is not safe for threads: a job is in one iteration at a time."""

    def __init__(self) -> None:
        self._query: StoredQuery | None = None
        self.worth = StoringWorth()
        self.sizes = TableSizes()
        self.agreement = Agreement()
        self.note: QueryNote | None = None
        self.refreshes: RefreshNote | None = None
        self.by_time: TimeDependence | None = None

    def due_at_s(self, refreshed_at_s: float, now_s: float, interval_s: float | None) -> float:
        """Return when its rows change as time passes, in Unix seconds; 0: they do not."""
        return 0.0 if self.by_time is None else next_refresh_at_s(self.by_time, refreshed_at_s, now_s, interval_s)

    def query(self, find: Callable[[], StoredQuery]) -> StoredQuery:
        """Return the view's query; found out once, while no table's columns change."""
        if self._query is None:
            self._query = find()
        return self._query

    @property
    def is_computed_here(self) -> bool:
        """Return whether small changes are computed without Spark, as far as is known."""
        return self._query is not None and self._query.root is not None

    def learn(self, query: StoredQuery | None) -> None:
        """Take the view's query; None: the tables' columns may be others, and it has to be read again."""
        self._query = query


# --- plans of recent views --------------------------------------------------------------------------------------------
# A refresh begins where the last one ended, at the same versions of the tables. To open one of them again, and to
# analyze the query again, takes as long as all the rest of a small refresh. So the plans by Spark are cached of views
# that were refreshed lately, with their tables as they were then.

RECENT_VIEWS_MAX = 64
"""Views of a node whose plans are cached in the JVM; those of the longest unrefreshed are dropped, and made again."""

HEAP_SHARE_MAX = 0.75
"""The share of the JVM's space for objects that live long: where more stays in use, half of the views, the longest
unrefreshed, are dropped. A JVM without memory ends, and all jobs of the node with it.
"""

COLLECTIONS = 12
"""Full collections after each of which so much is in use: one may lie in the middle of a large query, and after each
those rows that were broadcast since the one before are still there, as Spark frees them afterwards.
"""

TablePlace = tuple[str, str, int, float]
"""The URI and id of a table, its version, and when that was committed, which differs if the log was recreated."""


@dataclass
class RecentView:
    """One view. Not safe for threads: a job is in one iteration at a time. Plans are those of one JVM."""

    context: SparkContext | None = None
    _asked: tuple[str, Mapping[str, str]] = ("", {})
    _query: AnalyzedQuery | None = None
    _opened: OrderedDict[TablePlace, Plan] = field(default_factory=OrderedDict)

    def analyze(self, session: SparkSession, sql: str, schemas: Mapping[str, str]) -> AnalyzedQuery:
        """Return the query as `analyze_query` does, or as it was analyzed before."""
        self._follow(session)
        if self._query is None or self._asked != (sql, schemas):
            self._query, self._asked = analyze_query(session, sql, schemas), (sql, schemas)
        return replace(self._query, catalyst=Catalyst(session))

    def open(
        self, session: SparkSession, where: TablePlace, load: Callable[[], DataFrame], cached_max: int
    ) -> DataFrame:
        """Return the table's rows; the last `cached_max` tables are remembered."""
        self._follow(session)
        catalyst = Catalyst(session)
        plan = self._opened.pop(where, None) or catalyst.plan_of(load())
        self._opened[where] = plan
        while len(self._opened) > cached_max:
            self._opened.popitem(last=False)
        return catalyst.frame(plan)

    def _follow(self, session: SparkSession) -> None:
        if self.context is not session.sparkContext:
            self.context, self._query = session.sparkContext, None
            self._opened.clear()


class RecentViews:
    """The recent views of one node; safe for threads. `heap_share` gives the share of the JVM's heap in use."""

    def __init__(self, heap_share: Callable[[SparkContext], float] = heap_share_of) -> None:
        self._heap_share = heap_share
        self._views: OrderedDict[Hashable, RecentView] = OrderedDict()
        self._shares = deque[float](maxlen=COLLECTIONS)
        self._lock = threading.Lock()

    def of(self, name: Hashable) -> RecentView:
        with self._lock:
            view = self._views.pop(name, None) or RecentView()
            cached_max = RECENT_VIEWS_MAX - 1
            if view.context is not None and self._is_full(view.context):
                cached_max = len(self._views) // 2
            while len(self._views) > cached_max:
                self._views.popitem(last=False)
            self._views[name] = view
            return view

    def _is_full(self, context: SparkContext) -> bool:
        """Return whether the heap was full since views were dropped last: until the JVM collects they are in use."""
        share = self._heap_share(context)
        if not self._shares or self._shares[-1] != share:
            self._shares.append(share)
        if len(self._shares) < COLLECTIONS or min(self._shares) < HEAP_SHARE_MAX:
            return False
        self._shares.clear()
        return True
