"""Tables on narrow terminals, and colours."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from click.testing import CliRunner

from iscp.cli.iscp_admin import cli
from iscp.cli.shell.drawing import fit

COLUMNS = ("TABLE", "NAME", "STATE", "REASON", "SOURCE", "ERROR")
ROWS = [("/lake/sales/europe/orders", "copy", "completed", "", "12", ""), ("/lake/x", "open", "error", "", "3", "gone")]


def width(columns: list[str], rows: list[list[str]]) -> int:
    cells = [[name, *(row[place] for row in rows)] for place, name in enumerate(columns)]
    return sum(max(map(len, column)) for column in cells) + 2 * (len(columns) - 1)


def test_what_fits_is_shown_whole() -> None:
    assert fit(COLUMNS, ROWS, ("SOURCE",), 100) == (list(COLUMNS), [list(row) for row in ROWS])


@pytest.mark.parametrize("least", [40, 45, 50])
def test_what_is_too_wide_loses_empty_columns_then_spare_ones_then_the_fronts_of_tables(least: int) -> None:
    shown, rows = fit(COLUMNS, ROWS, ("SOURCE",), least)
    assert width(shown, rows) <= least
    assert "REASON" not in shown
    assert ("SOURCE" in shown) is (least > 40)
    assert rows[0][0].startswith("…")
    assert rows[0][0].endswith("/orders")
    assert rows[1][0] == "/lake/x"


def test_a_list_without_rows_keeps_its_columns_while_they_fit() -> None:
    assert fit(COLUMNS, [], (), 60)[0] == list(COLUMNS)


def on_a_terminal(code: str, **env: str) -> str:
    """What a program prints on a terminal of 60 columns."""
    ours, theirs = pty.openpty()
    given = {**os.environ, "COLUMNS": "60", "TERM": "xterm-256color", **env}
    given.pop("NO_COLOR", None) if "NO_COLOR" not in env else None
    child = subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=subprocess.STDOUT, env=given)
    os.close(theirs)
    printed = b""
    try:
        while chunk := os.read(ours, 65536):
            printed += chunk
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert child.wait() == 0
    return printed.decode()


DRAW = f"from iscp.cli.shell.drawing import table; table({COLUMNS!r}, {ROWS!r}, spare=('SOURCE',))"


def test_states_have_colours_on_a_terminal_and_none_where_no_color_is_set() -> None:
    assert "\x1b[31merror" in on_a_terminal(DRAW)
    assert "\x1b[32mcompleted" in on_a_terminal(DRAW)
    plain = on_a_terminal(DRAW, NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "completed" in plain


def test_a_terminal_shows_whole_lines_of_its_width_and_says_what_is_left_out() -> None:
    code = f"from iscp.cli.shell.drawing import table; table({COLUMNS!r}, {ROWS!r}, spare=('SOURCE', 'NAME'))"
    lines = on_a_terminal(code.replace("/europe/", "/europe/of/the/north/"), NO_COLOR="1", COLUMNS="40").splitlines()
    assert lines[0] == "not shown: SOURCE; -o wide shows all"
    assert len(lines) == 4


def test_a_pipe_has_no_colours_and_whole_values() -> None:
    printed = subprocess.run([sys.executable, "-c", DRAW], capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in printed
    assert "/lake/sales/europe/orders" in printed


def test_an_output_that_is_not_known_is_wrong_usage() -> None:
    for value in ("xml", "jsonpath=.a["):
        result = CliRunner().invoke(cli, ["status", "-o", value])
        assert result.exit_code == 2
        assert "-o" in result.stderr
