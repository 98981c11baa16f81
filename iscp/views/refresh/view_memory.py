"""The knowledge that a node caches of a view between its refreshes; all of it can be found out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from iscp.core.algebra.stored_query import StoredQuery
from iscp.core.sql.time_dependence import TimeDependence, next_refresh_at_s
from iscp.core.values.watermark import SourceMark
from iscp.ports.source import ChangeSource, SourceRange
from iscp.views.refresh.agreed_end import Agreement
from iscp.views.refresh.view_notes import QueryNote, RefreshNote

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
