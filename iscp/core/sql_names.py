"""Names as SQL takes them, and those that what is kept of a source has in common."""

from __future__ import annotations

OP = "_iscp_op"
"""The column that holds a net change's operation (see the port Changes)."""

WEIGHT = "_iscp_weight"
"""The column that says how many of a row came (below 0: went)."""

DEAD_LETTER_SUFFIX = "_dead_letter"
"""What the name of the table has behind its target's in which rows that share a key are kept."""

VIEW_STATE_SUFFIX = "_view_state"
"""What the name of the table has behind its view's in which more is kept of the view than its rows."""


def quoted(name: str) -> str:
    """`name` as one identifier: dots, blanks and backticks in it count for nothing."""
    return "`" + name.replace("`", "``") + "`"
