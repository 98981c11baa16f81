"""Writes QUALIFY, which Spark does not have, as a filter above the SELECT that it belongs to.

Text is put in and moved, and none is written again: what the query says of its columns and functions stays to the
letter. The condition becomes one more column, which may use the other ones by their names, and is left out above:

    SELECT a, b FROM t QUALIFY c   becomes   SELECT * EXCEPT (q) FROM (SELECT a, b, (c) AS q FROM t) WHERE q

DISTINCT may stay where it is, as of all rows with the same columns those with the condition are one.
"""

from __future__ import annotations

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from iscp.model.values.errors import InvalidRequest

QUALIFIES_MAX = 16
"""QUALIFYs in one query, for each of which the whole query is read; one with more is refused."""

_COLUMN = "_iscp_qualify"
_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
_AFTER = frozenset(
    {
        TokenType.ORDER_BY,
        TokenType.SORT_BY,
        TokenType.CLUSTER_BY,
        TokenType.DISTRIBUTE_BY,
        TokenType.LIMIT,
        TokenType.OFFSET,
        TokenType.UNION,
        TokenType.INTERSECT,
        TokenType.EXCEPT,
        TokenType.SEMICOLON,
    }
)
"""Tokens that end a SELECT and follow its QUALIFY."""

_COMPARING = frozenset(
    {
        TokenType.EQ,
        TokenType.NEQ,
        TokenType.NULLSAFE_EQ,
        TokenType.GT,
        TokenType.GTE,
        TokenType.LT,
        TokenType.LTE,
        TokenType.PLUS,
        TokenType.AND,
        TokenType.OR,
    }
)
_NAME_AFTER = _COMPARING | {
    TokenType.SELECT,
    TokenType.DISTINCT,
    TokenType.ALIAS,
    TokenType.DOT,
    TokenType.FROM,
    TokenType.JOIN,
    TokenType.COMMA,
    TokenType.L_PAREN,
    TokenType.WHERE,
    TokenType.ON,
    TokenType.GROUP_BY,
    TokenType.HAVING,
    TokenType.ORDER_BY,
    TokenType.NOT,
}
_NAME_BEFORE = (_AFTER | _COMPARING) | {
    *_CLOSING,
    TokenType.DOT,
    TokenType.COMMA,
    TokenType.JOIN,
    TokenType.ON,
    TokenType.USING,
    TokenType.WHERE,
    TokenType.GROUP_BY,
    TokenType.HAVING,
    TokenType.WINDOW,
    TokenType.IS,
    TokenType.IN,
    TokenType.BETWEEN,
}
"""Tokens between which `qualify` is a name, and no keyword."""


def without_qualify(sql: str) -> str:
    """Return the query without QUALIFY; a query that has none stays as it is. Raises InvalidRequest of `sql`."""
    for _ in range(QUALIFIES_MAX + 1):
        try:
            tokens = Spark().tokenize(sql)
        except SqlglotError:
            return sql  # what it is that cannot be read is for Spark to say
        place = _last_keyword(tokens)
        if place is None:
            return sql
        sql = _rewritten(sql, tokens, place)
    raise InvalidRequest(
        f"has more than {QUALIFIES_MAX} QUALIFYs", field="sql", remedy="Filter in a query around the window functions"
    )


def _last_keyword(tokens: list[Token]) -> int | None:
    """Return the place of the last QUALIFY, or None; one within another's condition comes after it."""
    for place in range(len(tokens) - 1, 0, -1):
        if tokens[place].token_type is not TokenType.QUALIFY or tokens[place - 1].token_type in _NAME_AFTER:
            continue
        if place + 1 < len(tokens) and tokens[place + 1].token_type not in _NAME_BEFORE:
            return place
    return None


def _rewritten(sql: str, tokens: list[Token], place: int) -> str:
    select, source = _head(sql, tokens, place)
    window, end = _tail(tokens, place)
    first, last = tokens[place + 1], tokens[window - 1]
    condition = sql[first.start : last.end + 1]
    named = f" {sql[tokens[window].start : tokens[end - 1].end + 1]}" if window < end else ""
    after = tokens[end - 1].end + 1
    return (
        f"{sql[: select.start]}SELECT * EXCEPT ({_COLUMN}) FROM ({sql[select.start : source.start]}"
        f", ({condition}\n) AS {_COLUMN} {sql[source.start : tokens[place].start].rstrip(' ')}{named}\n)"
        f" WHERE {_COLUMN}{sql[after:]}"
    )


def _head(sql: str, tokens: list[Token], place: int) -> tuple[Token, Token]:
    """Return the SELECT and the FROM of the query that this QUALIFY belongs to. Raises InvalidRequest."""
    depth, source = 0, None
    for at in range(place - 1, -1, -1):
        token = tokens[at]
        depth += (token.token_type in _CLOSING) - (token.token_type in _OPENING)
        if depth < 0:
            break
        if depth == 0 and token.token_type is TokenType.FROM and not _compares(tokens, at):
            source = token
        if depth == 0 and token.token_type is TokenType.SELECT:
            if source is None:
                break
            return token, source
    line = sql[: tokens[place].start].count("\n") + 1
    raise InvalidRequest(
        f"has a QUALIFY in line {line} that belongs to no SELECT … FROM", field="sql", remedy="Correct the query"
    )


def _compares(tokens: list[Token], at: int) -> bool:
    """Return whether this FROM is part of IS [NOT] DISTINCT FROM."""
    before = [each.token_type for each in tokens[max(0, at - 2) : at]]
    return before[-1:] == [TokenType.DISTINCT] and before[0] in (TokenType.IS, TokenType.NOT)


def _tail(tokens: list[Token], place: int) -> tuple[int, int]:
    """Return the end of the condition, and of a WINDOW clause that follows it, as indexes after the last token."""
    depth, window = 0, None
    for at in range(place + 1, len(tokens)):
        kind = tokens[at].token_type
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if depth < 0 or (depth == 0 and kind in _AFTER):
            return (at if window is None else window), at
        if depth == 0 and kind is TokenType.WINDOW and window is None:
            window = at
    return (len(tokens) if window is None else window), len(tokens)
