"""Cuts SQL into tokens as Spark does, as far as statements around a query need it; the query itself is not looked into.

Comments and blanks are no tokens. Each token knows where it stands, so that a fault can be said with line and column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from iscp.core.values.errors import InvalidRequest


class TokenKind(StrEnum):
    WORD = "word"
    QUOTED = "quoted name"
    TEXT = "text"
    NUMBER = "number"
    SIGN = "sign"


@dataclass(frozen=True, slots=True)
class SqlToken:
    """A token of SQL: `text` is what it says, without quotes; `start` and `end` are its offsets."""

    kind: TokenKind
    text: str
    start: int
    end: int

    def says(self, *words: str) -> bool:
        """Return whether it is one of these keywords or signs."""
        return self.kind in (TokenKind.WORD, TokenKind.SIGN) and self.text.upper() in words


@dataclass(frozen=True, slots=True)
class SqlSource:
    """A text of SQL, and what it is called where it is faulty; `line` and `column` are where it begins there."""

    text: str
    name: str
    line: int = 1
    column: int = 1

    def place(self, offset: int) -> str:
        """Return the place as `views.sql:3:17`."""
        before = self.text[:offset]
        lines = before.count("\n")
        column = offset - (before.rfind("\n") + 1) + (1 if lines else self.column)
        return f"{self.name}:{self.line + lines}:{column}"

    def fault(self, offset: int, message: str, remedy: str) -> InvalidRequest:
        return InvalidRequest(message, field=self.place(offset), remedy=remedy)


_SPACE = re.compile(r"(?:\s|--[^\n]*)+")
_WORD = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_TEXTS = {
    "'": re.compile(r"'((?:[^'\\]|\\.|'')*)'", re.DOTALL),
    '"': re.compile(r'"((?:[^"\\]|\\.|"")*)"', re.DOTALL),
    "`": re.compile(r"`((?:[^`]|``)*)`"),
}
_RAW = re.compile(r"[rR](?:'([^']*)'|\"([^\"]*)\")")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def tokens_of(source: SqlSource) -> Iterator[SqlToken]:
    """Raises InvalidRequest, with the place, for a text, a quoted name or a comment that does not end."""
    text, at = source.text, 0
    while at < len(text):
        if found := _SPACE.match(text, at):
            at = found.end()
        elif text.startswith("/*", at):
            at = _after_comment(source, at)
        else:
            token = _token(source, at)
            yield token
            at = token.end


def _after_comment(source: SqlSource, start: int) -> int:
    """Comments hold comments."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(source.text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise source.fault(start, "is a comment that does not end", "Close it by */")


def _token(source: SqlSource, at: int) -> SqlToken:
    text = source.text
    if raw := _RAW.match(text, at):
        return SqlToken(TokenKind.TEXT, raw[1] if raw[1] is not None else raw[2], at, raw.end())
    if word := _WORD.match(text, at):
        return SqlToken(TokenKind.WORD, word[0], at, word.end())
    if number := _NUMBER.match(text, at):
        return SqlToken(TokenKind.NUMBER, number[0], at, number.end())
    quote = text[at]
    if quote not in _TEXTS:
        return SqlToken(TokenKind.SIGN, quote, at, at + 1)
    found = _TEXTS[quote].match(text, at)
    if found is None:
        raise source.fault(at, "is a quote that is not closed", f"Close it by {quote}")
    if quote == "`":
        return SqlToken(TokenKind.QUOTED, found[1].replace("``", "`"), at, found.end())
    return SqlToken(TokenKind.TEXT, _ESCAPE.sub(r"\1", found[1].replace(quote * 2, quote)), at, found.end())
