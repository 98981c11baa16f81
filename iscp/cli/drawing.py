"""Tables and pairs of names and values, drawn for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

PIPE_WIDTH = 400
"""Characters of a table's line where no terminal says how wide it is, so that pipes see whole values."""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        drawn.add_row(*(Text(cell, overflow="fold") for cell in row))
    _print(drawn)


def pairs(values: dict[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, show_header=False)
    for name, value in values.items():
        if value:
            drawn.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    _print(drawn)


def _print(drawn: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    with console.capture() as capture:
        console.print(drawn)
    for line in capture.get().splitlines():
        click.echo(line if console.is_terminal else line.rstrip())
