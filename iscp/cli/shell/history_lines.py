"""The iterations of a job, as lines of a table."""

from __future__ import annotations

from collections.abc import Sequence

from iscp.cli.shell.drawing import table
from iscp.cli.shell.render import moment, seconds, version
from iscp.core.job.iteration import HistoryEntry

REFRESH_COLUMNS = ("READ", "PARTS", "WHY")
"""Columns of iterations that bring a query's result up to date; left out if there are none."""


def show_history(entries: Sequence[HistoryEntry], *, wide: bool = False) -> None:
    refreshes = any(entry.reason or entry.rows_in or entry.parts_s for entry in entries)
    left_out = () if refreshes else REFRESH_COLUMNS
    rows = [_cells_of(entry) for entry in entries]
    names = ("SEQ", "KIND", "FROM", "TO", "ENDED", "TOOK", "READ", "ROWS", "BYTES", "PARTS", "NODE", "WHY", "ERROR")
    shown = [name for name in names if name not in left_out]
    spare = ("BYTES", "NODE", "FROM", "PARTS", "KIND", "TOOK", "READ")
    table(shown, [[row[name] for name in shown] for row in rows], spare=spare, wide=wide)


def _longest_first(entry: HistoryEntry) -> list[tuple[str, float]]:
    return sorted(entry.parts_s.items(), key=lambda part: (-part[1], part[0]))


def _cells_of(entry: HistoryEntry) -> dict[str, str]:
    return {
        "SEQ": str(entry.seq),
        "KIND": entry.data_type,
        "FROM": version(entry.from_version),
        "TO": version(entry.to_version),
        "ENDED": moment(entry.end_at_s),
        "TOOK": seconds(entry.end_at_s - entry.start_at_s),
        "READ": str(entry.rows_in) if entry.rows_in else "-",
        "ROWS": str(entry.rows),
        "BYTES": str(entry.bytes),
        "PARTS": ", ".join(f"{name} {took_s:.2f} s" for name, took_s in _longest_first(entry)),
        "NODE": entry.node_id,
        "WHY": entry.reason,
        "ERROR": entry.error_msg,
    }
