"""A view equals its query again after whatever happened to its tables, its target and what is kept beside it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.job.iteration import JobOutcome
from iscp.model.spec.spec import OnReplace
from iscp.model.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.model.values.errors import ErrorCode
from iscp.spark.session import SparkRuntime

from .conftest import Lake, ViewBench

pytestmark = pytest.mark.spark

NewView = Callable[..., ViewBench]

JOIN = "select t.a, t.b, t.d, u.x from t join u on t.a = u.a"
PLAIN = "select t.a, t.b, u.x from t join u on t.a = u.a"
GROUPS = "select b, count(*) c, sum(n) s from t group by b"
BEST = "select b, count(*) c from t group by b order by c desc, b limit 2"
QUERIES = {"bag": JOIN, "joins": PLAIN, "groups": GROUPS, "limit": BEST}


def each(*names: str, short: str = "") -> pytest.MarkDecorator:
    """For each of these queries, of which only `short` is tried in every run."""
    marks = {name: () if name == short else (pytest.mark.full,) for name in names or QUERIES}
    return pytest.mark.parametrize(
        "sql", [pytest.param(QUERIES[name], marks=mark, id=name) for name, mark in marks.items()]
    )


class Crash(BaseException):
    """The end of a process, as far as a runner can see it."""


def crash() -> None:
    raise Crash


def change(view: ViewBench) -> None:
    """Rows of both tables come, go and are updated."""
    lake = view.lake
    for name, uri in lake.uris.items():
        write_deltalake(uri, lake._rows(name, 3), mode="append")
        DeltaTable(uri).delete("a = 2")
        DeltaTable(uri).update(updates={"a": "3"}, predicate="a = 1")
        write_deltalake(uri, lake._rows(name, 3), mode="append")


def built(new_view: NewView, sql: str) -> ViewBench:
    """Refreshed once by what had changed."""
    view = new_view(sql, seed=11, refresh="incremental")
    assert_follows(view, view.run())
    change(view)
    outcome = view.run()
    assert outcome.strategy in ("incremental", "groups", "changes", "difference")
    assert_follows(view, outcome)
    return view


def assert_follows(view: ViewBench, outcome: JobOutcome) -> None:
    assert (outcome.error_msg, outcome.warning) == ("", "")
    view.assert_equal()


def assert_recomputed(view: ViewBench, says: str) -> None:
    outcome = view.run()
    assert outcome.error_msg == ""
    assert outcome.strategy == "full"
    assert says in outcome.warning
    view.assert_equal()
    change(view)
    assert_follows(view, view.run())


def vacuum(uri: str) -> None:
    DeltaTable(uri).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


@each()
def test_tables_that_were_vacuumed_between_two_refreshes(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    change(view)
    for uri in view.lake.uris.values():
        vacuum(uri)
    assert_recomputed(view, "recomputed: ")


@each(short="bag")
def test_tables_that_are_vacuumed_while_a_refresh_is_about_to_read_their_changes(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    change(view)
    uris = list(view.lake.uris.values())
    view.failpoints.once("read.before", lambda: list(map(vacuum, uris)))
    assert_recomputed(view, "recomputed: ")


@pytest.mark.further  # each time: tables that are vacuumed while a refresh reads, above
@each(short="groups")
def test_rows_that_are_vacuumed_away_under_a_refresh_are_read_at_a_later_version(new_view: NewView, sql: str) -> None:
    """Its tables are changed and vacuumed after it chose their versions: of these neither changes nor rows are left."""
    view = built(new_view, sql)
    change(view)

    def overtake() -> None:
        DeltaTable(view.lake.uris["t"]).update(updates={"a": "3"})
        vacuum(view.lake.uris["t"])

    view.failpoints.once("read.before", overtake)
    assert_recomputed(view, "recomputed: ")


@pytest.mark.further  # each time: vacuumed tables above, and cleaned logs in test_source_events.py
@each("bag", "groups", short="bag")
def test_a_log_that_was_cleaned_beyond_what_was_read(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    change(view)
    for uri in view.lake.uris.values():
        table = DeltaTable(uri)
        table.create_checkpoint()
        for version in range(table.version()):
            Path(uri, "_delta_log", f"{version:020d}.json").unlink()
    assert_recomputed(view, "recomputed: ")


def test_a_table_without_its_feed_is_followed_while_rows_are_inserted(new_view: NewView) -> None:
    view = new_view(JOIN, seed=11, refresh="incremental")
    u = view.lake.uris["u"]
    DeltaTable(u).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    assert_follows(view, view.run())
    write_deltalake(u, view.lake._rows("u", 5), mode="append")
    outcome = view.run()
    assert outcome.strategy == "changes"
    assert_follows(view, outcome)
    DeltaTable(u).update(updates={"x": "'new'"}, predicate="a = 3")
    outcome = view.run()
    assert outcome.strategy == "full"
    assert f"the change data feed of {u} is off" in outcome.warning
    view.assert_equal()


@each()
def test_rows_of_others_in_the_target(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    one = view.runtime.new_session().read.format("delta").load(view.target).limit(1).toArrow()
    write_deltalake(view.target, one, mode="append")
    outcome = view.run()
    assert outcome.ok
    view.assert_equal()
    DeltaTable(view.target).delete("true")
    change(view)
    assert view.run().ok
    view.assert_equal()
    change(view)
    assert_follows(view, view.run())


@each()  # each time: what is kept is deleted, below
def test_a_target_that_was_deleted_is_built_again(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    shutil.rmtree(view.target)
    change(view)
    outcomes = [view.run(), view.run()]
    assert outcomes[-1].ok, outcomes
    view.assert_equal()
    change(view)
    assert_follows(view, view.run())


@each()
def test_a_target_that_was_restored(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    DeltaTable(view.target).restore(1)
    outcomes = [view.run(), view.run()]
    assert outcomes[-1].ok, outcomes
    view.assert_equal()
    change(view)
    assert_follows(view, view.run())


@each("groups", "limit", short="limit")
def test_what_is_kept_beside_the_target_is_deleted_or_restored_to_other_versions(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    state = view.target + VIEW_STATE_SUFFIX
    DeltaTable(state).restore(DeltaTable(state).version() - 1)
    change(view)
    assert view.run().ok
    view.assert_equal()
    shutil.rmtree(state)
    change(view)
    assert view.run().ok
    view.assert_equal()
    change(view)
    assert_follows(view, view.run())


@each("groups", "limit")
def test_files_that_what_is_kept_has_lost(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    for file in Path(view.target + VIEW_STATE_SUFFIX).rglob("*.parquet"):
        file.unlink()
    change(view)
    view.restart()
    assert_recomputed(view, "")


@each("groups", "limit", short="groups")
def test_a_crash_between_what_is_kept_and_the_target(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    change(view)
    version = DeltaTable(view.target).version()
    view.failpoints.once("commit.after", crash)
    assert not view.run().ok
    assert DeltaTable(view.target).version() == version
    view.restart()
    change(view)
    assert view.run().ok
    view.assert_equal()
    change(view)
    assert_follows(view, view.run())


@each()
def test_a_crash_after_the_targets_commit_repeats_nothing(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    change(view)
    view.failpoints.once("report.before", crash)
    assert not view.run().ok
    version = DeltaTable(view.target).version()
    view.restart()
    outcome = view.run()
    assert not outcome.committed
    assert DeltaTable(view.target).version() == version
    assert_follows(view, outcome)


@each()
def test_a_column_that_the_view_does_not_read_comes(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    change(view)
    for name, uri in view.lake.uris.items():
        rows = view.lake._rows(name, 2).append_column("more", pa.array(["m", None]))
        write_deltalake(uri, rows, mode="append", schema_mode="merge")
    assert view.run().ok
    view.assert_equal()
    for name, uri in view.lake.uris.items():
        write_deltalake(uri, view.lake._rows(name, 2), mode="append", schema_mode="merge")
    assert_follows(view, view.run())


@pytest.mark.full
def test_a_column_comes_into_a_view_of_all_columns(new_view: NewView) -> None:
    view = built(new_view, "select * from t where a > 1")
    rows = view.lake._rows("t", 2).append_column("more", pa.array(["m", None]))
    write_deltalake(view.lake.uris["t"], rows, mode="append", schema_mode="merge")
    assert view.run().ok
    view.assert_equal()
    assert "more" in [field.name for field in DeltaTable(view.target).schema().fields]


@each(short="groups")
def test_a_column_that_the_view_reads_goes_and_comes_back(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    t = view.lake.uris["t"]
    rows = DeltaTable(t).to_pyarrow_table()
    write_deltalake(t, rows.drop_columns(["b"]), mode="overwrite", schema_mode="overwrite")
    for _ in range(2):
        outcome = view.run()
        assert outcome.error_code == ErrorCode.SCHEMA_CHANGED, outcome.error_msg
        assert "b" in outcome.error_msg
        view.restart()
    write_deltalake(t, rows, mode="overwrite", schema_mode="overwrite")
    assert view.run().ok
    view.assert_equal()


def test_a_column_of_a_name_that_rows_are_given_stops_a_view_until_it_is_gone(new_view: NewView) -> None:
    view = built(new_view, GROUPS)
    t = view.lake.uris["t"]
    rows = DeltaTable(t).to_pyarrow_table()
    for name in ("_iscp_weight", "_change_type"):
        write_deltalake(t, rows.append_column(name, rows["b"]), mode="append", schema_mode="merge")
        outcome = view.run()
        assert outcome.error_code == ErrorCode.SCHEMA_CHANGED, outcome.error_msg
        assert f"the source has {name} now" in outcome.error_msg
        write_deltalake(t, rows, mode="overwrite", schema_mode="overwrite")
        assert view.run().ok
        view.assert_equal()


@pytest.mark.parametrize(
    "sql",
    [
        "select k0, n, _metadata, _key_hash, value, rows, w from t where a > 0",
        "select k0, _metadata, count(*) c0, sum(n) s0, count(value) n, max(_key_hash) w from t group by k0, _metadata",
        "select t.k0, t._metadata, t._key_hash, u.x value, t.rows from t join u on t.a = u.a",
    ],
    ids=["rows", "groups", "join"],
)
def test_names_like_those_within_are_plain_ones(tmp_path: Path, spark_runtime: SparkRuntime, sql: str) -> None:
    class Named(Lake):
        def _rows(self, name: str, number: int) -> pa.Table:
            found = super()._rows(name, number)
            for more in ("k0", "_metadata", "_key_hash", "value", "rows", "w") if name == "t" else ():
                found = found.append_column(more, found["b"])
            return found

    view = ViewBench(Named(tmp_path, 3), spark_runtime, sql, refresh="incremental")
    assert view.run().ok
    view.assert_equal()
    for _ in range(2):
        change(view)
        assert view.run().ok
        view.assert_equal()


@each()
def test_another_writer_wins_the_seq_and_nothing_is_applied_twice(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    change(view)
    other = ViewBench.__new__(ViewBench)
    other.__dict__ |= view.__dict__
    other.restart()
    seq = view.row.seq
    outcomes: list[JobOutcome] = []
    view.failpoints.once("commit.before", lambda: outcomes.append(other.run()))
    outcomes.append(view.run())
    assert [outcome.error_msg for outcome in outcomes] == ["", ""]
    assert outcomes[0].seq == seq + 1
    view.assert_equal()
    change(view)
    assert_follows(view, view.run())


@each()
def test_a_table_that_was_replaced(new_view: NewView, sql: str) -> None:
    view = built(new_view, sql)
    name = "u" if sql is JOIN else "t"
    uri = view.lake.uris[name]
    columns = "a bigint, x string, y bigint" if name == "u" else "a bigint, b string, d double, n decimal(10, 2)"
    session = view.runtime.new_session()
    session.sql(
        f"create or replace table delta.`{uri}` ({columns}) using delta "
        "tblproperties ('delta.enableChangeDataFeed' = 'true')"
    )
    write_deltalake(uri, view.lake._rows(name, 4), mode="append")
    assert view.run().ok
    view.assert_equal()
    change(view)
    assert_follows(view, view.run())


@pytest.mark.full
def test_a_table_that_was_recreated_from_nothing(new_view: NewView) -> None:
    view = built(new_view, JOIN)
    view.row = view.row._replace(spec_json=replace(view.row.spec, on_replace=OnReplace.FOLLOW).to_json())
    for versions in (1, 30):
        uri = view.lake.uris["u"]
        shutil.rmtree(uri)
        for _ in range(versions):
            cdf = {"delta.enableChangeDataFeed": "true"}
            write_deltalake(uri, view.lake._rows("u", 2), mode="append", configuration=cdf)
        view.run()
        outcome = view.run()
        assert outcome.ok, outcome.error_msg
        view.assert_equal()
    change(view)
    assert_follows(view, view.run())


@pytest.mark.further  # each time: vacuumed tables above
def test_old_rows_whose_files_are_gone_are_done_without(new_view: NewView) -> None:
    """The changes are there, but not the rows that the table had before them."""
    sql = "select t.a, u.x from t full outer join u on t.a = u.a"
    view = new_view(sql, refresh="incremental", by_spark=True)
    view.refresh()
    table = DeltaTable(view.lake.uris["t"])
    before = [Path(uri) for uri in table.file_uris()]
    table.update(updates={"a": "3"})
    for file in before:
        file.unlink()
    found = view.refresh()
    assert (found.strategy, "recomputed" in found.warning) == ("full", True)
    view.assert_equal()
