"""What Spark has read of a view's query is stored beside its rows: small changes need no Spark in another process."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from iscp.algebra.stored_query import QUERY_BYTES_MAX
from iscp.cli.demo.lake import read
from iscp.consumers.view.view_kind import ViewKind
from iscp.delta.log.live_files import list_files_here, load_state_here
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.engine.iteration_ports import SinkPool
from iscp.model.job.iteration import Bounds
from iscp.ports.consumer import ConsumeContext, Refreshed, RefreshOrder
from iscp.spark.session import SparkRuntime
from iscp.views.refresh.refresh_choice import (
    CHANGES_PASSED_OVER,
    RefreshHistory,
    RefreshSample,
    Strategy,
    refreshes_from_json,
    refreshes_to_json,
)
from iscp.views.refresh.view_memory import QUERY_NOTE, REFRESH_NOTE
from tests.fakes.forged_queries import forged
from tests.fakes.guards import OpenGuard
from tests.selection import in_full

from .conftest import SCHEMAS, ViewBench

pytestmark = pytest.mark.spark

NewView = Callable[..., ViewBench]

GROUPS = "select t.b, count(*) c, sum(n) s, avg(t.a) m from t join u on t.a = u.a where u.y >= 0 group by t.b"
JOINS = "select t.a, t.b, u.x, t.n from t join u on t.a = u.a where t.b <> 'q'"
SPARK_ONLY = "select soundex(b) b, max(d) m from t group by b"


class SparkWasUsedError(Exception):
    pass


class NoSession:
    """Stands where a session does, and cannot be used."""

    def __getattribute__(self, name: str) -> Any:
        raise SparkWasUsedError(name)


class Newcomer:
    """Refreshes a bench's view in a process that knows nothing of it, and has no Spark."""

    def __init__(self, view: ViewBench) -> None:
        self.view, self.kind = view, ViewKind()
        self.source = DeltaChangeSource(load_state=load_state_here, list_files=list_files_here)
        self.pool = SinkPool(
            lambda uri: DeltaSink(uri, view.failpoints, load_state_here),
            lambda uri: uri,
            view.clock,
            view.failpoints,
            self.source,
        )

    def refresh(self, session: object = None) -> Refreshed:
        consumer = self.kind.open(self.view.row, self.pool)
        position = consumer.position(self.view.row)
        end = self.source.newest(self.view.row.table_uri)
        held: Any = session or NoSession()
        context = ConsumeContext(held, self.view.row, end.table_id, 1, position, OpenGuard())
        try:
            return consumer.refresh(context, RefreshOrder(end, Bounds(), ""))
        finally:
            consumer.tidy()


def note(view: ViewBench) -> Path:
    return Path(view.target, f"_iscp-{QUERY_NOTE}.json")


def append(view: ViewBench, number: int = 1) -> None:
    """A few rows of `t`, some with partners in `u`."""
    rows = [{"a": each % 4, "b": "p", "d": 0.5, "n": None} for each in range(number, number + 3)]
    write(view, rows)


def write(view: ViewBench, rows: list[dict[str, Any]]) -> None:
    write_deltalake(view.lake.uris["t"], pa.Table.from_pylist(rows, SCHEMAS["t"]), mode="append", schema_mode="merge")


def settled(view: ViewBench) -> ViewBench:
    """The view after its build, and a small change that has stored its groups."""
    view.refresh()
    append(view)
    assert view.refresh().strategy in ("groups", "changes")
    return view


@pytest.mark.parametrize(("sql", "strategy"), in_full([(GROUPS, "groups"), (JOINS, "changes")], unpack=True))
def test_a_newcomer_follows_small_changes_without_spark(new_view: NewView, sql: str, strategy: str) -> None:
    view = settled(new_view(sql, seed=71))
    for number in range(3):
        view.lake.change()
        append(view, number)
        DeltaTable(view.lake.uris["t"]).update(updates={"b": "'r'"}, predicate=f"a = {number}")
        assert Newcomer(view).refresh().strategy == strategy
        view.assert_equal()
    assert Newcomer(view).refresh().strategy == "unchanged"
    DeltaTable(view.lake.uris["t"]).delete("b = 'r' AND a = 99")
    write(view, [{"b": "q"}])
    assert Newcomer(view).refresh().strategy == strategy, "rows that have no part in the result"
    view.assert_equal()


