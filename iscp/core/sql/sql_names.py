"""Names as SQL takes them, and the names of columns and tables that iscp adds."""

from __future__ import annotations

from collections.abc import Iterable

OP = "_iscp_op"
"""The column with a net change's operation (see the port Changes)."""

WEIGHT = "_iscp_weight"
"""The column that says how many of a row came (below 0: went)."""

RESERVED_PREFIX = "_iscp_"
"""The prefix of all columns that rows are given while they are worked on."""

CHANGE_MARKS = ("_change_type", "_commit_version", "_commit_timestamp")
"""The columns that Delta's change data feed has beside those of a table."""

KEY_HASH = "_key_hash"
"""The column with the hash of the key, in rows of a job whose table may be split (see ShardedConsumer)."""

DEAD_LETTER_SUFFIX = "_dead_letter"
"""The suffix, after a target's name, of the table in which rows that share a key are stored."""

VIEW_STATE_SUFFIX = "_view_state_2"
"""The suffix, after a view's name, of the table in which more is stored of the view than its rows.

Its number is that of what is stored, and how. Where that becomes another, so does the table: a node of the release
before leaves this one as it is, finds that its own is of earlier versions than the view, and writes that again; and the
other way round.
"""

VIEW_STATE_SUFFIXES = ("_view_state", VIEW_STATE_SUFFIX)
"""The suffixes of this and of earlier releases."""


def reserved_names(columns: Iterable[str], *more: str) -> tuple[str, ...]:
    """Return the columns that no table may have which is read, and those called as one of `more`."""
    taken = {*CHANGE_MARKS, *more}
    return tuple(name for name in columns if name.lower() in taken or name.lower().startswith(RESERVED_PREFIX))


def quoted(name: str) -> str:
    """Return `name` as one identifier: dots, blanks and backticks in it count for nothing."""
    return "`" + name.replace("`", "``") + "`"
