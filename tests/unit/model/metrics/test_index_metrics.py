from __future__ import annotations

from iscp.model.metrics.index_metrics import figure_readings
from tests.fakes.owned_jobs import row

FIGURES = {
    "rows": 9,
    "faults": 1,
    "key.segments": 2,
    "key.fresh_rows": 3,
    "text.body.segments": 4,
    "text.body.fresh_rows": 5,
    "dead_rows": 6,
    "versions": 7,
    "bytes": 800,
}


def test_the_figures_of_parts_are_added_up_and_others_are_left_out() -> None:
    found = {each.metric.name: each.value for each in figure_readings(row("words"), FIGURES)}
    assert found == {
        "iscp.index.rows": 9,
        "iscp.index.rows.faults": 1,
        "iscp.index.segments": 6,
        "iscp.index.rows.fresh": 8,
        "iscp.index.rows.dead": 6,
        "iscp.index.size": 800,
    }


def test_an_index_is_named_by_its_job() -> None:
    (reading,) = figure_readings(row("words"), {"rows": 1})
    assert reading.attributes == {"iscp.account": "a", "iscp.table": "/tables/t-1", "iscp.job": "words"}


def test_an_index_that_could_not_be_read_has_no_figures() -> None:
    assert [*figure_readings(row("words"), {})] == []
