"""Names as SQL takes them, and the names of columns and tables that iscp adds.

Names of fields within structs, as SQL writes them: each part of the path in backticks, joined by dots.

So a table's columns and the fields within them are found by one name each. A column that is itself called as the path
of a field is has that name alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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


_PATH = re.compile(r"`(?:[^`]|``)*`(?:\.`(?:[^`]|``)*`)+", re.DOTALL)
_PART = re.compile(r"`((?:[^`]|``)*)`", re.DOTALL)


def path_name(path: Sequence[str]) -> str:
    """Return the name of a field at a path of two names or more, the column's first."""
    return ".".join(map(quoted, path))


def path_of(name: str) -> tuple[str, ...]:
    """Return the path that is written in a name, or the name as the one part of it."""
    if not _PATH.fullmatch(name):
        return (name,)
    return tuple(part.replace("``", "`") for part in _PART.findall(name))


def fields_by_name(fields: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the columns of a schema (Delta's JSON) and the fields of structs, each with its name and with the metadata
    of all that it lies within.
    """
    columns = {each["name"]: each for each in fields}
    nested = (found for name, each in columns.items() for found in _nested(each, (name,)))
    return {**{each["name"]: each for each in nested}, **columns}


def _nested(field: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    kind = field["type"]
    for each in kind["fields"] if isinstance(kind, Mapping) and kind["type"] == "struct" else ():
        below = (*path, each["name"])
        metadata = {**(field.get("metadata") or {}), **(each.get("metadata") or {})}
        found = {**each, "metadata": metadata}
        yield {**found, "name": path_name(below)}
        yield from _nested(found, below)
