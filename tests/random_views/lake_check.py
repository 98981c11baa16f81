"""A case with Delta tables, a job and its runner: what the view's table holds after each refresh."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from random import Random

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime
from tests.both_ways.keepers import Brought, Keeper, RunKeeper, brought_by, kept_by_cluster, request_of
from tests.integration.views.conftest import Lake, ViewBench
from tests.random_views.cases import Case
from tests.random_views.cells import Family
from tests.random_views.histories import Numbers, RowChange, Table, changes_of, first_rows, rows_after
from tests.random_views.plan_check import UnfitCaseError, Wrong, arrow_of
from tests.random_views.query_tree import Mode, NoQueryError
from tests.random_views.row_bags import alike, bag_of, difference

ROW, _OP = "rid", "op"
"""The number of a row, by which it is found; no query names it."""


class CaseLake(Lake):
    """The tables that a case's query reads; `root` is empty at first. `uris`: where the query reads them."""

    def __init__(self, root: Path, case: Case) -> None:
        self.root, self.draw = root, Random(0)
        self.below: ViewBench | None = None
        self.tables = [each for each in case.tables if re.search(rf"(FROM|JOIN) {each.name}\b", case.sql)]
        self.uris = {each.name: str(root / each.name) for each in self.tables}
        self.rows = {each.name: first_rows(each) for each in self.tables}
        self._fresh = 1000
        self._written = dict(self.uris)
        for table in self.tables:
            rows = _numbered(table, self.rows[table.name])
            write_deltalake(self.uris[table.name], rows, configuration=_FEED)

    def chain(self, runtime: SparkRuntime) -> None:
        """Have the query read its first table through a view, whose rows are written again at each refresh."""
        first = self.tables[0].name
        self.below = ViewBench(_Below(self.root / "below", self.uris[first]), runtime, "SELECT * FROM b")
        self.below.refresh()
        self.uris[first] = self.below.target

    def commit(self, case: Case, number: int) -> None:
        """All that is committed before this refresh."""
        for commit in case.refreshes[number]:
            table = case.tables[commit.table % len(case.tables)]
            if table in self.tables:
                rows = self.rows[table.name]
                changes = changes_of(commit, table, rows, self._fresh)
                self._fresh += len(commit.steps)
                self.rows[table.name] = rows_after(rows, changes)
                if changes:
                    self._write(table, changes)

    def reorder(self) -> None:
        """Sort the files by another column each time, or write all rows again in another order; no row changes."""
        for table in self.tables:
            rows, column = self.rows[table.name], self.draw.randrange(len(table.columns))
            if rows and self.draw.random() < 0.4:
                drawn = self.draw.sample([*rows], len(rows))
                again = _numbered(table, {each: rows[each] for each in drawn})
                write_deltalake(self._written[table.name], again, mode="overwrite")
            elif rows and table.columns[column].of.family in _SORTED:
                DeltaTable(self._written[table.name]).optimize.z_order([f"c{column}"])
        if self.below is not None:
            self.below.refresh(full="it is written again")

    def _write(self, table: Table, changes: list[RowChange]) -> None:
        """As users may: rows appended, rows deleted, the whole table overwritten, or all kinds of changes merged."""
        uri = self._written[table.name]
        if all(each.before is None for each in changes):
            came = {each.row: each.after for each in changes if each.after is not None}
            write_deltalake(uri, _numbered(table, came), mode="append")
        elif all(each.after is None for each in changes):
            gone = ", ".join(str(each.row) for each in changes)
            DeltaTable(uri).delete(f"{ROW} IN ({gone})" if self.rows[table.name] else None)
        elif len(changes) > 3:
            write_deltalake(uri, _numbered(table, self.rows[table.name]), mode="overwrite")
        else:
            self._merge(uri, table, changes)

    def _merge(self, uri: str, table: Table, changes: list[RowChange]) -> None:
        rows = {each.row: each.after if each.after is not None else each.before or () for each in changes}
        ops = ["d" if each.after is None else "u" for each in changes]
        source = _numbered(table, rows).append_column(_OP, pa.array(ops, pa.string()))
        values = {name: f"s.{name}" for name in source.column_names if name != _OP}
        merge = DeltaTable(uri).merge(source, f"s.{ROW} = t.{ROW}", source_alias="s", target_alias="t")
        merge = merge.when_matched_delete(f"s.{_OP} = 'd'").when_matched_update(values)
        merge.when_not_matched_insert(values).execute()


