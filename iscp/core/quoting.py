"""Names of columns as SQL takes them, whatever they are made of."""

from __future__ import annotations


def quoted(name: str) -> str:
    """`name` as one identifier: dots, blanks and backticks in it count for nothing."""
    return "`" + name.replace("`", "``") + "`"
