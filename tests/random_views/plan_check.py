"""A case without tables on disk: what the plans of changes make of rows in memory, after each refresh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from iscp.algebra.algebra import TableRows
from iscp.delta.rows.row_search import row_codes
from iscp.model.rows.key_ranges import Op
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.watermark import QueryTotals
from iscp.spark.spark_errors import concerns_values
from iscp.spark.spark_frames import frame_of_arrow
from iscp.views.analysis.query_analysis import AnalyzedQuery, analyze_query
from iscp.views.catalyst.algebra_reader import ResultKeys
from iscp.views.catalyst.plan_tree import PlanNode, stored_input
from iscp.views.changes.group_changes import changed_groups, collected_keys, learn_totals
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows, FoundRows, Instants, TableChange
from iscp.views.changes.spark_plans import LARGE_BYTES, KnownTotals, SparkPlans, totals_before
from tests.random_views.cases import Case
from tests.random_views.duck_check import changed_by_duckdb
from tests.random_views.histories import Numbers, RowChange, Rows, Table, changes_of, first_rows, rows_after
from tests.random_views.query_tree import Mode, NoQueryError
from tests.random_views.ranged_check import PARTS, ranged_results
from tests.random_views.row_bags import Bag, alike, bag_of, countable, difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


HELD_MAX = 1_000
"""As with views: few changed rows are held in this process."""

FOUND_NOT = 5
"""Rows that are not handed back when they are looked up, as if there were too many of them."""

LOCAL_RULES = ("ConvertToLocalRelation", "PropagateEmptyRelation")

WRONG_RULES = ("EliminateSorts", "RemoveRedundantAliases")
"""Of Spark 4. The first drops an ORDER BY below a LIMIT where a subquery's value beside it is of no rows (seed 90052);
the second leaves columns of a union without their names (seed 90188): views are recomputed then."""


def _rule(name: str) -> str:
    return f"org.apache.spark.sql.catalyst.optimizer.{name}"


class UnfitCaseError(Exception):
    """Its query is none, or one that is refused."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """`where` says what gave other rows than Spark does; two that have it in common are alike."""

    where: str
    rows: str


@dataclass
class PlanCheck:
    """Of cases in one session, one after the other."""

    session: SparkSession
    random: Random = field(default_factory=lambda: Random(0))
    by_duckdb: int = 0
    """Refreshes that DuckDB has computed too."""

    def __post_init__(self) -> None:
        """Rows that a plan itself holds are computed with by Spark's optimizer; those of tables are not."""
        excluded = ",".join(map(_rule, (*LOCAL_RULES, *WRONG_RULES)))
        self.session.conf.set("spark.sql.optimizer.excludedRules", excluded)

    def check(self, case: Case) -> Wrong | None:
        """What is wrong at first. Raises UnfitCaseError."""
        rows: dict[str, Rows] = {table.name: first_rows(table) for table in case.tables}
        try:
            was, fresh = self._wanted(case, rows), 1000  # at first: what Spark fails at is no case
            analyzed = self._analyzed(case)
            with _needing_values():
                totals = self._totals(case, analyzed, rows)
                wrong = self._of_ranges(case, analyzed, rows, was, totals)
        except (NoQueryError, InvalidRequest) as error:
            raise UnfitCaseError(str(error)) from error
        if wrong is not None:
            return wrong
        for number, commits in enumerate(case.refreshes):
            old, changed = dict(rows), {table.name: list[RowChange]() for table in case.tables}
            for commit in commits:
                table = case.tables[commit.table % len(case.tables)]
                found = changes_of(commit, table, rows[table.name], fresh)
                fresh += len(commit.steps)
                changed[table.name] += found
                rows[table.name] = rows_after(rows[table.name], found)
            now = self._wanted(case, rows)
            moves = {table.name: self._change(table, old, rows, changed) for table in case.tables}
            before = KnownTotals(totals_before(analyzed.root, totals) or {})
            large_bytes = LARGE_BYTES if (number + len(case.sql)) % 2 else 0  # tables may be large or not
            with (
                closing(
                    SparkPlans(analyzed.catalyst, analyzed.algebra, moves, Instants(), HELD_MAX, before, large_bytes)
                ) as plans,
                _needing_values(),
            ):
                learn_totals(plans, analyzed.root)
                totals = plans.totals.of(analyzed.root)
                wrong = self._follow(analyzed, plans, was, now) or self._by_duckdb(case, analyzed, moves, was, now)
                if case.mode is Mode.SUMS and wrong is None:
                    with closing(self._unchanged(case, analyzed, old)) as former:
                        wrong = _find_former_rows(analyzed, plans, former)
            if totals.totals:
                fresh_totals = self._totals(case, analyzed, rows)
                wrong = wrong or (None if fresh_totals == totals else Wrong("totals", f"{totals} for {fresh_totals}"))
            if wrong is not None:
                return wrong
            was = now
        return None

    def _of_ranges(
        self, case: Case, analyzed: AnalyzedQuery, rows: Mapping[str, Rows], was: Bag, totals: QueryTotals
    ) -> Wrong | None:
        """What is made of parts of one table."""
        tables = {table.name: table for table in case.tables}

        def frame(name: str, part: int) -> DataFrame:
            held = list(rows[name].values())
            return self._frame(tables[name], held if part < 0 else held[part :: PARTS - 1] if part < PARTS - 1 else [])

        for where, (held, found) in ranged_results(analyzed, [*tables], frame).items():
            if wrong := _compare(where, was, held):
                return wrong
            if found != totals:
                return Wrong(where, f"{found} for {totals}")
        return None

    def _totals(self, case: Case, analyzed: AnalyzedQuery, rows: Mapping[str, Rows]) -> QueryTotals:
        with closing(self._unchanged(case, analyzed, rows)) as plans:
            learn_totals(plans, analyzed.root)
            return plans.totals.of(analyzed.root)

    def _analyzed(self, case: Case) -> AnalyzedQuery:
        schemas = {table.name: self._frame(table, ()).schema.json() for table in case.tables}
        return analyze_query(self.session, case.sql, schemas)

    def _unchanged(self, case: Case, analyzed: AnalyzedQuery, rows: Mapping[str, Rows]) -> SparkPlans:
        """Of tables that stay as they are."""
        moves = {table.name: self._change(table, rows, rows, {table.name: ()}) for table in case.tables}
        return SparkPlans(analyzed.catalyst, analyzed.algebra, moves, Instants())

    def _wanted(self, case: Case, rows: Mapping[str, Rows]) -> Bag:
        """The query's rows as Spark computes them; where they follow from an order, as views do, in any."""
        wanted = self._of_spark(case, rows)
        if case.mode is Mode.PLAIN:
            return wanted
        analyzed = self._analyzed(case)
        with closing(self._unchanged(case, analyzed, rows)) as plans, _needing_values():
            return bag_of(plans.result(analyzed.root, TableRows.NEW).collect())

    def _of_spark(self, case: Case, rows: Mapping[str, Rows]) -> Bag:
        for table in case.tables:
            self._frame(table, rows[table.name].values()).createOrReplaceTempView(table.name)
        try:
            return bag_of(self.session.sql(case.sql).collect())
        except (PySparkException, Py4JJavaError) as error:
            raise UnfitCaseError(f"Spark fails itself: {error}") from error
        finally:
            for table in case.tables:
                self.session.catalog.dropTempView(table.name)

    def _follow(self, analyzed: AnalyzedQuery, plans: SparkPlans, was: Bag, now: Bag) -> Wrong | None:
        root = analyzed.root
        kept, keys = stored_input(root), analyzed.keys
        if kept is not None:
            bags = [bag_of(plans.result(kept, at).collect()) for at in (TableRows.OLD, TableRows.NEW)]
            if wrong := _compare("changes of what is kept", bags[1], _moved(bags[0], plans.changes(kept))):
                return wrong
            finished = plans.result_over(root, kept, plans.result(kept, TableRows.NEW))
            return _compare("the result of what is kept", now, bag_of(finished.collect()))
        if wrong := _compare("all rows", now, bag_of(plans.result(root, TableRows.NEW).collect())):
            return wrong
        if keys is not None:
            merged = self._merge(plans, root, keys, was)
            if wrong := _compare("changes of groups", now, merged):
                return wrong
        return _compare("changes", now, _moved(was, plans.changes(root)))

    def _by_duckdb(
        self, case: Case, analyzed: AnalyzedQuery, moves: Mapping[str, TableChange], was: Bag, now: Bag
    ) -> Wrong | None:
        """The same changes by the other executor, where it has them."""
        columns = {table.name: arrow_of(table, []).schema for table in case.tables}
        found = changed_by_duckdb(analyzed, moves, columns, was, self.random.choice((0, 1)))
        self.by_duckdb += found is not None
        return None if found is None else _compare("changes by DuckDB", now, found)

    def _merge(self, plans: SparkPlans, root: PlanNode, keys: ResultKeys, was: Bag) -> Bag:
        """The rows with the changed keys as they are now, in the place of those there were."""
        if keys.unique:
            groups = changed_groups(plans, root, keys)
            return _merged(was, groups.to_frame().collect() if groups is not None else [], keys.places)
        found = collected_keys(plans, root)
        if found is None:
            return _moved(was, plans.changes(root))
        names = found.rows.column_names
        now = [[*row, Op.UPDATE] for row in self.session.createDataFrame(found.rows).collect()]
        gone = [row.asDict() for row in self.session.createDataFrame(found.keys).collect()]
        lost = [[*[row.get(name) for name in names], Op.DELETE] for row in gone]
        return _merged(was, [*now, *lost], keys.places)

    def _change(
        self, table: Table, old: Mapping[str, Rows], new: Mapping[str, Rows], changed: Mapping[str, Sequence[RowChange]]
    ) -> TableChange:
        frames = {
            at: self._frame(table, rows[table.name].values())
            for at, rows in ((TableRows.OLD, old), (TableRows.NEW, new))
        }
        signed = [
            (row, weight)
            for each in changed[table.name]
            for row, weight in ((each.before, -1), (each.after, 1))
            if row is not None
        ]
        weights = pa.array([weight for _, weight in signed], pa.int64())
        moved = arrow_of(table, [row for row, _ in signed]).append_column(WEIGHT, weights) if signed else None
        found = None if moved is None else self.session.createDataFrame(moved)
        held = {
            at: arrow_of(table, list(rows[table.name].values()))
            for at, rows in ((TableRows.OLD, old), (TableRows.NEW, new))
        }

        def find(at: TableRows, keys: pa.Table) -> FoundRows | None:
            """None: as of a table in which no rows are looked up."""
            wanted, those = row_codes(keys, held[at].select(keys.schema.names))
            rows = held[at].filter(pa.array(np.isin(those, wanted)))
            return FoundRows(frame_of_arrow(self.session, rows), rows) if len(rows) != FOUND_NOT else None

        return TableChange(lambda at: frames[at], lambda: found, 1, lambda: moved, find)

    def _frame(self, table: Table, rows: Sequence[Numbers] | Any) -> DataFrame:
        """In another order each time."""
        drawn = list(rows)
        self.random.shuffle(drawn)
        return self.session.createDataFrame(arrow_of(table, drawn))


