"""Targets of groups, and what is kept of these, are changed by deletion vectors, and by merges where they have none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.sink.bag_write import VECTORS
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.model.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.model.values.watermark import NOTHING_APPLIED, Watermark
from iscp.ports.sink import CommitTag
from tests.selection import in_full

from .conftest import SCHEMAS, ViewBench, comparable

pytestmark = pytest.mark.spark

NewView = Callable[..., ViewBench]

SUMS = "select b, count(*) c, sum(n) s, avg(a) m from t group by b"
SEVERAL = "select a, b, count(n) k from t group by b, a"
JOINED = "select u.x, t.b, count(*) c, sum(u.y) s, sum(t.n) n, avg(t.a) m from t join u on t.a = u.a group by u.x, t.b"
TOUCHED = "select d, min(a) lo, count(distinct b) k, max(n) hi from t group by d"
NESTED = "select struct(a, b) k, max(n) m from t group by struct(a, b)"
STRUCTS = "select b, max(struct(coalesce(a, 0) as p, coalesce(b, '') as q)) m from t group by b"
COLLATED = "select min(b) lo, count(*) c from t group by b collate utf8_lcase"


def has_vectors(uri: str) -> bool:
    return VECTORS.items() <= DeltaTable(uri).metadata().configuration.items()


class Follower:
    """Somebody who keeps a copy of a table by its change data feed."""

    def __init__(self, uri: str) -> None:
        self.uri, self.version = uri, -1
        self.rows: Counter[tuple[Any, ...]] = Counter()

    def assert_follows(self) -> None:
        table = DeltaTable(self.uri)
        if table.version() > self.version:
            feed = table.load_cdf(starting_version=self.version + 1, ending_version=table.version())
            for row in pa.table(feed.read_all()).to_pylist():
                kind, *_ = (row.pop(name) for name in ("_change_type", "_commit_version", "_commit_timestamp"))
                if kind in ("insert", "update_postimage"):
                    self.rows[tuple(map(comparable, row.values()))] += 1
                else:
                    self.rows[tuple(map(comparable, row.values()))] -= 1
            self.version = table.version()
        held = pa.table(table.scan()).to_pylist()
        assert {row: count for row, count in self.rows.items() if count} == Counter(
            tuple(map(comparable, row.values())) for row in held
        )


@pytest.mark.parametrize("sql", in_full([SUMS, SEVERAL, JOINED, TOUCHED], but=[JOINED, TOUCHED]))
@pytest.mark.slow
def test_groups_follow_a_long_history_by_deletion_vectors(new_view: NewView, sql: str) -> None:
    """Of keys that are null, -0.0 or NaN, and groups that go and come back; others make checkpoints, and a node that
    knows nothing takes over, in between."""
    view = new_view(sql, seed=41, refresh="incremental")
    view.refresh()
    follower, strategies = Follower(view.target), set()
    follower.assert_follows()
    for number in range(8):
        view.lake.change()
        if number == 5:
            DeltaTable(view.lake.uris["t"]).delete("true")
        strategies.add(view.refresh().strategy)
        view.assert_equal()
        follower.assert_follows()
        if number == 2:
            view.restart()
        if number % 3 == 1:
            DeltaTable(view.target).create_checkpoint()
    assert ("groups" in strategies) == (sql is not TOUCHED)
    assert has_vectors(view.target)
    history = DeltaTable(view.target).history()
    assert not any(each["operation"] == "MERGE" for each in history)
    if sql is not TOUCHED:
        state = DeltaTable(view.target + VIEW_STATE_SUFFIX)
        assert not any(each["operation"] == "MERGE" for each in state.history())


@pytest.mark.parametrize("sql", in_full([NESTED, COLLATED]))
@pytest.mark.slow
def test_keys_that_arrow_compares_otherwise_are_left_to_spark(new_view: NewView, sql: str) -> None:
    view = new_view(sql, seed=43, tables=("t",), refresh="incremental")
    view.refresh()
    for text in ("P", "p", "new"):
        row = [{"a": 1, "b": text, "d": 0.5, "n": None}]
        write_deltalake(view.lake.uris["t"], pa.Table.from_pylist(row, SCHEMAS["t"]), mode="append")
        assert view.refresh().strategy == "incremental"
        view.assert_equal()
    view.lake.change()
    view.refresh()
    view.assert_equal()
    assert has_vectors(view.target) == (sql is COLLATED)


@pytest.mark.parametrize("vectors", [True, False])
def test_a_group_that_is_gone_has_no_struct_whose_fields_are_never_null(new_view: NewView, vectors: bool) -> None:
    view = new_view(STRUCTS, seed=43, tables=("t",), refresh="incremental", deletion_vectors=vectors, by_spark=True)
    view.refresh()
    for _ in range(4):
        view.lake.change()
        DeltaTable(view.lake.uris["t"]).delete("b = 'p'")
        view.refresh()
        view.assert_equal()


@pytest.mark.parametrize("sql", in_full([SUMS, TOUCHED]))
def test_a_target_that_is_to_have_no_deletion_vectors_has_none(new_view: NewView, sql: str) -> None:
    view = new_view(sql, seed=47, refresh="incremental", deletion_vectors=False, by_spark=True)
    view.refresh()
    for _ in range(3):
        view.lake.change()
        view.refresh()
        view.assert_equal()
    assert DeltaTable(view.target).protocol().reader_features is None
    assert sql is not SUMS or has_vectors(view.target + VIEW_STATE_SUFFIX)


def test_tables_that_were_made_without_deletion_vectors_are_merged(new_view: NewView) -> None:
    """Neither the target nor what is kept has them."""
    view = new_view(SUMS, seed=53, refresh="incremental", deletion_vectors=False)
    state = view.target + VIEW_STATE_SUFFIX
    sums = [("c0", "long"), ("s0", "decimal(38,0)"), ("c1", "long"), ("s1", "decimal(38,2)")]
    kinds = [("k0", "string"), ("n", "long"), *sums, ("c2", "long"), ("s2", "decimal(38,0)")]
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds]
    tag = CommitTag(1, view.row.job_id, "s", NOTHING_APPLIED, Watermark(), 1, -1, "first", "view_state")
    DeltaSink(state, view.failpoints).claim(json.dumps({"type": "struct", "fields": fields}), tag)
    view.refresh()
    assert "groups" in view.follow(5)
    assert not has_vectors(view.target)
    assert not has_vectors(state)
    assert any(each["operation"] == "MERGE" for each in DeltaTable(state).history())


def test_the_logs_of_the_target_and_of_what_is_kept_stay_short(new_view: NewView) -> None:
    view = new_view(SUMS, seed=59)
    view.run()
    for _ in range(10):
        row = [{"a": 1, "b": "p", "d": 0.5, "n": None}]
        write_deltalake(view.lake.uris["t"], pa.Table.from_pylist(row, SCHEMAS["t"]), mode="append")
        assert view.run().strategy == "groups"
    view.assert_equal()
    for uri in (view.target, view.target + VIEW_STATE_SUFFIX):
        assert list(Path(uri, "_delta_log").glob("*.checkpoint.parquet")), uri
