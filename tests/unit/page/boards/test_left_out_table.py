"""Rows left out become a table of a few columns, whatever a tenant has written into them."""

from __future__ import annotations

from dataclasses import replace

from iscp.core.api.api_views import LeftOutRow, LeftOutRows
from iscp.core.job.job_row import JobStatus
from iscp.page.boards.left_out_table import COLUMNS_SHOWN_MAX, VALUE_CHARS_MAX, leaves_out, left_out_table
from tests.fakes.viewed_cluster import job_view


def test_columns_are_those_of_any_row() -> None:
    rows = (LeftOutRow({"id": 1, "v": None}, "shared"), LeftOutRow({"id": 2, "w": [1]}, "no vector"))
    table = left_out_table(LeftOutRows(rows, "/copy_dead_letter"))
    assert (table.place, table.columns, table.columns_more) == ("/copy_dead_letter", ["id", "v", "w"], 0)
    assert table.rows == [(["1", "null", "null"], "shared"), (["2", "null", "[1]"], "no vector")]


def test_many_columns_and_long_values_are_cut() -> None:
    columns = {f"c{number}": "x" * 5_000 for number in range(COLUMNS_SHOWN_MAX + 3)}
    table = left_out_table(LeftOutRows((LeftOutRow(columns, "shared"),)))
    assert (len(table.columns), table.columns_more) == (COLUMNS_SHOWN_MAX, 3)
    assert {len(value) for value in table.rows[0][0]} == {VALUE_CHARS_MAX}


def test_a_job_leaves_out_rows_by_its_status_or_the_figures_of_its_index() -> None:
    assert not leaves_out(job_view())
    assert leaves_out(job_view(status=JobStatus(dead_letters=1)))
    assert leaves_out(replace(job_view(), figures={"faults": 2.0}))
