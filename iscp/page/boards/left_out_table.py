"""The rows that a job leaves out of its target, as its board shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from iscp.core.api.api_views import JobView, LeftOutRows
from iscp.page.boards.shown_values import short

COLUMNS_SHOWN_MAX = 8
"""Columns of rows left out that the board shows; how many more there are is said."""

VALUE_CHARS_MAX = 200
"""Characters of a value that the board shows; the rest is cut."""


@dataclass(frozen=True, slots=True)
class LeftOutTable:
    """Some rows, each with its values (in the order of `columns`) and why it is left out. `fault` says why they could
    not be read.
    """

    place: str = ""
    columns: Sequence[str] = ()
    columns_more: int = 0
    rows: Sequence[tuple[Sequence[str], str]] = ()
    fault: str = ""


def leaves_out(job: JobView) -> bool:
    """Return whether a job is known to leave out rows: those that share a key, or those that an index cannot have."""
    return job.status.dead_letters > 0 or job.figures.get("faults", 0.0) > 0.0


def left_out_table(found: LeftOutRows) -> LeftOutTable:
    """Return the table of these rows, with the columns that any of them has."""
    names = list(dict.fromkeys(name for row in found.rows for name in row.columns))
    shown = names[:COLUMNS_SHOWN_MAX]
    return LeftOutTable(
        place=found.place,
        columns=[short(name, VALUE_CHARS_MAX) for name in shown],
        columns_more=len(names) - len(shown),
        rows=[([_text(row.columns.get(name)) for name in shown], row.reason) for row in found.rows],
    )


def _text(value: object) -> str:
    text = value if isinstance(value, str) else "null" if value is None else json.dumps(value, ensure_ascii=False)
    return short(text, VALUE_CHARS_MAX)
