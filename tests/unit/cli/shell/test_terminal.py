"""Whatever a tenant wrote, what commands print steers no terminal, and what programs read of it loses nothing."""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unicodedata import category

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import iscp
from iscp.cli.index.search_output import show_answer
from iscp.cli.shell import drawing, render
from iscp.cli.shell.error_words import show_error
from iscp.cli.shell.left_out_lines import show_left_out
from iscp.cli.shell.terminal import json_text, say, say_headed, say_marked, yaml_text
from iscp.core.api.api_views import LeftOutRow, LeftOutRows
from iscp.core.api.search_views import SearchAnswer, SearchHit
from iscp.core.values.errors import InvalidRequest

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
        "cli/shell/drawing.py",
        "cli/shell/terminal.py",
        "cli/demo/view.py",  # a picture that changes, of texts by `drawing`
        "adapters/delta/selftest/commit_race.py",  # what its parent reads, and nobody else
        "adapters/delta/spark/jvm_log.py",
        "adapters/delta/spark/warm_up.py",
        "adapters/system/failpoints.py",
    }
)

hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def is_harmless(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" or category(each) == "Zs" for each in text)


@hostile
def test_no_text_steers_a_terminal(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": text, text: [text]}
    say(text)
    drawing.pairs({"name": text})
    drawing.table(("NAME",), [(text,)])
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
        drawing.table(names, [[text] * len(names)], spare=names)
        drawing.pairs(dict.fromkeys(names, text))
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
    assert len(files) > 500
    found = [
        f"{each.relative_to(PACKAGE)}:{node.lineno}"
        for each in files
        for node in ast.walk(ast.parse(each.read_text()))
        if prints(node) and isinstance(node, ast.stmt | ast.expr)
    ]
    assert found == []
    for name in PRINTS:
        assert any(map(prints, ast.walk(ast.parse((PACKAGE / name).read_text())))), f"{name} prints no more"