def test_joins_need_no_refresh_between_the_build_and_the_newcomer(new_view: NewView) -> None:
    view = new_view(JOINS, seed=72)
    view.refresh()
    append(view)
    assert Newcomer(view).refresh().strategy == "changes"
    view.assert_equal()


def test_tables_with_deletion_vectors_and_checkpoints_are_followed_too(
    new_view: NewView, spark_runtime: SparkRuntime
) -> None:
    view = new_view(JOINS, seed=80)
    session = spark_runtime.new_session()
    for uri in view.lake.uris.values():
        session.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    settled(view)
    for name, gone in (("t", "a = 2"), ("u", "a = 1")):
        session.sql(f"DELETE FROM delta.`{view.lake.uris[name]}` WHERE {gone}")
        view.refresh()  # Spark reads which rows the vectors have taken out
        for uri in (*view.lake.uris.values(), view.target):
            DeltaTable(uri).create_checkpoint()
        append(view)
        assert Newcomer(view).refresh().strategy == "changes"
        view.assert_equal()


def test_that_spark_alone_computes_a_query_is_stored_too(new_view: NewView) -> None:
    view = new_view(SPARK_ONLY, seed=73, refresh="incremental")
    view.refresh()
    document = json.loads(note(view).read_bytes())
    assert document["algebra"] is None
    append(view)
    with pytest.raises(SparkWasUsedError):
        Newcomer(view).refresh()


Damage = Callable[[bytes], bytes]


