"""Whatever a tenant wrote, what commands print steers no terminal, and what programs read of it loses nothing.

Tables on narrow terminals, and colours.

The confirmation before many changes: accepted, declined, and without a terminal.
"""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unicodedata import category

import click
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import iscp
from iscp.cli.index.index_commands import show_answer
from iscp.cli.iscp_admin import cli
from iscp.cli.shell import render, terminal
from iscp.cli.shell.render import show_left_out
from iscp.cli.shell.root_group import RootGroup, show_error
from iscp.cli.shell.terminal import confirm, fit, json_text, say, say_headed, say_marked, yaml_text
from iscp.model.api.api_requests import LeftOutRow, LeftOutRows, SearchAnswer, SearchHit
from iscp.model.values.errors import InvalidRequest

HOSTILE = {
    "a title": "\x1b]0;owned\x07",
    "a colour": "\x1b[31m",
    "an 8-bit control": "\x9b31m",
    "a backspace": "safe\x08\x08\x08\x08evil",
    "a carriage return": "safe\revil",
    "right to left": "a\u202egpj.exe",
    "an isolate": "a\u2066b\u2069",
    "no width": "a\u200bb\ufeff",
    "a separator": "a\u2028b",
    "a tag": "a\U000e0041",
    "a surrogate": "a\ud800",
}
PLAIN = "größe 注文 a\u3000b\tc\nd"
PACKAGE = Path(iscp.__file__).parent
DRAWING = frozenset({"rich", "rich.console", "rich.table", "rich.text", "rich.markup", "rich.panel"})
PRINTS = frozenset(
    {
        "cli/shell/terminal.py",
        "cli/demo/command.py",  # a picture that changes, of texts by `drawing`
        "delta/selftest/commit_race.py",  # what its parent reads, and nobody else
        "spark/jvm_launch.py",
        "spark/warm_up.py",
        "system/failpoints.py",
    }
)

hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def is_harmless(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" or category(each) == "Zs" for each in text)


@hostile
def test_no_text_steers_a_terminal(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": text, text: [text]}
    say(text)
    terminal.pairs({"name": text})
    terminal.table(("NAME",), [(text,)])
    for output in ("json", "yaml", "jsonpath=.name", "jsonpath=[*]", "name"):
        render.show({"id": text, **value}, output)
    printed = capsys.readouterr().out
    assert is_harmless(printed)
    assert len(printed.splitlines()) > 10


@hostile
def test_json_and_yaml_lose_nothing(text: str) -> None:
    value = {"name": text, "rest": [PLAIN, text]}
    assert json.loads(json_text(value, indent=2)) == value
    if "\ud800" not in text:  # no document of YAML can hold one
        assert yaml.safe_load(yaml_text(value)) == value


def test_what_is_harmless_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say(PLAIN)
    assert capsys.readouterr().out == f"{PLAIN}\n"
    assert "größe 注文" in json_text({"a": PLAIN})
    assert "größe 注文" in yaml_text({"a": "größe 注文"})


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4, unique=True), st.text(max_size=40))
def test_no_text_in_any_place_steers_a_terminal_or_is_markup(names: list[str], text: str) -> None:
    written = io.StringIO()
    with redirect_stdout(written), redirect_stderr(written):
        terminal.table(names, [[text] * len(names)], spare=names)
        terminal.pairs(dict.fromkeys(names, text))
        show_left_out(LeftOutRows((LeftOutRow(dict.fromkeys(names, text), text),), text), wide=False)
        hit = SearchHit({names[0]: text}, 1.0, dict.fromkeys(names, text), {text: (text,)}, text)
        show_answer(SearchAnswer((hit,), 1, 1.0, 1, cut=(text,)), "table")
        show_error(InvalidRequest(text, field=text, remedy=text), "table")
        say_headed(text, text, "red")
    assert is_harmless(click.unstyle(written.getvalue()))


@pytest.mark.parametrize("name", ["[/]", "[red]id", "a\nb", "[link=https://evil.example]id"])
def test_a_heading_is_drawn_as_it_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_left_out(LeftOutRows((LeftOutRow({name: 1}, "why"),), "/letters"), wide=False)
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == [*name.split(), "WHY"]
    assert row.split() == ["1", "why"]


MARKED = ("a ", False), ("<em>late</em>", False), ("flight", True)


class Screen(io.StringIO):
    """A terminal in memory."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "line"),
    [(io.StringIO(), "text: as it came\n"), (Screen(), "text: a <em>late</em>\x1b[1mflight\x1b[0m\n")],
    ids=["pipe", "terminal"],
)
def test_a_mark_is_no_part_of_the_text(out: io.StringIO, line: str) -> None:
    with redirect_stdout(out):
        say_marked("text: ", MARKED, "as it came")
    assert out.getvalue() == line


def prints(node: ast.AST) -> bool:
    """Whether a piece of code prints, or draws what is printed."""
    match node:
        case ast.ImportFrom(module=str(module)):
            return module in DRAWING
        case ast.Call(func=ast.Name(id="print" | "input")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="click"), attr=name)):
            return name in ("echo", "secho", "clear", "style", "prompt", "confirm", "progressbar", "echo_via_pager")
        case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="sys")), attr="write" | "writelines")):
            return True
        case ast.Call(func=ast.Attribute(attr="print" | "rule" | "log", value=ast.Attribute(attr="console"))):
            return True
    return False


def test_nothing_else_prints() -> None:
    files = [each for each in PACKAGE.rglob("*.py") if str(each.relative_to(PACKAGE)) not in PRINTS]
    assert len(files) > 300
    found = [
        f"{each.relative_to(PACKAGE)}:{node.lineno}"
        for each in files
        for node in ast.walk(ast.parse(each.read_text()))
        if prints(node) and isinstance(node, ast.stmt | ast.expr)
    ]
    assert found == []
    for name in PRINTS:
        assert any(map(prints, ast.walk(ast.parse((PACKAGE / name).read_text())))), f"{name} prints no more"


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


DRAW = f"from iscp.cli.shell.terminal import table; table({COLUMNS!r}, {ROWS!r}, spare=('SOURCE',))"


def test_states_have_colours_on_a_terminal_and_none_where_no_color_is_set() -> None:
    assert "\x1b[31merror" in on_a_terminal(DRAW)
    assert "\x1b[32mcompleted" in on_a_terminal(DRAW)
    plain = on_a_terminal(DRAW, NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "completed" in plain


def test_a_terminal_shows_whole_lines_of_its_width_and_says_what_is_left_out() -> None:
    code = f"from iscp.cli.shell.terminal import table; table({COLUMNS!r}, {ROWS!r}, spare=('SOURCE', 'NAME'))"
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


@click.group(cls=RootGroup)
def program() -> None:
    pass


@program.command()
def remove() -> None:
    confirm("remove 3 jobs?")
    click.echo("removed")


@pytest.mark.parametrize(("typed", "status", "words"), [("y\n", 0, "removed"), ("n\n", 1, "Aborted"), ("", 1, "--yes")])
def test_yes_goes_on_no_ends_and_silence_names_the_option(typed: str, status: int, words: str) -> None:
    result = CliRunner().invoke(program, ["remove"], input=typed)
    assert result.exit_code == status
    assert words in result.output
    assert ("removed" in result.stdout) is (status == 0)
