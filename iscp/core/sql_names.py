"""Names as SQL takes them, and those that what is kept of a source has in common."""

from __future__ import annotations

OP = "_iscp_op"
"""The column that holds a net change's operation (see the port Changes)."""

WEIGHT = "_iscp_weight"
"""The column that says how many of a row came (below 0: went)."""

DEAD_LETTER_SUFFIX = "_dead_letter"
"""What the name of the table has behind its target's in which rows that share a key are kept."""

VIEW_STATE_SUFFIX = "_view_state_2"
"""What the name of the table has behind its view's in which more is kept of the view than its rows.

Its number is that of what is kept, and how. Where that becomes another, so does the table: a node of the release before
leaves this one as it is, finds that its own is of earlier versions than the view, and writes that again; and the other
way round.
"""

VIEW_STATE_SUFFIXES = ("_view_state", VIEW_STATE_SUFFIX)
"""Those of earlier releases too."""


def quoted(name: str) -> str:
    """`name` as one identifier: dots, blanks and backticks in it count for nothing."""
    return "`" + name.replace("`", "``") + "`"
