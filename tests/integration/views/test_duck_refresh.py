"""Views of which small changes are computed without Spark, by DuckDB: where it can, and only there."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.algebra.duck_engine import DuckCursor, DuckEngine, NotComputedError, ReadLimits
from iscp.consumers.view.view_kind import ViewKind
from iscp.ports.source import RowScan
from iscp.spark.session import SparkRuntime
from iscp.views.analysis.query_analysis import analyze_query
from iscp.views.refresh.view_memory import REFRESH_NOTE, read_query
from tests.selection import in_full

from .conftest import SCHEMAS, Lake, ViewBench

pytestmark = pytest.mark.spark

NewView = Callable[..., ViewBench]

PLAIN = (
    "select t.a, t.b, u.x, y from t join u on t.a = u.a",
    "select t1.a, t1.n, t2.b c, u.y, u.y z from t t1 join t t2 on t1.a = t2.a and t1.b = t2.b join u on u.x = t2.b",
    "select a, n, b as again from t where b = 'p' and a >= 2",
    "select u.x, t.n from t, u where t.a = u.a and u.y <> 2 and 'q' >= u.x",
    "select t.a, t.d, u.x from t join u on t.a = u.a",  # a double, of which zeros have signs
    "select t.a, u.x from t join u on t.d = u.y",
    "select t.a, u.x from t join u on t.a <=> u.a",
    "select t.a, u.x, u.y from t left join u on t.a = u.a",
    "select t.a + 1 a, u.x from t full join u on t.a = u.a",
    "select t.a, u.x from t join u on t.a = u.a and t.b < u.x where t.n > 1",
    "select distinct t.a, u.x from t join u on t.a = u.a",
    "select a, b from t where a not in (select a from u where a is not null)",
    "select b, min(n) lo, max(a) hi, count(distinct a) k from t group by b having count(*) > 1",
    "select b, sum(a * 2) s, count(n) filter (where a > 1) c, avg(n) m from t group by b",
    "select t.b, u.x, sum(t.n) s, avg(t.a) m, count(*) c from t join u on t.a = u.a group by t.b, u.x",
    "select a, n, row_number() over (partition by b order by n, a) r from t",
    "select a, case when n > 1 then upper(b) else 'x' end c, coalesce(d, 0) d from t union all select y, x, 1 from u",
)
OTHERS = (
    "select t.b, u.x from t join u on t.b collate utf8_lcase = u.x collate utf8_lcase",
    "select a, soundex(b) b from t",
)


@pytest.mark.parametrize("sql", in_full(PLAIN, [PLAIN[1], PLAIN[8], *PLAIN[12:16]]))
def test_rows_follow_random_changes_without_spark(new_view: NewView, sql: str) -> None:
    view = new_view(sql, seed=61)
    view.refresh()
    strategies = view.follow(4)
    view.restart()
    strategies |= view.follow(1)
    assert strategies - {"unchanged"}
    assert strategies <= {"changes", "groups", "unchanged"}


def test_what_may_come_out_otherwise_is_left_to_spark(spark_runtime: SparkRuntime) -> None:
    session = spark_runtime.new_session()
    schemas = {
        "t": "a bigint, b string, d double, n decimal(10,2)",
        "u": "a bigint, x string, y bigint",
    }
    written = {name: session.createDataFrame([], schema).schema.json() for name, schema in schemas.items()}
    found = {sql: read_query(analyze_query(session, sql, written)) for sql in (*PLAIN, *OTHERS)}
    assert [sql for sql, each in found.items() if each.root is not None] == [*PLAIN]


KEPT = (
    "select b, count(*) c, sum(n) s, avg(a) m from t group by b order by c desc, b limit 2",
    "select s from (select b, sum(a) s from t group by b) order by s, 1 limit 3 offset 1",
    "select b, c, rank() over (order by c, b) r from (select b, max(a) c from t group by b)",
    "select count(*) k, max(b) m from (select b, count(distinct a) c from t join u using (a) group by b)",
    "select x, s from (select x, sum(y) s from u group by x order by s desc, x limit 4) where s > 1",
)


@pytest.mark.parametrize("sql", in_full(KEPT, [KEPT[0], KEPT[2]]))
def test_what_is_made_of_all_groups_follows_from_what_is_kept(new_view: NewView, sql: str) -> None:
    """No row of the tables is read again but those of groups that changed; another process goes on with it."""
    view = new_view(sql, seed=63, refresh="incremental")
    view.refresh()
    strategies = view.follow(4)
    view.restart()
    strategies |= view.follow(1)
    assert strategies - {"unchanged"} == {"changes"}
    view.kind = ViewKind(None)
    assert view.follow(2) <= {"incremental", "unchanged"}, "Spark goes on with it too"


SCANNED = (
    "select count(*) c, sum(n) s, avg(a) m, max(b) hi, count(distinct a) k from t",
    "select t.a, b from t where a > (select avg(a) from t)",
    "select a, b, n from t order by a desc, b, n limit 3",
    "select a, n, rank() over (order by n, a) r from t",
    "select t.a, u.x from t join u on t.a < u.y",
    "select b, min(n) lo, max(a) hi, count(distinct a) k from t group by b",
    "select distinct t.a, u.x from t left join u on t.a >= u.a",
    "select a from t where a not in (select a from u where a is not null)",
)
SCANNING = DuckEngine(limits=ReadLimits(searched=0, held=0, difference=0))
"""To this engine each table is a large one."""


@pytest.mark.parametrize("sql", in_full(SCANNED, [*SCANNED[:3], SCANNED[4]]))
def test_large_tables_are_scanned_where_nothing_else_is_left_but_spark(new_view: NewView, sql: str) -> None:
    view = new_view(sql, seed=71, refresh="incremental")
    view.refresh()
    view.kind = ViewKind(SCANNING)
    strategies = view.follow(4)
    view.restart()
    strategies |= view.follow(1)
    assert strategies - {"unchanged"}
    assert strategies <= {"changes", "difference", "unchanged"}


def test_tables_that_are_too_large_are_not_scanned(new_view: NewView) -> None:
    view = new_view(SCANNED[0], seed=72, refresh="incremental")
    view.refresh()
    view.kind = ViewKind(DuckEngine(limits=ReadLimits(searched=0, held=0, scanned=1, difference=0)))
    assert view.follow(2) <= {"incremental", "full", "unchanged"}


@pytest.mark.parametrize(
    "sql", in_full((*KEPT, "select b, count(*) c from t join u using (a) group by b limit 2"), [KEPT[3]])
)
def test_what_is_kept_is_followed_by_scans_where_too_many_rows_have_the_keys(new_view: NewView, sql: str) -> None:
    view = new_view(sql, seed=75, refresh="incremental")
    view.refresh()
    view.kind = ViewKind(DuckEngine(limits=ReadLimits(0, searched=0, held=0, difference=0)))
    strategies = view.follow(4)
    view.restart()
    strategies |= view.follow(1)
    assert strategies - {"unchanged"} == {"changes"}
    view.kind = ViewKind(None)
    assert view.follow(2) <= {"incremental", "unchanged"}, "what is kept has not fallen behind"


def test_rows_are_searched_for_ever_more_rarely_where_a_scan_serves(new_view: NewView) -> None:
    view, searches = new_view(PLAIN[0], seed=76, refresh="incremental"), list[list[int]]()
    view.refresh()
    view.kind, uri = ViewKind(DuckEngine(limits=ReadLimits(0, searched=0, held=0, difference=0))), view.lake.uris["t"]
    for number in range(5):
        write_deltalake(uri, DeltaTable(uri).to_pyarrow_table().slice(0, 1 + number), mode="append")
        assert view.refresh().strategy == "difference"
        content = Path(view.target, f"_iscp-{REFRESH_NOTE}.json").read_bytes()
        searches.append(json.loads(content)["searches"])
        view.assert_equal()
        view.restart()
    assert searches == [[1, 1], [1, 0], [3, 3], [3, 2], [3, 1]]


class NoMemoryCursor(DuckCursor):
    """Has no memory for any statement, and counts them."""

    def __init__(self) -> None:
        self.begun = 0

    def define(self, name: str, rows: pa.Table | RowScan) -> None:
        pass

    def rows(self, text: str, schema: pa.Schema) -> pa.Table:
        self.begun += 1
        raise NotComputedError("out of memory")


class NoMemoryEngine(DuckEngine):
    def __init__(self) -> None:
        super().__init__(limits=SCANNING.limits)
        self.only = NoMemoryCursor()

    @contextmanager
    def cursor(self, refresh_s: float = inf) -> Iterator[DuckCursor]:
        yield self.only


def test_scans_that_have_no_result_are_begun_ever_more_rarely(new_view: NewView) -> None:
    view, engine = new_view(SCANNED[0], seed=74, refresh="incremental"), NoMemoryEngine()
    view.refresh()
    view.kind, uri, begun = ViewKind(engine), view.lake.uris["t"], []
    for _ in range(5):
        write_deltalake(uri, DeltaTable(uri).to_pyarrow_table().slice(0, 1), mode="append")
        assert view.refresh().strategy in ("incremental", "full")
        begun.append(engine.only.begun)
        view.restart()
    assert begun == [1, 1, 2, 2, 2], "by other processes too"
    view.assert_equal()


def test_sums_that_are_stored_are_kept_up_rather_than_all_rows_scanned(new_view: NewView) -> None:
    view = new_view("select b, sum(n) s from t group by b", seed=73, refresh="incremental")
    view.refresh()
    view.kind = ViewKind(SCANNING)
    assert view.follow(3) - {"unchanged"} == {"groups"}


def test_a_change_of_the_other_table_and_of_both_is_followed(new_view: NewView) -> None:
    view = new_view(PLAIN[0], seed=62)
    view.refresh()
    for names in (("u",), ("t",), ("t", "u")):
        for name in names:
            uri = view.lake.uris[name]
            rows = DeltaTable(uri).to_pyarrow_table()
            write_deltalake(uri, rows.slice(0, 2), mode="append")
            DeltaTable(uri).update(updates={"a": "2"}, predicate="a = 1")
        assert view.refresh().strategy == "changes"
        view.assert_equal()


def test_rows_that_deletion_vectors_of_a_source_take_out_are_not_joined(
    new_view: NewView, spark_runtime: SparkRuntime
) -> None:
    view = new_view(PLAIN[0], seed=63)
    view.refresh()
    session, uri = spark_runtime.new_session(), view.lake.uris["u"]
    session.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    view.refresh()
    session.sql(f"DELETE FROM delta.`{uri}` WHERE y = 2 OR x = 'p'")
    assert view.refresh().strategy == "changes"
    write_deltalake(view.lake.uris["t"], pa.table([[1, 2, 3], ["p", "q", None], [None] * 3, [None] * 3], SCHEMAS["t"]),
                    mode="append")  # fmt: skip
    assert view.refresh().strategy == "changes"
    view.assert_equal()


class Partitioned(Lake):
    """`u` has its `x` in paths, not in files."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        rows = DeltaTable(self.uris["u"]).to_pyarrow_table()
        self.uris["u"] = str(root / "parts")
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.uris["u"], rows, partition_by=["x"], configuration=feed)


