"""Rows that a job leaves out, as the command prints them."""

from __future__ import annotations

import pytest

from iscp.cli.shell.left_out_lines import show_left_out
from iscp.core.api.api_views import LeftOutRow, LeftOutRows


def test_a_line_for_each_row_with_why(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (LeftOutRow({"id": 1, "tags": ["a"]}, "shared"), LeftOutRow({"id": None}, "no vector"))
    show_left_out(LeftOutRows(rows, "/copy_dead_letter"), wide=False)
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()] == [
        ["id", "tags", "WHY"],
        ["1", '["a"]', "shared"],
        ["no", "vector"],
    ]
    assert "/copy_dead_letter" in shown.err


def test_no_row_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    show_left_out(LeftOutRows(), wide=False)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "no row is left out\n")
