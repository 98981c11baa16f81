"""The rows that a refresh's plans are made of: those of tables, and those computed on the way.

Each stands in plans below an alias of its own, by which it is found there again: Spark gives the columns of rows that
are in one plan twice other ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.spark.arrow_frame import frame_of_arrow
from iscp.adapters.delta.spark.cached_frame import cached, release
from iscp.views.catalyst.catalyst import Catalyst, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.known_totals import KnownTotals
from iscp.views.changes.plan_leaf import OF_QUERY, Leaf, TableLookup
from iscp.views.changes.signed_rows import ChangedRows, TableChange, collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEAF_PREFIX = "iscp_rows_"
_numbers = count(1)

COMPUTED_ROWS_MAX = 20_000
"""Rows that are computed on the way to a refresh's changes, collected here and handed back; more stay cached in
Spark.
"""


@dataclass(frozen=True, slots=True)
class Computed:
    """Computed rows (None: there are none), the plan that computed them, and how many could be collected (0: none
    were).
    """

    rows: ChangedRows | None
    plan: Plan
    collected_max: int


@dataclass
class BuildTimer:
    """A clock for the building of plans that later refreshes repeat, without what is computed meanwhile. One thread
    uses it, and others may read it.
    """

    now_s: Callable[[], float] = time.monotonic
    _spent: tuple[float, float | None] = field(default=(0.0, None))
    """The seconds until it was started or stopped last, and when it was started, if it runs."""

    @property
    def spent_s(self) -> float:
        spent_s, since_s = self._spent
        return spent_s if since_s is None else spent_s + self.now_s() - since_s

    @contextmanager
    def run(self) -> Iterator[None]:
        with self._switch(self.now_s()):
            yield

    @contextmanager
    def pause(self) -> Iterator[None]:
        with self._switch(None):
            yield

    @contextmanager
    def _switch(self, since_s: float | None) -> Iterator[None]:
        ran = self._spent[1] is not None
        self._spent = self.spent_s, since_s
        try:
            yield
        finally:
            self._spent = self.spent_s, self.now_s() if ran else None

    def forget(self, since_s: float) -> None:
        """Take back what was spent since it read this: it is spent again each time."""
        self._spent = since_s, self._spent[1]


class PlanLeaves:
    """The leaves of one refresh. Tables are opened when they are needed; what is computed is cached until `close`.

    `named` has the leaves that stand in plans, by their aliases, `computed` those that were computed, in this order.
    `timer` is paused while rows are read or computed.
    """

    def __init__(
        self,
        catalyst: Catalyst,
        tables: Mapping[str, TableChange] | None = None,
        totals: KnownTotals | None = None,
        timer: BuildTimer | None = None,
    ) -> None:
        self.named: dict[str, Leaf] = {}
        self.computed: dict[Leaf, Computed] = {}
        self._arrow: dict[Leaf, pa.Table] = {}
        self._plans: dict[Leaf, Plan] = {}
        self._catalyst = catalyst
        self._tables = tables or {}
        self._totals = totals or KnownTotals()
        self._timer = timer or BuildTimer()
        self._cached: list[DataFrame] = []

    def close(self) -> None:
        for frame in self._cached:
            release(frame)
        self._cached.clear()

    def key(self) -> Hashable:
        """Return a key such that the same plans are made for leaves with equal keys.

        It has the tables and totals that changed, and the magnitudes of the tables, on which depends how a change is
        joined with one.
        """
        tables = tuple((name, each.changes() is None, each.bytes.bit_length()) for name, each in self._tables.items())
        return tables, tuple((node, self._totals.changed(node)) for node in self._totals.after)

    def of(self, leaf: Leaf) -> Plan | None:
        """Return the rows' plan, or None if they were not given or computed."""
        if leaf not in self._plans:
            with self._timer.pause():
                plan = self._opened(leaf)
            if plan is None:
                return None
            self.give(leaf, plan)
        return self._plans[leaf]

    def rows(self, leaf: Leaf) -> Plan:
        """Return the rows' plan, which must be there."""
        plan = self.of(leaf)
        assert plan is not None, f"{leaf} was not given"
        return plan

    def give(self, leaf: Leaf, plan: Plan, arrow: pa.Table | None = None) -> None:
        """Make rows known for a leaf; `rows` are the same ones in this process, if they are there."""
        if arrow is not None:
            self._arrow[leaf] = arrow
        name = f"{LEAF_PREFIX}{next(_numbers)}"
        self.named[name], self._plans[leaf] = leaf, self._catalyst.named(name, plan)

    def _opened(self, leaf: Leaf) -> Plan | None:
        if isinstance(leaf.of, PlanNode):
            if leaf.what == OF_QUERY:
                return leaf.of.plan
            return None if leaf.at is None else self._totals.row(self._catalyst, leaf.of, leaf.at)
        table = self._tables.get(leaf.of)
        if table is None:
            return None
        if isinstance(leaf.what, TableLookup):
            return self._look_up(table, leaf, leaf.what)
        frame = table.changes() if leaf.at is None else table.rows(leaf.at)
        return None if frame is None else self._catalyst.plan_of(frame)

    def _look_up(self, table: TableChange, leaf: Leaf, lookup: TableLookup) -> Plan | None:
        if table.find is None or leaf.at is None:
            return None
        parts = list[pa.Table]()
        for each, places in lookup.sought:
            if (arrow := self.arrow(each)) is None:
                return None
            keys = pa.table([arrow.column(place) for place in places], names=[*lookup.columns])
            parts.append(keys.cast(parts[0].schema) if parts else keys)
        found = table.find(leaf.at, pa.concat_tables(parts))
        if found is None:
            return None
        self._arrow[leaf] = found.arrow
        return self._catalyst.plan_of(found.frame)

    def arrow(self, leaf: Leaf) -> pa.Table | None:
        """Return the leaf's rows, if they are in this process."""
        if leaf not in self._arrow and self.of(leaf) is not None and leaf == Leaf(leaf.of, None):
            table = self._tables.get(leaf.of) if isinstance(leaf.of, str) else None
            changed = None if table is None else table.arrow()
            if changed is not None:
                self._arrow[leaf] = changed
        return self._arrow.get(leaf)

    def changed(self, node: PlanNode) -> Plan:
        """Return the changed rows of the table that a node reads, with nulls where its columns are not needed."""
        return self._catalyst.widened(self.rows(Leaf(node.operator.table, None)), node.plan, weighted=True)

    def looked_up(self, node: PlanNode, leaf: Leaf) -> Plan:
        """Return the rows that were looked up in the table of a node, with nulls where its columns are not needed."""
        return self._catalyst.widened(self.rows(leaf), node.plan, weighted=False)

    # --- what is computed -----------------------------------------------------------------------------------------

    def cache(self, frame: DataFrame) -> DataFrame:
        """Return a frame that is evaluated once, when it is needed, and cached until `close`."""
        frame = cached(frame)
        self._cached.append(frame)
        return frame

    def count(self, frame: DataFrame) -> ChangedRows | None:
        """Evaluate a frame now and cache it; return its rows, or None if there are none."""
        frame = self.cache(frame)
        rows = frame.count()
        return ChangedRows(frame, rows) if rows else None

    def compute_once(self, leaf: Leaf, build: Callable[[], DataFrame], collected_max: int) -> ChangedRows | None:
        """Return the rows that `compute` gives for the result of `build`; they are computed only once."""
        known = self.computed.get(leaf)
        if known is not None:
            return known.rows
        return self.compute(leaf, build(), min(collected_max, COMPUTED_ROWS_MAX))

    def compute(self, leaf: Leaf, frame: DataFrame, collected_max: int) -> ChangedRows | None:
        """Evaluate a frame now, and make its rows known for a leaf; return them, or None if there are none.

        Up to `collected_max` rows are collected here and handed back: Spark then knows how many they are before it
        plans.
        """
        with self._timer.pause():
            arrow = collected(frame, collected_max) if collected_max else None
            if arrow is None:
                found = self.count(frame)
            elif len(arrow):
                found = ChangedRows(frame_of_arrow(frame.sparkSession, arrow), len(arrow), arrow)
            else:
                found = None
        if found is not None:
            self.give(leaf, self._catalyst.plan_of(found.frame), found.arrow)
            found = replace(found, frame=self._catalyst.frame(self.rows(leaf)))
        self.computed[leaf] = Computed(found, self._catalyst.plan_of(frame), collected_max if arrow is not None else 0)
        return found

    def computed_as(self, frame: DataFrame) -> Leaf | None:
        """Return the leaf that was computed as this very frame."""
        found = (leaf for leaf, each in self.computed.items() if each.rows is not None and each.rows.frame is frame)
        return next(found, None)