@pytest.mark.parametrize("sql", in_full((PLAIN[0], PLAIN[3], PLAIN[14]), [PLAIN[3]]))
def test_a_table_whose_columns_are_in_paths_is_followed_and_searched(
    tmp_path: Path, spark_runtime: SparkRuntime, sql: str
) -> None:
    view = ViewBench(Partitioned(tmp_path, 64), spark_runtime, sql)
    view.refresh()
    assert view.follow(4) <= {"changes", "groups", "unchanged"}


class Nested(Lake):
    """`u` has a struct with a struct in it in place of `x` and `y`; some rows have none."""

    KIND = pa.struct([("x", pa.string()), ("s", pa.struct([("y", pa.int64()), ("at", pa.timestamp("us", "UTC"))]))])

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.kind = self.KIND
        rows = DeltaTable(self.uris["u"]).to_pyarrow_table()
        self.uris["u"] = str(root / "nested")
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.uris["u"], self._nested(rows), configuration=feed)

    def _nested(self, rows: pa.Table) -> pa.Table:
        at = dt.datetime(2024, 2, 29, 1, 2, 3, 4, dt.UTC)
        values = [
            None
            if self.draw.random() < 0.2
            else {"x": each["x"], "s": None if self.draw.random() < 0.2 else {"y": each["y"], "at": at}}
            for each in rows.to_pylist()
        ]
        return pa.table({"a": rows["a"], "v": pa.array(values, self.kind)})

    def _insert(self, name: str) -> None:
        rows = self._rows(name, self.draw.randint(1, 3))
        write_deltalake(self.uris[name], self._nested(rows) if name == "u" else rows, mode="append")

    def _update(self, name: str) -> None:
        if name == "t":
            super()._update(name)
        else:
            DeltaTable(self.uris[name]).update(updates={"a": "3"}, predicate=self._some(name))

    def _some(self, name: str) -> str:
        return super()._some(name) if name == "t" else self.draw.choice(["a = 2", "a IS NULL", "a > 1"])


