"""Read `CREATE MATERIALIZED VIEW …` as Databricks writes it; what cannot be taken over is refused, with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp.cli.view.sql_tokens import SqlSource, SqlToken, TokenKind, tokens_of
from iscp.core.spec.cron_schedule import parse_cron
from iscp.core.values.errors import InvalidRequest

STATEMENT = "CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name AS SELECT …"
UNIT_S = {"SECOND": 1.0, "MINUTE": 60.0, "HOUR": 3_600.0, "DAY": 86_400.0, "WEEK": 604_800.0}

INTERVAL_UNITS_MAX = 1_000_000
"""Units of the interval of a schedule; a statement with more is refused."""

_REFUSED: Mapping[str, tuple[str, str]] = {
    "PARTITIONED": ("a view's target is not partitioned by columns of one's choice", "Leave PARTITIONED BY out"),
    "CLUSTER": ("a view's target is not clustered by columns of one's choice", "Leave CLUSTER BY out"),
    "WITH": ("row filters are Databricks' own", "Leave it out, and put its condition into the query's WHERE"),
    "DEFAULT": ("a default collation cannot be set", "Write COLLATE in the query"),
    "USING": ("a view is a Delta table", "Leave USING out"),
    "LOCATION": (
        "the place of a view is not part of its statement",
        "Leave it out: --target-root says where views lie",
    ),
}


@dataclass(frozen=True, slots=True)
class ViewStatement:
    """A view as a file says. `query` is its SELECT, with the file's places; `columns` rename the result's, if any.

    `run`: the fields of iscp.core.spec.spec_fields.RunFields. `ignored`: clauses that have no effect here.
    """

    name: str
    query: SqlSource
    place: str
    columns: tuple[str, ...] = ()
    refresh: str = ""
    run: Mapping[str, Any] = field(default_factory=dict)
    replace: bool = False
    if_missing: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def sql(self) -> str:
        """Return the query, its result's columns renamed if the statement does that."""
        if not self.columns:
            return self.query.text
        names = ", ".join(f"`{name.replace('`', '``')}`" for name in self.columns)
        return f"SELECT * FROM (\n{self.query.text}\n) AS renamed({names})"


@dataclass(frozen=True, slots=True)
class LeftOutView:
    """A view that is left out. `name` is empty if it has none that could be read."""

    place: str
    name: str
    why: str


@dataclass(slots=True)
class ImportedViews:
    """`aliases`: what queries of the project call a table or view, by its name folded to lower case, and its own."""

    views: list[ViewStatement] = field(default_factory=list)
    left_out: list[LeftOutView] = field(default_factory=list)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def leave_out(self, place: str, name: str, why: str) -> None:
        self.left_out.append(LeftOutView(place, name, why))


def parse_statements(source: SqlSource) -> Iterator[ViewStatement | InvalidRequest]:
    """Return each statement, or why it cannot be taken over. Raises InvalidRequest for a text that has no end."""
    statement: list[SqlToken] = []
    for token in tokens_of(source):
        if token.says(";"):
            if statement:
                yield _statement(source, statement, token.start)
            statement = []
        else:
            statement.append(token)
    if statement:
        yield _statement(source, statement, len(source.text))


def _statement(source: SqlSource, tokens: list[SqlToken], end: int) -> ViewStatement | InvalidRequest:
    try:
        return _Reader(source, tokens, end).read()
    except InvalidRequest as error:
        return error


