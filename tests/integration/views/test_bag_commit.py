"""Changes of most of a view's rows: all its rows are written, or the refresh by changes is given up."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.consumers.source_rows import commit_tag
from iscp.consumers.view.bag_commit import MERGED_CHANGES_MAX, commit_changes
from iscp.delta.rows.row_search import LACKING
from iscp.model.values.watermark import Watermark
from iscp.ports.consumer import ConsumeContext
from iscp.ports.source import ChangesUnavailableError
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows
from iscp.views.refresh.refresh_choice import RefreshSample, Strategy
from iscp.views.refresh.view_memory import ViewMemory
from tests.fakes.guards import OpenGuard
from tests.selection import in_full

from .conftest import SCHEMAS, ViewBench

NewView = Callable[..., ViewBench]

BAG = "select a, b, n from t where a is distinct from 1"
ZEROS = "select b, d from t"


def copies(number: int) -> pa.Table:
    """Each of twelve rows, one of them with nulls alone, so many times."""
    rows = [(a, b, d, n) for a in (1, 2) for b in ("p", "q", None) for d, n in ((0.0, Decimal("1.10")), (-0.0, None))]
    names = SCHEMAS["t"].names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows * number], SCHEMAS["t"])


def written(view: ViewBench) -> str:
    """The last commit's operation and mode."""
    (last,) = DeltaTable(view.target).history(1)
    return f"{last['operation']} {last['operationParameters'].get('mode', '')}".strip().lower()


@pytest.mark.parametrize("sql", in_full([BAG, ZEROS]))  # each time: of types whose equal values look alike
@pytest.mark.slow
def test_where_most_rows_change_all_are_written_and_otherwise_few_are_merged(new_view: NewView, sql: str) -> None:
    view = new_view(sql, seed=1, refresh="incremental", deletion_vectors=False)
    table = view.lake.uris["t"]
    others = pa.Table.from_pylist([{"a": a, "b": f"z{a}", "d": a / 2} for a in range(10, 200)], SCHEMAS["t"])
    write_deltalake(table, pa.concat_tables([copies(3), others]), mode="overwrite")
    view.refresh()
    steps: list[tuple[Callable[[DeltaTable], Any], str]] = [
        (lambda rows: rows.update(updates={"b": "'y'"}, predicate="a = 10"), "merge"),
        (lambda rows: rows.update(updates={"b": "b || 'x'", "d": "1.5"}, predicate="a > 20"), "write overwrite"),
        (lambda rows: rows.delete("a > 50"), "write overwrite"),
        (lambda rows: rows.delete("b = 'p' and d = 0.0"), ""),
        (lambda rows: write_deltalake(table, copies(2), mode="append"), "write append"),
    ]
    for change, way in steps:
        change(DeltaTable(table))
        assert view.refresh().strategy == "incremental"
        view.assert_equal()
        assert not way or written(view) == way


@pytest.mark.slow
def test_where_most_groups_change_all_are_written(new_view: NewView) -> None:
    view = new_view("select a, max(b) m, min(n) lo from t group by a", seed=1, refresh="incremental", by_spark=True)
    table, size = view.lake.uris["t"], MERGED_CHANGES_MAX + 2_000
    rows = pa.table({"a": range(size), "b": ["z"] * size, "d": [0.5] * size, "n": pa.nulls(size)})
    write_deltalake(table, rows.cast(SCHEMAS["t"]), mode="overwrite")
    view.refresh()
    DeltaTable(table).delete("a < 500")
    DeltaTable(table).update(updates={"b": "'y'"}, predicate="a < 51000")
    DeltaTable(table).update(updates={"a": "a + 1000000"}, predicate="a > 51000")
    assert view.refresh().strategy == "incremental"
    view.assert_equal()
    assert written(view) == "write overwrite"


def test_more_copies_of_a_row_than_there_are_cannot_go(new_view: NewView) -> None:
    view = new_view(BAG, seed=1, refresh="incremental", deletion_vectors=False)
    write_deltalake(view.lake.uris["t"], copies(2), mode="overwrite")
    view.refresh()
    version, position = DeltaTable(view.target).version(), view.position()
    with view.engine.session() as session:
        context = ConsumeContext(session, view.row, position.source_id, 1, position, OpenGuard())
        changes = session.sql(f"select 2L a, 'q' b, 1.10BD n, -5L {WEIGHT}").selectExpr(
            "a", "b", "cast(n as decimal(10, 2)) n", WEIGHT
        )
        tag = commit_tag(context, "tail", position.watermark.version, Watermark(position.watermark.version + 1), {})
        with pytest.raises(ChangesUnavailableError, match=LACKING):
            commit_changes(context, view.pool.sink(view.target), ChangedRows(changes, 100), tag)
    assert DeltaTable(view.target).version() == version


@pytest.mark.slow
def test_changes_that_take_as_long_as_all_rows_are_given_up_and_later_ones_are_not_tried(new_view: NewView) -> None:
    slow = "select a, max(hash(id + a)) m from t cross join range(4000000) where b = 'p' group by a"
    view = new_view(slow, seed=1)
    table, unread = view.lake.uris["t"], "".join(random.Random(1).choices("xyz", k=1_000_000))
    rows = [{"a": 1, "b": "p"}, {"a": 2, "b": unread}]
    write_deltalake(table, pa.Table.from_pylist(rows, SCHEMAS["t"]), mode="overwrite")
    view.refresh()
    memory = view.pool.keep(("view", view.row.job_id, view.sql), view.target, lambda uri: ViewMemory())
    refreshes = memory.refreshes
    assert refreshes is not None
    (sample,) = refreshes.history.samples
    for _ in range(2):
        refreshes.remember(RefreshSample(Strategy.FULL, sample.bytes, 0.01))  # and all else takes longer
    DeltaTable(table).update(updates={"a": "7"}, predicate="a = 1")
    given_up = view.refresh()
    assert (given_up.strategy, given_up.reason.endswith("as long as a full one, and were given up")) == ("full", True)
    assert not given_up.warning
    view.assert_equal()
    tried = [each for each in refreshes.history.samples if each.strategy is Strategy.INCREMENTAL]
    assert len(tried) == 1
    assert tried[0].took_s > 0.5
