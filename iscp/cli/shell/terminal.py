"""Print for commands, and put questions before they change much: texts of others never steer a terminal.

Every command prints by this module, which escapes each text. JSON and YAML, which programs read, have the escapes of
their own form, so that nothing is lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import escaped, escaped_json, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


# --- texts and questions ----------------------------------------------------------------------------------------------


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, escaped."""
    click.echo(escaped(str(text)), err=err, nl=nl)


def say_headed(head: str, text: str, colour: str | None) -> None:
    """Print a line whose `head` is in a colour."""
    click.echo(f"{click.style(escaped(head), fg=colour)}{escaped(text)}")


def say_marked(head: str, parts: Iterable[tuple[str, bool]], plain: str) -> None:
    """Print a line whose marked parts stand out; `plain` instead of these where stdout is no terminal."""
    if not sys.stdout.isatty():
        say(f"{head}{plain}")
        return
    shown = ((escaped(text).replace("\n", " "), marked) for text, marked in parts)
    click.echo(escaped(head) + "".join(click.style(text, bold=True) if marked else text for text, marked in shown))


def say_drawn(drawn: str, *, clear: bool = False, nl: bool = True) -> None:
    """Print what `drawing` has drawn, or another function of this module has printed: its texts are escaped, and its
    colours are not. `clear` empties the terminal before.
    """
    if clear:
        click.clear()
    click.echo(drawn, nl=nl)


def json_text(value: Any, indent: int | None = None) -> str:
    """Letters of all scripts as they are, and JSON's escapes for what `say` escapes."""
    return escaped_json(json.dumps(value, indent=indent, ensure_ascii=False))


def yaml_text(value: Any) -> str:
    """Return YAML, as `json_text` returns JSON; if there is anything to escape, letters of all scripts have escapes
    too.
    """
    import yaml

    from iscp.cli.shell.untrusted_yaml import SafeDumper

    try:
        text = str(yaml.dump(value, Dumper=SafeDumper, sort_keys=False, allow_unicode=True))
    except UnicodeEncodeError:  # of a lone surrogate, as JSON may have it, libyaml makes no escape
        return str(yaml.safe_dump(value, sort_keys=False))
    return text if escaped(text) == text else str(yaml.dump(value, Dumper=SafeDumper, sort_keys=False))


