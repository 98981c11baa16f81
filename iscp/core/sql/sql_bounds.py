"""Bound the length and the nesting of users' SQL by one pass over the text, before anybody parses it.

Parsers go down by some calls for each level, and end where their stack does.
"""

from __future__ import annotations

import re

from iscp.core.values.errors import InvalidRequest

SQL_CHARACTERS_MAX = 200_000
"""Characters of a view's query or of a filter; a longer one is refused."""

SQL_NESTING_MAX = 40
"""Levels of parentheses, brackets and braces in users' SQL; what is nested more deeply is refused."""

_OUTSIDE = re.compile(
    r"""
    (?<!\w)[rR](?:'[^']*+'?|"[^"]*+"?)         # a text without escapes
    |'(?:[^'\\]|\\.)*+'?|"(?:[^"\\]|\\.)*+"?  # a text; one that does not end goes on to the end
    |`[^`]*+`?
    |--(?:\\\n|[^\n])*+
    |/\*
    |[(\[{)\]}]
    """,
    re.VERBOSE | re.DOTALL,
)
_IN_COMMENT = re.compile(r"/\*|\*/")


def refuse_unbounded(sql: str, field: str) -> None:
    """Raise InvalidRequest (`field`) for SQL that is too long, or nested too deeply."""
    if len(sql) > SQL_CHARACTERS_MAX:
        raise InvalidRequest(
            f"has {len(sql)} characters, more than {SQL_CHARACTERS_MAX}", field=field, remedy="Make it shorter"
        )
    if nesting_of(sql) > SQL_NESTING_MAX:
        raise too_deep(field)


def too_deep(field: str) -> InvalidRequest:
    return InvalidRequest(
        f"is nested more than {SQL_NESTING_MAX} levels deep",
        field=field,
        remedy="Write parts of it as queries in WITH, or as views of their own",
    )


def nesting_of(sql: str) -> int:
    """Return the most levels that are open at a time, as Spark reads texts and comments."""
    depth = deepest = at = 0
    while (found := _OUTSIDE.search(sql, at)) is not None:
        mark, at = found[0], found.end()
        if mark == "/*":
            at = _end_of_comment(sql, at)
        elif mark in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in ")]}":
            depth = max(0, depth - 1)
    return deepest


def _end_of_comment(sql: str, at: int) -> int:
    """Return the end of a comment; comments may lie within each other."""
    depth = 1
    while depth and (found := _IN_COMMENT.search(sql, at)) is not None:
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return len(sql) if depth else at
