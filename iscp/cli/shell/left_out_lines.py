"""Print rows that a job leaves out of its target."""

from __future__ import annotations

from iscp.cli.shell.drawing import table
from iscp.cli.shell.terminal import json_text, say
from iscp.core.api.api_views import LeftOutRows
from iscp.core.values.untrusted_values import one_line


def show_left_out(found: LeftOutRows, wide: bool) -> None:
    """Print one line for each row, with why it is left out."""
    if not found.rows:
        say("no row is left out", err=True)
        return
    names = list(dict.fromkeys(name for row in found.rows for name in row.columns))
    rows = [(*(_text(row.columns.get(name)) for name in names), one_line(row.reason)) for row in found.rows]
    table((*names, "WHY"), rows, wide=wide)
    say(f"in {found.place}", err=True)


def _text(value: object) -> str:
    return one_line(value) if isinstance(value, str) else "" if value is None else json_text(value)