class _Below(Lake):
    """One table, `b`, at `uri`."""

    def __init__(self, root: Path, uri: str) -> None:
        self.root, self.uris = root, {"b": uri}
        root.mkdir()


_FEED = {"delta.enableChangeDataFeed": "true"}
_SORTED = (Family.WHOLE, Family.DOUBLE, Family.TEXT)

_INTERNAL = "SQLSTATE: XX"
"""Of what Spark fails to optimize: all is recomputed then."""


def _numbered(table: Table, rows: dict[int, Numbers]) -> pa.Table:
    held = arrow_of(table, list(rows.values()))
    return held.append_column(pa.field(ROW, pa.int64()), pa.array(list(rows), pa.int64()))


@dataclass
class LakeCheck:
    """Of cases one after the other, each in a directory of its own below `root`."""

    runtime: SparkRuntime
    root: Path
    keepers: Sequence[Keeper] = (Keeper.NODE,)
    """Who refreshes the view, one after the other, over and over again."""
    by_spark: bool | None = None
    """Whether DuckDB computes no changes; None: none of every second case."""
    strategies: Counter[str] = field(default_factory=Counter)
    _numbers: count[int] = field(default_factory=count)

    def check(self, case: Case) -> Wrong | None:
        """What is wrong at first. Raises UnfitCaseError."""
        try:
            number = next(self._numbers)
            lake = CaseLake(self.root / str(number), case)
        except NoQueryError as error:
            raise UnfitCaseError(str(error)) from error
        try:
            if case.chained and lake.tables:
                lake.chain(self.runtime)
            by_spark = bool(number % 2) if self.by_spark is None else self.by_spark
            view = ViewBench(lake, self.runtime, case.sql, by_spark=by_spark, refresh="incremental")
            return self._follow(case, lake, view, cycle(self.keepers))
        except InvalidRequest as error:
            raise UnfitCaseError(str(error)) from error
        finally:
            shutil.rmtree(lake.root, ignore_errors=True)

    def _follow(self, case: Case, lake: CaseLake, view: ViewBench, turns: Iterator[Keeper]) -> Wrong | None:
        if wrong := self._run(case, view, lake, next(turns)):
            return wrong
        for number in range(len(case.refreshes)):
            lake.commit(case, number)
            if case.mode is Mode.SUMS:
                lake.reorder()
            if wrong := self._run(case, view, lake, next(turns)):
                return wrong
        return None

    def _bring(self, view: ViewBench, keeper: Keeper) -> Brought:
        if keeper is Keeper.RUN:
            (brought,) = RunKeeper(lambda: self.runtime).bring_up([request_of(view.row)], take_over=True)
            return brought
        if Keeper.RUN in self.keepers:
            view.row = kept_by_cluster(view.row)
        return brought_by(view.run())

    def _run(self, case: Case, view: ViewBench, lake: CaseLake, keeper: Keeper) -> Wrong | None:
        outcome = self._bring(view, keeper)
        if outcome.error:
            return Wrong("a refresh fails", outcome.error)
        if outcome.warning and _INTERNAL not in outcome.warning:
            return Wrong("a refresh warns", outcome.warning)
        self.strategies[outcome.strategy] += 1
        if case.mode is Mode.SUMS:  # at a boundary Spark's own answer is another one each time
            compared = view.verify()
            return None if compared.equal else Wrong(f"a view kept {outcome.strategy}", str(compared))
        session = view.runtime.new_session()
        for name, uri in lake.uris.items():
            session.read.format("delta").load(uri).createOrReplaceTempView(name)
        wanted = session.sql(view.sql)
        held = session.read.format("delta").load(view.target)
        if held.columns != wanted.columns:
            return Wrong("columns", f"{held.columns} for {wanted.columns}")
        bags = bag_of(wanted.collect()), bag_of(held.collect())
        return None if alike(*bags) else Wrong(f"a view kept {outcome.strategy}", difference(*bags))
