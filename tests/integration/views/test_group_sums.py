"""Groups below a LIMIT follow from their counts and sums, which are kept beside the target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.selection import in_full

from .conftest import SCHEMAS, ViewBench

QUERIES = (
    "select b, count(*) c, count(a) k, sum(n) s, avg(n) m, sum(a) w, avg(a) v from t group by b order by c, b limit 4",
    "select t.b, u.x, sum(t.n * u.y) s, count(*) c from t left join u on t.a = u.a group by t.b, u.x"
    " order by s desc, 1, 2 limit 3",
    "select a, b, sum(n) s, grouping(a) g from t group by rollup(a, b) having count(*) > 1 order by s, 1, 2, 4 limit 5",
    "select a, b, s, rank() over (partition by a order by s desc) r from"
    " (select a, b, sum(n) / count(*) s from t group by a, b) order by r, 1, 2, 3 limit 6",
    "select distinct a, b from t order by a, b limit 3",
    "select b, sum(case when a > 2 then n else 0 end) s, count(*) filter (where a = 1) f from t group by b"
    " having sum(n) > (select avg(y) from u) order by s, b limit 3",
)
SOME = (2,)


@pytest.mark.parametrize("number", in_full(range(len(QUERIES)), SOME))
@pytest.mark.slow
def test_they_follow_changes_of_all_kinds(new_view: Callable[..., ViewBench], number: int) -> None:
    view = new_view(QUERIES[number], seed=700 + number, refresh="incremental", by_spark=True)
    view.refresh()
    view.assert_equal()
    for round_ in range(4):
        view.lake.change()
        if round_ == 2:
            DeltaTable(view.lake.uris["t"]).delete()
        assert view.refresh().strategy in ("incremental", "unchanged")
        view.assert_equal()
    assert view.verify().equal


def test_no_row_of_the_tables_is_read_again(new_view: Callable[..., ViewBench]) -> None:
    """Whose files are gone: only the new one is there to be read."""
    view = new_view(QUERIES[0], seed=1, refresh="incremental", by_spark=True)
    view.refresh()
    table = DeltaTable(view.lake.uris["t"])
    wanted = table.count() + 1
    for path in table.file_uris():
        Path(path).write_bytes(b"")
    row = pa.table({name: pa.array([None], SCHEMAS["t"].field(name).type) for name in SCHEMAS["t"].names})
    write_deltalake(table.table_uri, row, mode="append")
    assert view.refresh().strategy == "incremental"
    kept = pa.table(DeltaTable(f"{view.target}_view_state_2").scan())
    assert sum(kept["n"].to_pylist()) == wanted


@pytest.mark.parametrize(
    "sql",
    in_full(
        [
            "select b, sum(d) s, min(a) lo from t group by b order by b limit 3",
            "select a, d, max(n) hi from t group by a, d order by hi, 1, 2 limit 4",
        ]
    ),
)
def test_other_groups_are_computed_of_all_of_their_rows_as_they_are_now(
    new_view: Callable[..., ViewBench], sql: str
) -> None:
    view = new_view(sql, seed=2, refresh="incremental", by_spark=True)
    view.refresh()
    for _ in range(3):
        view.lake.change()
        assert view.refresh().strategy in ("incremental", "unchanged")
        view.assert_equal()
    assert pa.table(DeltaTable(f"{view.target}_view_state_2").scan()).schema.names == ["c0", "c1", "c2"]
