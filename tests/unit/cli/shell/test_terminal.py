"""Whatever a tenant wrote, what commands print steers no terminal, and what programs read of it loses nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from iscp.cli.shell import drawing, render
from iscp.cli.shell.terminal import json_text, say, yaml_text

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
CLI = Path(__file__).parents[4] / "iscp/cli"
DRAWN = {"drawing.py", "terminal.py", "watch_option.py"}
"""What draws with colours, of texts that are escaped, and what escapes."""
OWN = {"demo", "doctor"}
"""What shows this machine alone."""

hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def is_harmless(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t\u3000" for each in text)


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


def test_all_commands_print_by_it() -> None:
    files = [each for each in CLI.rglob("*.py") if each.name not in DRAWN and not OWN & set(each.parts)]
    assert len(files) > 50
    assert [each.name for each in files if re.search(r"\bclick\.(echo|secho)\(|\bprint\(", each.read_text())] == []