def by(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda content: forged(content, change)


def tables_of(algebra: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The leaves of a stored query."""
    if algebra["operator"] == "Table":
        yield algebra
    for each in algebra.get("inputs", []):
        yield from tables_of(each)


def table_of(document: dict[str, Any]) -> dict[str, Any]:
    return next(tables_of(document["algebra"]))


DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
DAMAGES: Mapping[str, Damage] = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "a byte": lambda content: content.replace(b'"q"', b'"r"'),
    "no JSON": lambda content: b"\x80\x04K\x01.",
    "deep": lambda content: b"[" * (QUERY_BYTES_MAX // 2) + b"]" * (QUERY_BYTES_MAX // 2),
    "deep within": lambda content: content.replace(b'"number": 0', b'"number": ' + DEEP),
    "large": lambda content: content + b" " * QUERY_BYTES_MAX,
    "another format": by(lambda document: document.update(format=2)),
    "another Spark": by(lambda document: document["versions"].update(spark="3.5.0")),
    "another iscp": by(lambda document: document["versions"].update(iscp="0.0.1")),
    "another query": by(lambda document: document.update(sql=document["sql"] + " and t.a > 1")),
    "other tables": by(lambda document: document["tables"].update(t="/elsewhere")),
    "another schema": by(lambda document: document["schemas"].update(t="0" * 64)),
    "a column that is not there": by(lambda document: table_of(document)["fields"][0].__setitem__(1, "z")),
    "a table that is not there": by(lambda document: table_of(document).update(name="v")),
    "a column of another type": by(lambda document: table_of(document)["fields"][0].__setitem__(2, "string")),
    "a result of another name": by(lambda document: document["algebra"]["items"].pop()),
}  # fmt: skip


@pytest.mark.slow
def test_whatever_else_is_there_counts_as_no_file_and_is_replaced(new_view: NewView) -> None:
    view = settled(new_view(JOINS, seed=74))
    content = note(view).read_bytes()
    for number, (name, damage) in enumerate(DAMAGES.items()):
        damaged = damage(content)
        assert damaged != content, name
        note(view).write_bytes(damaged)
        append(view, number)
        with pytest.raises(SparkWasUsedError):
            Newcomer(view).refresh()
        assert note(view).read_bytes() == damaged
        view.restart()
        assert view.refresh().strategy == "changes", name
        assert note(view).read_bytes() == content, name
        view.assert_equal()
        append(view, number)
        assert Newcomer(view).refresh().strategy == "changes", name
        view.assert_equal()


def test_what_cannot_be_opened_or_written_harms_no_refresh(new_view: NewView, caplog: pytest.LogCaptureFixture) -> None:
    view = settled(new_view(JOINS, seed=75))
    note(view).unlink()
    os.mkfifo(note(view))
    append(view)
    view.restart()
    assert view.refresh().strategy == "changes"
    assert note(view).is_file(), "a pipe is replaced, and not opened"
    note(view).unlink()
    note(view).mkdir()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            append(view, number)
            view.restart() if not number else None
            assert view.refresh("on request" if number else "").strategy == ("full" if number else "changes")
            view.assert_equal()
    assert [each.message for each in caplog.records].count("view.note_unstored") == 1


def test_other_columns_of_a_table_are_another_file(new_view: NewView, spark_runtime: SparkRuntime) -> None:
    view = settled(new_view(JOINS, seed=76))
    before = note(view).read_bytes()
    session = spark_runtime.new_session()
    session.sql(f"ALTER TABLE delta.`{view.lake.uris['t']}` ADD COLUMNS (more STRING)")
    append(view)
    with pytest.raises(SparkWasUsedError):
        Newcomer(view).refresh()
    assert view.refresh().strategy == "full"
    assert note(view).read_bytes() != before
    append(view)
    assert Newcomer(view).refresh().strategy == "changes"
    view.assert_equal()


def test_a_forged_query_makes_the_view_wrong_and_reads_no_other_table(new_view: NewView) -> None:
    """Whoever may write to the target could have written the rows themselves; `job verify` finds them."""
    view = settled(new_view(JOINS, seed=77))

    def swap(document: dict[str, Any]) -> None:
        def without_filters(algebra: dict[str, Any]) -> dict[str, Any]:
            found = algebra["inputs"][0] if algebra["operator"] == "Filter" else algebra
            return found | ({"inputs": [*map(without_filters, found["inputs"])]} if "inputs" in found else {})

        document["algebra"] = without_filters(document["algebra"])

    note(view).write_bytes(forged(note(view).read_bytes(), swap))
    (partner, *_) = read(view.lake.uris["u"])["a"].drop_null().to_pylist()
    write(view, [{"a": partner, "b": "q"}])
    assert Newcomer(view).refresh().strategy == "changes"
    assert view.verify().extra == 1


def test_no_reader_and_no_vacuum_takes_the_file_for_a_part_of_the_table(
    new_view: NewView, spark_runtime: SparkRuntime
) -> None:
    view = settled(new_view(GROUPS, seed=78))
    content, rows = note(view).read_bytes(), read(view.target).num_rows
    session: SparkSession = spark_runtime.new_session()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.sql(f"VACUUM delta.`{view.target}` RETAIN 0 HOURS")
    DeltaTable(view.target).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert note(view).read_bytes() == content
    assert session.read.format("delta").load(view.target).count() == rows
    session.sql(f"OPTIMIZE delta.`{view.target}`")
    session.read.parquet(view.target).count()  # the files alone, without the log
    assert not view.catalog.describe(view.target).target_fault[0]
    append(view)
    assert Newcomer(view).refresh().strategy == "groups"
    view.assert_equal()


def test_a_process_that_has_seen_no_refresh_chooses_by_what_former_ones_took(new_view: NewView) -> None:
    """A forged note says nothing, and is replaced."""
    view = new_view(GROUPS, seed=80, by_spark=True)
    view.refresh()
    file = Path(view.target, f"_iscp-{REFRESH_NOTE}.json")
    (built,) = refreshes_from_json(file.read_bytes()).samples
    assert built.strategy is Strategy.FULL
    changes = RefreshSample(Strategy.INCREMENTAL, 1, 0.01)
    known = refreshes_to_json(RefreshHistory((built, changes)))
    for content, reason in ((known, "expected "), (b'[["full", -1, 1]]', "")):
        file.write_bytes(content)
        view.restart()
        append(view)
        assert view.refresh().reason.startswith("expected ") is bool(reason)
        assert len(refreshes_from_json(file.read_bytes()).samples) == (3 if reason else 1)
    view.assert_equal()


def test_changes_that_took_long_twice_are_tried_without_spark_again(new_view: NewView) -> None:
    """So that a machine which stalled, or had to start Spark, does not have a view recomputed from then on."""
    view = settled(new_view(GROUPS, seed=81))
    file = Path(view.target, f"_iscp-{REFRESH_NOTE}.json")
    full = next(each for each in refreshes_from_json(file.read_bytes()).samples if each.strategy is Strategy.FULL)
    slow = RefreshSample(Strategy.DIRECT, 1_000, 100.0)
    file.write_bytes(
        refreshes_to_json(RefreshHistory((full, slow, slow, replace(slow, strategy=Strategy.INCREMENTAL))))
    )
    view.restart()
    found = list[str]()
    for _ in range(CHANGES_PASSED_OVER + 2):
        append(view)
        done = view.refresh()
        found.append(f"{done.strategy}: {done.reason}")
        view.assert_equal()
    assert found[-1].startswith("groups"), found
