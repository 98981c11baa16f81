"""Reads statements of SQL files token by token: what the statements of views and of indexes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from iscp.cli.view.sql_tokens import SqlSource, SqlToken, TokenKind, tokens_of
from iscp.core.spec.cron_schedule import parse_cron
from iscp.core.values.errors import InvalidRequest

UNIT_S = {"SECOND": 1.0, "MINUTE": 60.0, "HOUR": 3_600.0, "DAY": 86_400.0, "WEEK": 604_800.0}

_NOUNS = ("TABLE", "VIEW", "INDEX", "SCHEMA", "DATABASE", "FUNCTION")

SUPPORTED = "CREATE MATERIALIZED VIEW is, and CREATE FULLTEXT INDEX, CREATE VECTOR INDEX and CREATE SEARCH INDEX are"
"""The end of a sentence about a statement that is none of these."""

INTERVAL_UNITS_MAX = 1_000_000
"""Units of the interval of a schedule; a statement with more is refused."""


def statement_tokens(source: SqlSource) -> Iterator[tuple[list[SqlToken], int]]:
    """Yield the tokens of each statement, and the offset where it ends. Raises InvalidRequest for a text that has no
    end.
    """
    statement: list[SqlToken] = []
    for token in tokens_of(source):
        if token.says(";"):
            if statement:
                yield statement, token.start
            statement = []
        else:
            statement.append(token)
    if statement:
        yield statement, len(source.text)


class StatementReader:
    """Read one statement from its first token on. `form`: how such a statement is written; `named`: what has a name."""

    form: ClassVar[str]
    named: ClassVar[str]

    def __init__(self, source: SqlSource, tokens: list[SqlToken], end: int) -> None:
        self._source = source
        self._tokens = tokens
        self._end = end
        self._at = 0
        self._given: dict[str, Any] = {}

    def _replaces(self) -> bool:
        """Read CREATE, and return whether OR REPLACE follows."""
        if not self._take("CREATE"):
            raise self._unsupported(0)
        return self._take("OR") and bool(self._expect("REPLACE"))

    def _if_missing(self, replace: bool) -> bool:
        """Return whether IF NOT EXISTS follows. Raises InvalidRequest for what contradicts OR REPLACE."""
        if_missing = self._take("IF") and bool(self._expect("NOT") and self._expect("EXISTS"))
        if replace and if_missing:
            raise self._fault("OR REPLACE and IF NOT EXISTS contradict each other", "Leave one of them out")
        return if_missing

    def _name(self) -> str:
        parts = [self._identifier(self.named)]
        while self._take("."):
            parts.append(self._identifier(self.named))
        return ".".join(parts)

    def _schedule(self) -> None:
        self._take("REFRESH")
        if self._take("CRON"):
            self._cron()
            return
        self._expect("EVERY")
        self._set("every", self._span_s())

    def _cron(self) -> None:
        at = self._at
        self._set("cron", self._text())
        zone_at = self._at
        if self._take("AT"):
            self._expect("TIME")
            self._expect("ZONE")
            zone_at = self._at
            self._set("time_zone", self._text())
        try:
            parse_cron(self._given["cron"], self._given.get("time_zone", ""), "cron", "time_zone")
        except InvalidRequest as error:
            self._at = at if error.field == "cron" else zone_at
            raise InvalidRequest.from_error(error, field=self._place()) from error

    def _trigger(self) -> None:
        self._expect("ON")
        self._expect("UPDATE")
        if self._take("AT"):
            self._expect("MOST")
            self._expect("EVERY")
            self._take("INTERVAL")
            self._set("every", self._span_s())

    def _span_s(self) -> float:
        token = self._next("a number")
        number = token.text.strip()
        if token.kind not in (TokenKind.NUMBER, TokenKind.TEXT) or not number.isascii() or not number.isdigit():
            self._at -= 1
            raise self._fault(f"{token.text!r:.40} is not a whole number", "Write as in EVERY 2 HOURS")
        if len(number) > len(str(INTERVAL_UNITS_MAX)) or not 0 < int(number) <= INTERVAL_UNITS_MAX:
            self._at -= 1
            raise self._place_fault(f"must be 1 to {INTERVAL_UNITS_MAX}", "Write as in EVERY 2 HOURS")
        unit = self._expect(*UNIT_S, *(f"{each}S" for each in UNIT_S)).text.upper()
        return int(number) * UNIT_S[unit.removesuffix("S")]

    def _set(self, name: str, value: object) -> None:
        if name in self._given or ({name, *self._given} >= {"every", "cron"}):
            self._at -= 1
            raise self._place_fault("is said twice", "Leave one of them out")
        self._given[name] = value

    def _identifier(self, expected: str) -> str:
        token = self._next(expected)
        if token.kind not in (TokenKind.WORD, TokenKind.QUOTED) or not token.text:
            self._at -= 1
            raise self._fault(f"{token.text!r:.40} is not {expected}", f"Write {self.form}")
        return token.text

    def _text(self) -> str:
        token = self._next("a text")
        if token.kind is not TokenKind.TEXT:
            self._at -= 1
            raise self._fault(f"{token.text!r:.40} is not a text", "Write it in quotes, as in COMMENT 'daily'")
        return token.text

    def _sees(self, *words: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].says(*words)

    def _take(self, *words: str) -> bool:
        seen = self._sees(*words)
        self._at += seen
        return seen

    def _expect(self, *words: str) -> SqlToken:
        token = self._next(words[0])
        if not token.says(*words):
            self._at -= 1
            sentence = f"{' or '.join(words)} is expected here, and not {token.text!r:.40}"
            raise self._fault(sentence, f"Write {self.form}")
        return token

    def _unsupported(self, at: int) -> InvalidRequest:
        """Return the error of a statement of another kind, whose kind the token `at` says."""
        said = self._tokens[at]
        shown = self._tokens[: at + (1 if said.says(*_NOUNS) else 2)]
        words = " ".join(each.text for each in shown if each.kind is TokenKind.WORD)
        return InvalidRequest(
            f"the statement {words!r:.80} is not supported; {SUPPORTED}",
            about=self._source.place(said.start),
            remedy=f"Leave it out, or write {self.form}",
        )

    def _next(self, expected: str) -> SqlToken:
        if self._at >= len(self._tokens):
            raise self._fault(f"the statement ends where {expected} should follow", f"Write {self.form}")
        self._at += 1
        return self._tokens[self._at - 1]

    def _fault(self, sentence: str, remedy: str) -> InvalidRequest:
        """Return the error that a whole sentence says of what stands here."""
        return InvalidRequest(sentence, about=self._place(), remedy=remedy)

    def _place_fault(self, message: str, remedy: str) -> InvalidRequest:
        """Return the error whose message goes on from the place, as in `views.sql:3:17` `is said twice`."""
        return InvalidRequest(message, field=self._place(), remedy=remedy)

    def _place(self) -> str:
        at = self._tokens[self._at].start if self._at < len(self._tokens) else self._end
        return self._source.place(at)