@contextmanager
def _needing_values() -> Iterator[None]:
    """Where there is none for a row that Spark's own plan does without, a view is recomputed."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if not concerns_values(error):
            raise
        raise UnfitCaseError(f"a change needs a value that there is not: {error}") from error


def arrow_of(table: Table, rows: Sequence[Numbers]) -> pa.Table:
    names = [f"c{place}" for place in range(len(table.columns))]
    fields = [
        pa.field(name, each.of.arrow, nullable=each.nullable) for name, each in zip(names, table.columns, strict=True)
    ]
    columns = list(zip(*map(table.values, rows), strict=True)) if rows else [()] * len(names)
    arrays = [pa.array(column, each.of.arrow) for column, each in zip(columns, table.columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _moved(held: Bag, changes: ChangedRows | None) -> Bag:
    """With these changes; less than none of a row stays as it is."""
    found: Bag = Counter(held)
    for row in changes.to_frame().collect() if changes is not None else ():
        found[tuple(map(countable, row[:-1]))] += row[-1]
    return Counter({row: number for row, number in found.items() if number})


def _merged(held: Bag, groups: Iterable[Sequence[Any]], places: Sequence[int]) -> Bag:
    """With these groups in the place of those of their keys."""
    rows = [tuple(map(countable, row)) for row in groups]
    changed = {tuple(row[place] for place in places) for row in rows}
    left = {row: n for row, n in held.items() if tuple(row[place] for place in places) not in changed}
    return Counter(left) + Counter(row[:-1] for row in rows if row[-1] != Op.DELETE)


def _find_former_rows(analyzed: AnalyzedQuery, plans: SparkPlans, former: SparkPlans) -> Wrong | None:
    """Where rows that go are found by their values, these are to the last digit what they were in another order."""
    keys, rows = analyzed.stored_keys if analyzed.stored else analyzed.keys, analyzed.stored or analyzed.root
    if analyzed.sums is not None or (keys is not None and keys.unique):
        return None
    there = bag_of(former.result(rows, TableRows.NEW).collect(), exactly=True)
    changed = plans.changes(rows)
    moved = bag_of(changed.to_frame().collect(), exactly=True) if changed is not None else Counter()
    going = Counter({row[:-1]: -row[-1] for row in moved if row[-1] < 0})
    return _compare("rows that go and are not there", Counter(), going - there)


def _compare(where: str, wanted: Bag, held: Bag) -> Wrong | None:
    return None if alike(wanted, held) else Wrong(where, difference(wanted, held))
