"""The plans by Spark of views that were refreshed lately: their queries, and their tables as they were then.

A refresh begins where the last one ended, at the same versions of the tables. To open one of them again, and to analyze
the query again, takes as long as all the rest of a small refresh.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from iscp.adapters.delta.spark.spark_engine import heap_share_of
from iscp.views.analysis.query_analysis import AnalyzedQuery, analyze_query
from iscp.views.catalyst.catalyst import Catalyst, Plan

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

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
