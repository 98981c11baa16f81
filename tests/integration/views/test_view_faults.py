"""What happens to a view's tables and targets: it is right again after each, and says that it was recomputed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.core.errors import Conflict, ErrorCode, PermanentError
from iscp.core.sql_names import VIEW_STATE_SUFFIX
from tests.fakes.guards import break_down

from .conftest import SCHEMAS, ViewBench

NewView = Callable[..., ViewBench]
JOINED = "select t.a, u.x from t left join u on t.a = u.a"
TOP = "select b, count(*) c from t group by b order by c desc, b limit 2"


def row(name: str, *values: object) -> pa.Table:
    return pa.Table.from_arrays(
        [pa.array([value], field.type) for value, field in zip(values, SCHEMAS[name], strict=True)],
        schema=SCHEMAS[name],
    )


def add(view: ViewBench, name: str, *values: object) -> None:
    write_deltalake(view.lake.uris[name], row(name, *values), mode="append")


def test_rows_of_others_in_the_target_are_replaced(new_view: NewView) -> None:
    view = new_view(JOINED)
    view.refresh()
    write_deltalake(view.target, DeltaTable(view.target).to_pyarrow_table().slice(0, 1), mode="append")
    assert view.refresh().strategy == "full"
    view.assert_equal()


def test_a_kept_input_of_other_versions_is_written_again(new_view: NewView) -> None:
    """As after a crash between its commit and that of the view."""
    view = new_view(TOP, refresh="incremental")
    view.refresh()
    add(view, "t", 1, "p", None, None)
    view.failpoints.once("publish.before", break_down)
    with pytest.raises(OSError, match="Input/output"):
        view.refresh()
    found = view.refresh()
    assert (found.strategy, "other versions" in found.warning) == ("full", True)
    view.assert_equal()
    add(view, "t", 2, "q", None, None)
    assert view.refresh().strategy == "incremental"
    view.assert_equal()


@pytest.mark.full
def test_a_kept_input_that_is_gone_is_written_again(new_view: NewView) -> None:
    view = new_view(TOP, refresh="incremental")
    view.refresh()
    shutil.rmtree(view.target + VIEW_STATE_SUFFIX)
    add(view, "t", 1, "p", None, None)
    assert view.refresh().strategy == "full"
    view.assert_equal()


def test_a_column_that_the_query_needs_is_lost(new_view: NewView) -> None:
    view = new_view("select x, y from u where y > 0")
    view.refresh()
    uri = view.lake.uris["u"]
    table = DeltaTable(uri).to_pyarrow_table()
    write_deltalake(uri, table.drop_columns(["y"]), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(PermanentError, match="`y`") as lost:
        view.refresh()
    assert lost.value.code == ErrorCode.SCHEMA_CHANGED
    write_deltalake(uri, table, mode="overwrite", schema_mode="overwrite")
    assert view.refresh().strategy == "full"
    view.assert_equal()


@pytest.mark.full
def test_a_column_that_the_query_does_not_read_comes(new_view: NewView) -> None:
    view = new_view("select x, y from u where y > 0")
    view.refresh()
    uri = view.lake.uris["u"]
    new = row("u", 1, "p", 2).append_column("z", pa.array([1], pa.int64()))
    write_deltalake(uri, new, mode="append", schema_mode="merge")
    view.refresh()
    view.assert_equal()


@pytest.mark.full
def test_changes_that_were_vacuumed_unread_are_found_by_recomputing(new_view: NewView) -> None:
    view = new_view(JOINED, refresh="incremental")
    view.refresh()
    table = DeltaTable(view.lake.uris["t"])
    table.update(updates={"b": "'z'"}, predicate="a = 1 OR a IS NULL OR a > 1")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    shutil.rmtree(Path(view.lake.uris["t"], "_change_data"), ignore_errors=True)
    found = view.refresh()
    assert found.strategy == "full"
    assert "recomputed" in found.warning
    view.assert_equal()


def test_without_a_change_data_feed_inserts_are_followed_and_other_changes_recomputed(new_view: NewView) -> None:
    view = new_view(JOINED, refresh="incremental")
    DeltaTable(view.lake.uris["u"]).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    view.refresh()
    add(view, "u", 1, "new", 1)
    assert view.refresh().strategy == "incremental"
    view.assert_equal()
    DeltaTable(view.lake.uris["u"]).delete("x = 'new'")
    found = view.refresh()
    assert (found.strategy, "feed" in found.reason) == ("full", True)
    view.assert_equal()


def test_old_rows_whose_files_are_gone_are_done_without(new_view: NewView) -> None:
    """The changes are there, but not the rows that the table had before them."""
    view = new_view("select t.a, u.x from t full outer join u on t.a = u.a", refresh="incremental")
    view.refresh()
    table = DeltaTable(view.lake.uris["t"])
    before = [Path(uri) for uri in table.file_uris()]
    table.update(updates={"a": "3"})
    for file in before:
        file.unlink()
    found = view.refresh()
    assert (found.strategy, "recomputed" in found.warning) == ("full", True)
    view.assert_equal()


@pytest.mark.full
def test_of_two_writers_of_one_seq_one_wins(new_view: NewView) -> None:
    view = new_view(JOINED, refresh="incremental")
    view.refresh()
    add(view, "t", 1, "p", None, None)
    view.failpoints.once("commit.before", lambda: other.refresh())
    other = ViewBench(view.lake, view.runtime, view.sql, refresh="incremental")
    with pytest.raises(Conflict):
        view.refresh()
    view.refresh()
    view.assert_equal()