NESTED = (
    "select a, v.x, v.s.y, v.s.at from u where v.s.y is distinct from 2",
    "select t.a, u.v.s.y, u.V.X from t left join u on t.b = u.v.x",
    "select v.x, count(*) c, sum(v.s.y) s from u group by v.x",
    "select a, v.x, row_number() over (partition by v.x order by a, v.s.y, v.s.at) r from u",
)


@pytest.mark.parametrize("sql", in_full(NESTED, [NESTED[1]]))
def test_fields_of_structs_are_read_and_searched(tmp_path: Path, spark_runtime: SparkRuntime, sql: str) -> None:
    view = ViewBench(Nested(tmp_path, 65), spark_runtime, sql)
    view.refresh()
    assert view.follow(4) <= {"changes", "groups", "unchanged"}


def test_rows_of_files_without_a_field_are_read_by_spark(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    """What an older file lacks is null in it."""
    lake = Nested(tmp_path, 66)
    lake.kind = pa.struct([*Nested.KIND, ("z", pa.int64())])
    rows = pa.table({"a": [8], "v": pa.array([{"x": "q", "s": None, "z": 5}], lake.kind)})
    write_deltalake(lake.uris["u"], rows, mode="append", schema_mode="merge")
    sql = "select t.b, u.v.z from t join u on t.b = u.v.x"
    view = ViewBench(lake, spark_runtime, sql)
    view.refresh()
    view.follow(2)


class Tagged(Lake):
    """`u` has arrays in place of `x` and `y`: some are empty, some are null, and some have nulls in them."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        rows = DeltaTable(self.uris["u"]).to_pyarrow_table()
        self.uris["u"] = str(root / "tagged")
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.uris["u"], self._tagged(rows), configuration=feed)

    def _tagged(self, rows: pa.Table) -> pa.Table:
        draw, count = self.draw, len(rows)
        labels = [draw.choice([None, [], ["p"], ["p", None], ["p", "q"], ["p,q"], [""], [None]]) for _ in range(count)]
        sums = [draw.choice([None, [], [1], [1, None, 2], [12]]) for _ in range(count)]
        columns = {"labels": pa.array(labels, pa.list_(pa.string())), "sums": pa.array(sums, pa.list_(pa.int64()))}
        return pa.table({"a": rows["a"], **columns})

    def _insert(self, name: str) -> None:
        rows = self._rows(name, self.draw.randint(1, 3))
        write_deltalake(self.uris[name], self._tagged(rows) if name == "u" else rows, mode="append")

    def _delete(self, name: str) -> None:
        if name == "u":
            DeltaTable(self.uris[name]).delete(self.draw.choice(["a = 2", "a IS NULL", "a > 2"]))
        else:
            super()._delete(name)

    def _update(self, name: str) -> None:
        if name == "u":  # delta-rs updates no table with arrays
            self._delete(name)
            self._insert(name)
        else:
            super()._update(name)


ARRAYS = (
    "select a, labels, sums from u where labels is not null or a > 2",
    "select t.a, t.b, u.labels from t join u on t.a = u.a",
    "select labels, count(*) c, max(a) m from u group by labels",
    "select a, labels is null n, if(a > 1, sums, null) s from u",
    "select a, labels, sums, count(*) over (partition by a, labels) r from t join u using (a)",
    "select distinct labels, sums from u",
    "select a, array(a, 1L, 12L) k, array(coalesce(a, 0), 1L) n, array('x', 'y') c from u",
    "select array_distinct(array(t.a, u.a)) d, count(*) c from t join u on array_contains(u.sums, t.a) group by 1",
    "select a, array_join(sort_array(labels, false), '-') j, concat_ws(',', labels, 'z') w, size(sums) n, "
    "get(sums, 1) g, array_max(sums) m from u "
    "where (try_element_at(sums, -1) = 2 or array_contains(coalesce(labels, array('p')), 'p'))",
)
BY_SPARK = ("select a, array_sort(labels) s from u", "select t.a, u.labels from t join u on array(t.b) = u.labels")


@pytest.mark.parametrize("sql", in_full(ARRAYS, [ARRAYS[0], ARRAYS[2], *ARRAYS[-3:]]))
def test_arrays_follow_changes_without_spark(tmp_path: Path, spark_runtime: SparkRuntime, sql: str) -> None:
    view = ViewBench(Tagged(tmp_path, 81), spark_runtime, sql)
    view.refresh()
    strategies = view.follow(4)
    view.restart()
    strategies |= view.follow(1)
    assert strategies - {"unchanged"}
    assert strategies <= {"changes", "difference", "groups", "unchanged"}


@pytest.mark.parametrize("sql", in_full(BY_SPARK, BY_SPARK[:1]))
def test_what_else_is_computed_of_arrays_is_left_to_spark(
    tmp_path: Path, spark_runtime: SparkRuntime, sql: str
) -> None:
    view = ViewBench(Tagged(tmp_path, 82), spark_runtime, sql)
    view.refresh()
    assert view.follow(2) <= {"incremental", "full", "unchanged"}


class SlowEngine(DuckEngine):
    """Takes the time that a refresh may take, and counts the refreshes that were begun."""

    begun = 0

    @contextmanager
    def cursor(self, refresh_s: float = inf) -> Iterator[DuckCursor]:
        self.begun += 1
        time.sleep(min(refresh_s, 60.0))
        with super().cursor(0.0 if refresh_s < inf else inf) as cursor:
            yield cursor


def test_changes_that_take_as_long_as_a_recomputation_are_given_up_and_not_begun_again(new_view: NewView) -> None:
    view, engine = new_view(PLAIN[13], seed=67, refresh="auto"), SlowEngine()
    view.refresh()
    view.kind = ViewKind(engine)
    uri = view.lake.uris["t"]
    strategies = []
    for _ in range(3):
        write_deltalake(uri, DeltaTable(uri).to_pyarrow_table().slice(0, 1), mode="append")
        refreshed = view.refresh()
        strategies.append((refreshed.strategy, "given up" in refreshed.reason))
        view.assert_equal()
    assert strategies[0] == ("full", True)
    assert engine.begun == 1, "what it took is remembered"
    view.restart()
    write_deltalake(uri, DeltaTable(uri).to_pyarrow_table().slice(0, 1), mode="append")
    view.refresh()
    assert engine.begun == 1, "by other processes too"
