"""Texts whose bytes are no UTF-8 in views: as values, keys of groups and of joins, and where rows are compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.pipeline.test_texts_of_bytes import as_bytes, text
from tests.selection import in_full

from .conftest import ViewBench

pytestmark = pytest.mark.spark

BAD, CUT, LONE = text("FFFE41"), text("E282"), text("80")

QUERIES = {
    "groups": "select b, count(*) c, sum(n) s from t group by b",
    "joins": "select t.a, t.b, u.x, u.y from t join u on t.b = u.x",
    "least": "select a, min(b) lo, max(b) hi, count(distinct b) k from t group by a",
    "bag": "select b, a from t where a is distinct from 4",
    "distinct": "select distinct b from t",
    "limit": "select b, count(*) c from t group by b order by c desc, b limit 3",
    "window": "select a, b, row_number() over (partition by b order by a, n) r from t where n is not null",
    "joined groups": "select u.x, count(*) c, sum(u.y) s from t join u on t.a = u.a group by u.x",
    "made": "select a, unhex(hex(b)) h, cast(unhex(concat('ff', hex(b))) as string) m from t",
    "total": "select count(distinct b) k, count(b) c from t",
}
CHANGES = [
    f"INSERT INTO T VALUES (1, {BAD}, 0.5, 1.10), (9, 'whole', 1.5, 2.20), (2, {LONE}, 1.5, null)",
    f"INSERT INTO U VALUES (1, {BAD}, 7), (2, 'q', 8), (6, {text('FF')}, 9)",
    f"UPDATE T SET b = {CUT} WHERE a = 2",
    f"INSERT INTO T VALUES (3, 'p', 0.5, 1.10), (3, {BAD}, null, 3.30)",
    "UPDATE U SET x = 'p' WHERE y = 7",
    f"DELETE FROM T WHERE b = {BAD}",
    "INSERT INTO T VALUES (4, 'q', 0.5, 1.10), (1, 'last', 0.5, 1.10)",
    "UPDATE T SET b = 'r' WHERE b IN ('q', 'last')",
]


class BytesBench:
    """A view whose tables Spark changes, and its rows against Spark's own answer, by their bytes."""

    def __init__(self, view: ViewBench) -> None:
        self.view = view
        self.strategies: set[str] = set()

    def change(self, statement: str) -> None:
        uris = self.view.lake.uris
        said = statement.replace(" T ", f" delta.`{uris['t']}` ").replace(" U ", f" delta.`{uris['u']}` ")
        with self.view.engine.session() as session:
            session.sql(said)

    def refresh(self) -> None:
        outcome = self.view.run()
        assert outcome.ok, outcome.error_msg

    def assert_equal(self) -> None:
        with self.view.engine.session() as session:
            for name, uri in self.view.lake.uris.items():
                session.read.format("delta").load(uri).createOrReplaceTempView(name)
            expected = as_bytes(session.sql(self.view.sql))
            assert as_bytes(session.read.format("delta").load(self.view.target)) == expected


@pytest.mark.parametrize("name", in_full([*QUERIES], but=["groups"]))
@pytest.mark.slow
def test_views_follow_changes_of_such_texts(new_view: Callable[..., ViewBench], name: str) -> None:
    tables = ["t", "u"] if "join" in name else ["t"]
    bench = BytesBench(new_view(QUERIES[name], seed=5, refresh="incremental", tables=tables))
    bench.refresh()
    for change in CHANGES:
        bench.change(change)
        bench.refresh()
        bench.assert_equal()
    assert bench.view.verify().equal


@pytest.mark.further  # each time: by deletion vectors, above
@pytest.mark.parametrize("name", ["groups", "bag"])
def test_views_that_are_merged_follow_changes_of_such_texts(new_view: Callable[..., ViewBench], name: str) -> None:
    bench = BytesBench(new_view(QUERIES[name], refresh="incremental", deletion_vectors=False, tables=["t"]))
    bench.refresh()
    for change in CHANGES:
        bench.change(change)
        bench.refresh()
        bench.assert_equal()


@pytest.mark.further  # each time: a view that meets them later, above
def test_a_view_that_begins_with_such_texts_follows_others(new_view: Callable[..., ViewBench]) -> None:
    bench = BytesBench(new_view(QUERIES["groups"], seed=5, refresh="incremental"))
    bench.change(CHANGES[0])
    bench.refresh()
    bench.assert_equal()
    bench.view.restart()
    for change in CHANGES[2:]:
        bench.change(change)
        bench.refresh()
        bench.assert_equal()