def confirm(question: str) -> None:
    """Put the question before a command changes much.

    Raises click.Abort if the answer is no, InvalidRequest where nobody is there to answer.
    """
    try:
        agreed = click.confirm(escaped(question), err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        say(err=True)
        raise InvalidRequest(
            "there is no terminal for a question",
            about="--yes",
            remedy="Give --yes to go on without, or --dry-run to see what would be done",
        ) from None
    if not agreed:
        raise click.Abort


# --- tables, and pairs of names and values ----------------------------------------------------------------------------
# Tables are drawn for a terminal or a pipe. Each text that is drawn is made by `plain`: rich takes brackets in a bare
# string for markup, in a heading too.

PIPE_WIDTH = 400
"""Characters of a table's line where no terminal says how wide it is, so that pipes see whole values."""

SHORT_WIDTH = 12
"""Characters that a table's name or a text keeps at the least where a terminal is narrow."""

GAP_WIDTH = 2
"""Characters between two columns."""

_CUT = frozenset({"TABLE"})
_FOLDED = frozenset({"ERROR", "WHY", "REMEDY", "STATE NEEDED", "PARTS", "USAGE", "COST OF 1,000 ROWS"})
_COLOURED = frozenset({"STATE", "REASON", "LAG", "state", "reason", "lag"})

_STYLES = {
    "failed": "red",
    "error": "red",
    "quarantined": "red",
    "revoked": "red",
    "late": "red",
    "retrying": "yellow",
    "paused": "yellow",
    "quota": "yellow",
    "canceled": "yellow",
    "aborted": "yellow",
    "cordoned": "yellow",
    "draining": "yellow",
    "leaving": "yellow",
    "joining": "yellow",
    "pending": "cyan",
    "building": "cyan",
    "running": "cyan",
    "fresh": "green",
    "completed": "green",
    "publishing": "green",
    "ready": "green",
}
"""The colour of a value by its last word; only on terminals, and not where NO_COLOR is set."""

Rows = Sequence[Sequence[str]]


def table(columns: Sequence[str], rows: Rows, *, spare: Sequence[str] = (), wide: bool = False) -> None:
    """Draw the table; `spare` columns are left out, in this order, if a terminal is too narrow for all, unless
    `wide`.
    """
    console = console_of()
    if console.is_terminal and not wide:
        shown, cells = fit(columns, rows, spare, console.width)
        if hidden := [name for name in columns if name not in shown and any(_cells(columns, rows, name))]:
            say(f"not shown: {', '.join(hidden)}; -o wide shows all", err=True)
        columns, rows = shown, cells
    drawn = grid(columns)
    for row in rows:
        drawn.add_row(*(_text(name, cell) for name, cell in zip(columns, row, strict=True)))
    _print(drawn)


def grid(columns: Sequence[str], *, right: Collection[str] = (), title: str = "") -> Table:
    """Return a table without rows; the columns that `right` names have their cells at the right."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold", title=plain(title) if title else None)
    for name in columns:
        drawn.add_column(plain(one_line(name)), justify="right" if name in right else "left")
    return drawn


def pairs(values: dict[str, str]) -> None:
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, show_header=False)
    for name, value in values.items():
        if value:
            drawn.add_row(plain(name, "bold"), _text(name, value))
    _print(drawn)


def fit(columns: Sequence[str], rows: Rows, spare: Sequence[str], width: int) -> tuple[list[str], list[list[str]]]:
    """Return the columns and cells that fit into `width` characters, as far as they can.

    A table that is too wide loses first its empty columns, then the spare ones; then long names of tables retain their
    ends.
    """
    names = list(columns)
    empty = [name for name in columns if not any(_cells(columns, rows, name))]
    for name in (*(empty if rows else ()), *(each for each in spare if each not in empty)):
        if _total(columns, rows, names, least=name not in empty) <= width:
            break
        names.remove(name)
    left = width - _total(columns, rows, [name for name in names if name not in _CUT], least=True) - GAP_WIDTH
    return names, [
        [_cut(cell, left) if name in _CUT else cell for name, cell in zip(columns, row, strict=True) if name in names]
        for row in rows
    ]


def _cells(columns: Sequence[str], rows: Rows, name: str) -> list[str]:
    return [row[columns.index(name)] for row in rows]


def _total(columns: Sequence[str], rows: Rows, names: Sequence[str], *, least: bool) -> int:
    """Return the width of the columns; with `least` when names are cut and texts are folded."""
    widths = {name: max(len(name), *map(len, _cells(columns, rows, name)), 0) for name in names}
    if least:
        widths |= {name: min(widths[name], SHORT_WIDTH) for name in widths if name in _CUT | _FOLDED}
    return sum(widths.values()) + GAP_WIDTH * max(0, len(widths) - 1)


def _cut(text: str, width: int) -> str:
    width = max(width, SHORT_WIDTH)
    return text if len(text) <= width else f"…{text[1 - width :]}"


def plain(text: object, style: str = "") -> Text:
    """Return a text as rich draws it: escaped, and without markup."""
    from rich.text import Text

    return Text(escaped(str(text)), overflow="fold", style=style)


def _text(name: str, cell: str) -> Text:
    return plain(cell, _STYLES.get(cell.rpartition(" ")[2], "") if name in _COLOURED else "")


def console_of(*, err: bool = False) -> Console:
    """Return the terminal, or the pipe, that stdout or stderr is."""
    from rich.console import Console

    console = Console(highlight=False, stderr=err)
    return console if console.is_terminal else Console(highlight=False, stderr=err, width=PIPE_WIDTH)


def print_on(console: Console, drawn: str | Table) -> None:
    """Print a line, or what `grid` has made, beside a picture that changes."""
    console.print(plain(drawn) if isinstance(drawn, str) else drawn, soft_wrap=isinstance(drawn, str))


def _print(drawn: Table) -> None:
    console = console_of()
    with console.capture() as capture:
        console.print(drawn)
    for line in capture.get().splitlines():
        say_drawn(line if console.is_terminal else line.rstrip())
