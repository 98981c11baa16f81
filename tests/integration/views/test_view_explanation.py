"""What is said of a view's upkeep is of the query as Spark has it, and of the tables as their logs are."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.query_plan import OperatorUpkeep, QueryExplanation
from iscp.views.analysis.session_analysis import SessionAnalysis
from tests.selection import in_full

from .conftest import ViewBench

GROUPS = "select b, count(*) c, sum(n) s from t group by b"
LIMIT = "select b, count(*) c from t group by b order by c desc, b limit 2"
LIMIT_OF_DOUBLES = "select b, sum(d) s from t group by b order by b limit 2"
JOIN = "select t.a, u.x from t join u on t.a = u.a"


def explain(view: ViewBench) -> QueryExplanation:
    return view.kind.explain(view.spec, DeltaCatalog.of(view.runtime.root, SessionAnalysis(view.runtime.root)))


def rows(uri: str) -> int:
    return len(pa.table(DeltaTable(uri).scan()))


@pytest.mark.parametrize(
    ("sql", "upkeep", "state"),
    in_full(
        [
            (GROUPS, OperatorUpkeep.STATE, "each group's count and sums"),
            (LIMIT_OF_DOUBLES, OperatorUpkeep.WHOLE, "its rows"),
            (LIMIT, OperatorUpkeep.STATE, "each group's count and sums"),
            (JOIN, OperatorUpkeep.LINEAR, ""),
        ],
        but=2,
        unpack=True,
    ),
)
def test_a_view_is_explained_with_what_is_kept_of_it(
    new_view: Callable[..., ViewBench], sql: str, upkeep: OperatorUpkeep, state: str
) -> None:
    view = new_view(sql, seed=1)
    before = explain(view)
    assert before.kept == ()
    assert {name: size.rows for name, size in before.sizes.items()} == {
        name: rows(uri) for name, uri in view.lake.uris.items() if name in before.tables
    }
    assert upkeep in {each.upkeep for each in before.operators}
    assert {each.state for each in before.operators} - {""} == ({state} if state else set())
    view.refresh()
    write_deltalake(view.lake.uris["t"], DeltaTable(view.lake.uris["t"]).to_pyarrow_table().slice(0, 1), mode="append")
    view.refresh()
    after = {each.holds: each for each in explain(view).kept}
    assert after["the result"].size.rows == rows(view.target)
    assert after["the result"].size.bytes > 0
    assert ("what is kept besides" in after) == bool(state)


def test_what_a_change_costs_goes_by_the_other_tables_rows(new_view: Callable[..., ViewBench]) -> None:
    view = new_view(JOIN, seed=1)
    (joined,) = [each for each in explain(view).operators if each.upkeep is OperatorUpkeep.JOINED]
    found = {each.table: (each.changed, each.read) for each in joined.costs}
    assert found == {"t": (1_000, rows(view.lake.uris["u"])), "u": (1_000, rows(view.lake.uris["t"]))}
