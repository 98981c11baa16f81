"""Print rows that a job leaves out of its target."""

from __future__ import annotations

from iscp.cli.shell.drawing import table
from iscp.cli.shell.terminal import json_text, say
from iscp.core.api.api_views import LeftOutRows


def show_left_out(found: LeftOutRows, wide: bool) -> None:
    """Print one line for each row, with why it is left out."""
    if not found.rows:
        say("no row is left out", err=True)
        return
    names = list(dict.fromkeys(name for row in found.rows for name in row.columns))
    rows = [(*(_text(row.columns.get(name)) for name in names), row.reason) for row in found.rows]
    table((*names, "WHY"), rows, wide=wide)
    say(f"in {found.place}", err=True)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json_text(value)
