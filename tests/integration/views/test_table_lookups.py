"""Of tables that changed rows are joined with, only the rows are read that have their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from iscp.algebra.algebra import TableRows
from iscp.delta.rows.row_search import row_codes
from iscp.spark.spark_frames import frame_of_arrow
from iscp.views.analysis.query_analysis import AnalyzedQuery, analyze_query
from iscp.views.changes.signed_rows import WEIGHT, FoundRows, Instants, TableChange
from iscp.views.changes.spark_plans import SparkPlans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from iscp.spark.session import SparkRuntime

pytestmark = pytest.mark.spark

Row = tuple[Any, ...]

COLUMNS = {"f": ("k", "g", "x"), "d": ("g", "h", "name"), "e": ("h", "title"), "other": ("k", "y")}
TEXTS = ("name", "title")
F_ROWS = [(1, 10, 5), (2, 10, 6), (2, 20, 7), (3, 30, 8), (4, None, 9)]
ROWS: dict[str, list[Row]] = {
    "f": F_ROWS,
    "d": [(10, 100, "a"), (20, 200, "b"), (30, None, "c"), (40, 100, "d"), (None, 100, "none")],
    "e": [(100, "A"), (200, "B"), (300, "C")],
    "other": [(1, 1), (2, 2), (2, 3), (9, 9)],
}


@dataclass
class LookedUpTable:
    """A table all of whose rows nobody may read. `found`: which keys were looked up, and at which version."""

    session: SparkSession
    name: str
    rows: dict[TableRows, Sequence[Row]]
    whole: bool = False
    found: list[tuple[TableRows, tuple[str, ...], frozenset[Row]]] = field(default_factory=list)

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        names = COLUMNS[self.name]
        types = [pa.string() if name in TEXTS else pa.int64() for name in names]
        columns = [*zip(*rows, strict=True)] or [()] * len(names)
        return pa.table([pa.array(each, kind) for each, kind in zip(columns, types, strict=True)], names=[*names])

    def change(self) -> TableChange:
        old, new = Counter(self.rows[TableRows.OLD]), Counter(self.rows[TableRows.NEW])
        signed = [(row, 1) for row in (new - old).elements()] + [(row, -1) for row in (old - new).elements()]
        weights = pa.array([weight for _, weight in signed], pa.int64())
        held = self.arrow([row for row, _ in signed]).append_column(WEIGHT, weights) if signed else None
        changed = None if held is None else frame_of_arrow(self.session, held)
        return TableChange(self.read, lambda: changed, 1, lambda: held, self.find)

    def read(self, at: TableRows) -> DataFrame:
        assert self.whole, f"all rows of {self.name} are read"
        return frame_of_arrow(self.session, self.arrow(self.rows[at]))

    def find(self, at: TableRows, keys: pa.Table) -> FoundRows | None:
        if self.whole:
            return None
        self.found.append((at, tuple(keys.schema.names), frozenset(zip(*keys.to_pydict().values(), strict=True))))
        held = self.arrow(self.rows[at])
        wanted, those = row_codes(keys, held.select(keys.schema.names))
        rows = held.filter(pa.array(np.isin(those, wanted)))
        return FoundRows(frame_of_arrow(self.session, rows), rows)


class Refreshed:
    """A query over these tables, from their rows to later ones."""

    def __init__(self, session: SparkSession, sql: str) -> None:
        self.session, self.sql = session, sql
        self.rows = {name: [*rows] for name, rows in ROWS.items()}
        frames = {name: self.table(name, ()).arrow(()) for name in ROWS}
        schemas = {name: frame_of_arrow(session, rows).schema.json() for name, rows in frames.items()}
        self.analyzed: AnalyzedQuery = analyze_query(session, sql, schemas)

    def table(self, name: str, later: Sequence[Row], *, whole: bool = False) -> LookedUpTable:
        return LookedUpTable(self.session, name, {TableRows.OLD: self.rows[name], TableRows.NEW: later}, whole)

    def bag(self) -> Counter[Row]:
        for name, rows in self.rows.items():
            frame_of_arrow(self.session, self.table(name, ()).arrow(rows)).createOrReplaceTempView(name)
        return Counter(map(tuple, self.session.sql(self.sql).collect()))

    def follow(self, whole: Sequence[str] = (), **later: Sequence[Row]) -> dict[str, LookedUpTable]:
        """`whole`: tables in which nothing is looked up."""
        was = self.bag()
        tables = {
            name: self.table(name, later.get(name, rows), whole=name in whole) for name, rows in self.rows.items()
        }
        moves = {name: each.change() for name, each in tables.items()}
        plans = SparkPlans(self.analyzed.catalyst, self.analyzed.algebra, moves, Instants(), 1_000, large_bytes=0)
        with closing(plans):
            changed = plans.changes(self.analyzed.root)
            rows = [] if changed is None else changed.to_frame().collect()
        for *row, weight in rows:
            was[tuple(row)] += weight
        self.rows |= {name: [*rows] for name, rows in later.items()}
        assert +was == self.bag()
        return tables


@pytest.fixture
def session(spark_runtime: SparkRuntime) -> SparkSession:
    return spark_runtime.new_session()


LATER = [*F_ROWS[1:], (5, 20, 1)]
"""A row with g = 10 went, and one with g = 20 came."""


def test_only_rows_with_keys_of_changed_rows_are_read(session: SparkSession) -> None:
    tables = Refreshed(session, "SELECT f.x, d.name FROM f JOIN d ON f.g = d.g").follow(f=LATER)
    assert tables["d"].found == [(TableRows.NEW, ("g",), frozenset({(10,), (20,)}))]


def test_found_rows_lead_to_rows_of_further_tables(session: SparkSession) -> None:
    for sql in (
        "SELECT f.x, e.title FROM f JOIN d ON f.g = d.g JOIN e ON d.h = e.h",
        "SELECT f.x, s.title FROM f JOIN (SELECT d.g, e.title FROM d JOIN e ON d.h = e.h) s ON f.g = s.g",
    ):
        tables = Refreshed(session, sql).follow(f=LATER)
        assert [keys for _, _, keys in tables["e"].found] == [{(100,), (200,)}]


def test_changes_of_several_tables_bound_a_column_together(session: SparkSession) -> None:
    union = "SELECT g, x FROM f UNION ALL SELECT y, k FROM other"
    refreshed = Refreshed(session, f"SELECT u.x, d.name FROM ({union}) u JOIN d ON u.g = d.g")
    tables = refreshed.follow(f=LATER, other=[*ROWS["other"], (40, 40)])
    assert tables["d"].found == [(TableRows.NEW, ("g",), frozenset({(10,), (20,), (40,)}))]
    assert refreshed.follow(other=ROWS["other"][1:])["d"].found == [(TableRows.NEW, ("g",), frozenset({(1,), (40,)}))]


def test_no_row_that_an_outer_join_leaves_without_a_partner_bounds_another_table(session: SparkSession) -> None:
    """The column of such a row is null, which no row of its table is known to have."""
    sql = "SELECT f.x, d.name, e.title FROM f LEFT JOIN d ON f.g = d.g LEFT JOIN e ON d.h <=> e.h"
    refreshed = Refreshed(session, sql)
    refreshed.rows["e"].append((None, "N"))
    tables = refreshed.follow(whole=["e"], f=[*F_ROWS, (6, 70, 3), (7, None, 4), (8, 30, 5)])
    assert [keys for _, _, keys in tables["d"].found] == [{(70,), (None,), (30,)}]


def test_groups_below_a_join_are_recomputed_of_their_own_rows(session: SparkSession) -> None:
    sql = (
        "SELECT s.k, s.most, o.y FROM (SELECT f.k, max(f.x) AS most, min(d.name) AS least FROM f JOIN d ON f.g = d.g "
        "GROUP BY f.k) s JOIN other o ON s.k = o.k"
    )
    tables = Refreshed(session, sql).follow(f=[*F_ROWS[:2], *F_ROWS[3:], (1, 20, 11)])
    assert {(at, keys) for at, _, keys in tables["f"].found} == {
        (TableRows.NEW, frozenset({(1,), (2,)})),
        (TableRows.OLD, frozenset({(1,), (2,)})),
    }
    assert [keys for _, _, keys in tables["other"].found] == [{(1,), (2,)}]


@pytest.mark.parametrize(
    "shown",
    [
        "a.h, max(f.x) AS x, count(*) AS n {} GROUP BY a.h",
        "a.h, f.x, rank() OVER (PARTITION BY a.h ORDER BY f.x) AS n {}",
    ],
)
def test_a_row_of_a_table_read_twice_is_not_taken_for_one_of_its_other_place(session: SparkSession, shown: str) -> None:
    """The same rows of `d` are found for both; `f` is looked up by values of two of them."""
    refreshed = Refreshed(
        session, f"SELECT {shown.format('FROM d a JOIN d b ON a.h = b.h JOIN f ON f.k = a.g AND f.g = b.g')}"
    )
    refreshed.rows["f"] = [(10, 40, 1), (40, 40, 2), (20, 20, 3)]
    refreshed.follow(f=[(10, 40, 1), (40, 40, 2), (20, 20, 3), (40, 10, 0)])
    refreshed.follow(d=[*ROWS["d"], (50, 100, "e")])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY x, g) AS n FROM f",
        "SELECT k, count(DISTINCT g) AS n FROM f GROUP BY k",
        "SELECT f.k, f.x, other.y FROM other LEFT JOIN f ON f.k = other.k",
        "SELECT * FROM other WHERE EXISTS (SELECT 1 FROM f WHERE f.k = other.k AND f.x > other.y)",
        "SELECT * FROM other WHERE NOT EXISTS (SELECT 1 FROM f WHERE f.k = other.k AND f.x > other.y)",
        "SELECT k FROM f INTERSECT SELECT k FROM other",
        "SELECT k FROM other EXCEPT SELECT k FROM f",
        "SELECT k, sum(x) AS x FROM (SELECT k, x FROM f UNION ALL SELECT k, y FROM other) GROUP BY k HAVING max(x) > 1",
    ],
)
@pytest.mark.slow(but=2)
def test_what_is_recomputed_key_by_key_reads_the_rows_of_these_keys(session: SparkSession, sql: str) -> None:
    refreshed = Refreshed(session, sql)
    for later in (LATER, [*LATER, (9, 10, 0), (None, None, 1)], LATER[2:], []):
        refreshed.follow(f=later)
