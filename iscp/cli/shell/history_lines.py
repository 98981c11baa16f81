"""The iterations of a job, as lines of a table."""

from __future__ import annotations

from collections.abc import Sequence

from iscp.cli.shell.drawing import table
from iscp.cli.shell.render import moment, seconds, version
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.usage import Usage

COLUMNS = (
    "SEQ",
    "KIND",
    "FROM",
    "TO",
    "ENDED",
    "TOOK",
    "READ",
    "ROWS",
    "BYTES",
    "USAGE",
    "PARTS",
    "NODE",
    "WHY",
    "ERROR",
)
OFTEN_EMPTY = ("READ", "USAGE", "PARTS", "WHY")
"""Columns that are left out if no iteration has anything in them."""

EMPTY = {"READ": "-"}
"""The text that stands where nothing is known."""

SHOWN_LEAST_S = 0.005
"""Seconds of a part that are shown at the least: less would be 0.00."""


def show_history(entries: Sequence[HistoryEntry], *, wide: bool = False) -> None:
    rows = [_cells_of(entry) for entry in entries]
    left_out = {name for name in OFTEN_EMPTY if not any(row[name] for row in rows)}
    shown = [name for name in COLUMNS if name not in left_out]
    spare = ("BYTES", "NODE", "FROM", "PARTS", "KIND", "USAGE", "TOOK", "READ")
    table(shown, [[row[name] or EMPTY.get(name, "") for name in shown] for row in rows], spare=spare, wide=wide)


def usage_words(usage: Usage | None) -> str:
    """Return what an iteration has cost, in words; empty where nothing took long, or nobody has measured it."""
    if usage is None:
        return ""
    words = [f"{part} {spent_s:.2f} s" for part, spent_s in usage.seconds().items() if spent_s >= SHOWN_LEAST_S]
    words += [_counted(usage.retries, "retry", "retries")] if usage.retries else []
    words += [_counted(usage.conflicts, "conflict", "conflicts")] if usage.conflicts else []
    return ", ".join(words)


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _longest_first(entry: HistoryEntry) -> list[tuple[str, float]]:
    return sorted(entry.parts_s.items(), key=lambda part: (-part[1], part[0]))


def _cells_of(entry: HistoryEntry) -> dict[str, str]:
    rows_read = entry.rows_in or (entry.usage.rows_read if entry.usage else 0)
    return {
        "SEQ": str(entry.seq),
        "KIND": entry.data_type,
        "FROM": version(entry.from_version),
        "TO": version(entry.to_version),
        "ENDED": moment(entry.end_at_s),
        "TOOK": seconds(entry.end_at_s - entry.start_at_s),
        "READ": str(rows_read) if rows_read else "",
        "ROWS": str(entry.rows),
        "BYTES": str(entry.bytes),
        "USAGE": usage_words(entry.usage),
        "PARTS": ", ".join(f"{name} {took_s:.2f} s" for name, took_s in _longest_first(entry)),
        "NODE": entry.node_id,
        "WHY": entry.reason,
        "ERROR": entry.error_msg,
    }