class _Reader:
    """Read one statement from its first token on."""

    def __init__(self, source: SqlSource, tokens: list[SqlToken], end: int) -> None:
        self._source = source
        self._tokens = tokens
        self._end = end
        self._at = 0
        self._given: dict[str, Any] = {}
        self._ignored: list[str] = []

    def read(self) -> ViewStatement:
        start = self._tokens[0].start
        self._expect("CREATE")
        replace = self._take("OR") and bool(self._expect("REPLACE"))
        self._take("PRIVATE")
        self._expect("MATERIALIZED")
        self._expect("VIEW")
        if_missing = self._take("IF") and bool(self._expect("NOT") and self._expect("EXISTS"))
        if replace and if_missing:
            raise self._fault("OR REPLACE and IF NOT EXISTS contradict each other", "Leave one of them out")
        name = self._name()
        columns = self._columns() if self._sees("(") else ()
        while not self._take("AS"):
            self._clause()
        return ViewStatement(
            name=name,
            query=self._query(),
            place=self._source.place(start),
            columns=columns,
            refresh=self._given.pop("refresh", ""),
            run=self._given,
            replace=replace,
            if_missing=if_missing,
            ignored=tuple(self._ignored),
        )

    def _name(self) -> str:
        parts = [self._identifier("a view's name")]
        while self._take("."):
            parts.append(self._identifier("a view's name"))
        return ".".join(parts)

    def _columns(self) -> tuple[str, ...]:
        self._expect("(")
        names: list[str] = []
        while not self._take(")"):
            names.append(self._identifier("a column's name"))
            if self._take("COMMENT"):
                self._text()
                self._ignored.append("comments of columns")
            if not self._sees(",", ")"):
                raise self._fault("columns have names here, and no types or constraints", "Cast in the query")
            self._take(",")
        return tuple(names)

    def _clause(self) -> None:
        clauses: Mapping[str, Callable[[], None]] = {
            "COMMENT": self._comment,
            "TBLPROPERTIES": self._properties,
            "SCHEDULE": self._schedule,
            "TRIGGER": self._trigger,
            "REFRESH": self._policy,
        }
        token = self._next("AS and the query")
        word = token.text.upper() if token.kind is TokenKind.WORD else ""
        if word not in clauses:
            self._at -= 1
            message, remedy = _REFUSED.get(word, (f"{token.text!r:.40} is not expected here", f"Write {STATEMENT}"))
            raise self._fault(message, remedy)
        clauses[word]()

    def _comment(self) -> None:
        self._text()
        self._ignored.append("COMMENT")

    def _properties(self) -> None:
        self._expect("(")
        depth = 1
        while depth:
            token = self._next("a closing bracket")
            depth += token.says("(") - token.says(")")
        self._ignored.append("TBLPROPERTIES")

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
            raise self._fault(error.message, error.remedy) from error

    def _trigger(self) -> None:
        self._expect("ON")
        self._expect("UPDATE")
        if self._take("AT"):
            self._expect("MOST")
            self._expect("EVERY")
            self._take("INTERVAL")
            self._set("every", self._span_s())

    def _policy(self) -> None:
        self._expect("POLICY")
        policy = self._expect("AUTO", "INCREMENTAL", "FULL").text.lower()
        strict = policy == "incremental" and self._take("STRICT")
        self._set("refresh", "strict" if strict else policy)

    def _span_s(self) -> float:
        token = self._next("a number")
        number = token.text.strip()
        if token.kind not in (TokenKind.NUMBER, TokenKind.TEXT) or not number.isascii() or not number.isdigit():
            self._at -= 1
            raise self._fault(f"{token.text!r:.40} is not a whole number", "Write as in EVERY 2 HOURS")
        if len(number) > len(str(INTERVAL_UNITS_MAX)) or not 0 < int(number) <= INTERVAL_UNITS_MAX:
            self._at -= 1
            raise self._fault(f"must be 1 to {INTERVAL_UNITS_MAX}", "Write as in EVERY 2 HOURS")
        unit = self._expect(*UNIT_S, *(f"{each}S" for each in UNIT_S)).text.upper()
        return int(number) * UNIT_S[unit.removesuffix("S")]

    def _query(self) -> SqlSource:
        token = self._next("the query")
        line, column = self._source.place(token.start).rsplit(":", 2)[1:]
        text = self._source.text[token.start : self._end].rstrip()
        return SqlSource(text, self._source.name, int(line), int(column))

    def _set(self, name: str, value: object) -> None:
        if name in self._given or ({name, *self._given} >= {"every", "cron"}):
            self._at -= 1
            raise self._fault("is said twice", "Leave one of them out")
        self._given[name] = value

    def _identifier(self, expected: str) -> str:
        token = self._next(expected)
        if token.kind not in (TokenKind.WORD, TokenKind.QUOTED) or not token.text:
            self._at -= 1
            raise self._fault(f"{token.text!r:.40} is not {expected}", f"Write {STATEMENT}")
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
            raise self._fault(f"{token.text!r:.40} stands where {' or '.join(words)} should", f"Write {STATEMENT}")
        return token

    def _next(self, expected: str) -> SqlToken:
        if self._at >= len(self._tokens):
            raise self._fault(f"the statement ends where {expected} should follow", f"Write {STATEMENT}")
        self._at += 1
        return self._tokens[self._at - 1]

    def _fault(self, message: str, remedy: str) -> InvalidRequest:
        at = self._tokens[self._at].start if self._at < len(self._tokens) else self._end
        return self._source.fault(at, message, remedy)
