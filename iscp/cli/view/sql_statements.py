"""Read `CREATE MATERIALIZED VIEW …` as Databricks writes it, and `CREATE FULLTEXT INDEX …`, `CREATE VECTOR INDEX …` and
`CREATE SEARCH INDEX …`. What cannot be taken over is refused, with its place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from iscp.model.spec.cron_schedule import parse_cron
from iscp.model.spec.spec import INDEX_KINDS
from iscp.model.values.errors import InvalidRequest

# --- tokens -----------------------------------------------------------------------------------------------------------
# SQL is cut into tokens as Spark does, as far as statements around a query need it; the query itself is not parsed.
# Comments and blanks are no tokens. Each token knows where it stands, so that a fault can be said with line and column.


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


# --- what statements of views and of indexes share --------------------------------------------------------------------
# The statements of a file are read token by token.

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


# --- statements of views ----------------------------------------------------------------------------------------------

STATEMENT = "CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name AS SELECT …"

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

    `run`: the fields of iscp.model.spec.spec.RunFields. `ignored`: clauses that have no effect here.
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
    """`aliases`: what queries of the project call a table or view, by its name folded to lower case, and its own.

    `rewritten`: the engine for whose SQL the queries were written, if they had to be written otherwise for Spark.
    """

    views: list[ViewStatement] = field(default_factory=list)
    left_out: list[LeftOutView] = field(default_factory=list)
    aliases: Mapping[str, str] = field(default_factory=dict)
    rewritten: str = ""

    def leave_out(self, place: str, name: str, why: str) -> None:
        self.left_out.append(LeftOutView(place, name, why))


def parse_statements(source: SqlSource) -> Iterator[ViewStatement | InvalidRequest]:
    """Return each statement, or why it cannot be taken over. Raises InvalidRequest for a text that has no end."""
    for tokens, end in statement_tokens(source):
        yield parse_view(source, tokens, end)


def parse_view(source: SqlSource, tokens: list[SqlToken], end: int) -> ViewStatement | InvalidRequest:
    """Return the view of one statement, or why it cannot be taken over."""
    try:
        return _Reader(source, tokens, end).read()
    except InvalidRequest as error:
        return error


class _Reader(StatementReader):
    """Read one statement of a view."""

    form = STATEMENT
    named = "a view's name"

    def __init__(self, source: SqlSource, tokens: list[SqlToken], end: int) -> None:
        super().__init__(source, tokens, end)
        self._ignored: list[str] = []

    def read(self) -> ViewStatement:
        start = self._tokens[0].start
        replace = self._replaces()
        self._take("PRIVATE")
        if not self._sees("MATERIALIZED"):
            self._next("MATERIALIZED VIEW")
            raise self._unsupported(self._at - 1)
        self._expect("MATERIALIZED")
        self._expect("VIEW")
        if_missing = self._if_missing(replace)
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

    def _policy(self) -> None:
        self._expect("POLICY")
        policy = self._expect("AUTO", "INCREMENTAL", "FULL").text.lower()
        strict = policy == "incremental" and self._take("STRICT")
        self._set("refresh", "strict" if strict else policy)

    def _query(self) -> SqlSource:
        token = self._next("the query")
        line, column = self._source.place(token.start).rsplit(":", 2)[1:]
        text = self._source.text[token.start : self._end].rstrip()
        return SqlSource(text, self._source.name, int(line), int(column))


# --- statements of indexes --------------------------------------------------------------------------------------------
# The node decides what the value of an option may be, as everywhere; here an option has a name and one value.

INDEX_STATEMENT = (
    "CREATE [OR REPLACE] FULLTEXT|VECTOR|SEARCH INDEX [IF NOT EXISTS] name ON table (column [BOOST number], …) "
    "KEY (column, …) [TARGET 'uri'] [WHERE condition] [OPTIONS (name = value, …)]"
)

INDEX_WORDS = (*(kind.upper() for kind in INDEX_KINDS), "INDEX")
"""The words that may follow CREATE where an index is meant."""

COLUMNS_MAX = 100
"""Columns that a statement may name in one pair of brackets, and options too; more are refused."""

NUMBER_CHARS_MAX = 12
"""Characters of a number; a longer one is refused."""

_IN_OPTION = ",^"
"""The signs that divide the option `columns`, so that no column named in it may have them."""


@dataclass(frozen=True, slots=True)
class IndexStatement:
    """An index as a file says. `table` is a name of the file's, or, where `is_place`, a path or URI.

    `options` are those of the consumer, `run` the fields of iscp.model.spec.spec.RunFields. An empty `target` is
    to be found below the root of targets.
    """

    name: str
    kind: str
    table: str
    place: str
    is_place: bool = False
    key: tuple[str, ...] = ()
    target: str = ""
    where: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    replace: bool = False
    if_missing: bool = False


@dataclass(frozen=True, slots=True)
class _IndexedColumn:
    name: str
    boost: str

    @property
    def text(self) -> str:
        return f"{self.name}^{self.boost}" if self.boost else self.name


def is_index(tokens: list[SqlToken]) -> bool:
    """Return whether a statement begins as that of an index, be it a faulty one."""
    words = [token for token in tokens[:4] if not token.says("OR", "REPLACE")]
    return len(words) > 1 and words[0].says("CREATE") and words[1].says(*INDEX_WORDS)


def parse_index(source: SqlSource, tokens: list[SqlToken], end: int) -> IndexStatement | InvalidRequest:
    """Return the index of one statement, or why there is none."""
    try:
        return _IndexReader(source, tokens, end).read()
    except InvalidRequest as error:
        return error


class _IndexReader(StatementReader):
    """Read one statement of an index."""

    form = INDEX_STATEMENT
    named = "an index's name"

    def __init__(self, source: SqlSource, tokens: list[SqlToken], end: int) -> None:
        super().__init__(source, tokens, end)
        self._key: tuple[str, ...] = ()
        self._target = ""
        self._where = ""
        self._options: dict[str, Any] | None = None

    def read(self) -> IndexStatement:
        start = self._tokens[0].start
        replace = self._replaces()
        kind = self._expect(*(each.upper() for each in INDEX_KINDS)).text.lower()
        self._expect("INDEX")
        if_missing = self._if_missing(replace)
        name = self._name()
        self._expect("ON")
        table, is_place = self._table()
        columns_at = self._at
        columns = self._read_columns()
        while self._at < len(self._tokens):
            self._clause()
        if not self._key:
            raise self._place_fault("names no key", "Add KEY (…) with the columns that identify a row of the table")
        return IndexStatement(
            name=name,
            kind=kind,
            table=table,
            place=self._source.place(start),
            is_place=is_place,
            key=self._key,
            target=self._target,
            where=self._where,
            options=self._all_options(kind, columns, columns_at),
            run=self._given,
            replace=replace,
            if_missing=if_missing,
        )

    def _table(self) -> tuple[str, bool]:
        """Return the table, and whether it is a path or a URI, as delta.`/lake/docs`, `/lake/docs` and '/lake/docs'."""
        token = self._next("a table's name")
        if token.kind is TokenKind.TEXT and token.text:
            return token.text, True
        self._at -= 1
        parts = [self._identifier("a table's name")]
        while self._take("."):
            parts.append(self._identifier("a table's name"))
        if "/" in parts[-1] and (len(parts) == 1 or [each.lower() for each in parts[:-1]] == ["delta"]):
            return parts[-1], True
        return ".".join(parts), False

    def _read_columns(self) -> list[_IndexedColumn]:
        return self._bracketed(self._read_column)

    def _read_column(self) -> _IndexedColumn:
        at = self._at
        name = self._identifier("a column's name")
        if any(sign in name for sign in _IN_OPTION):
            self._at = at
            raise self._fault(
                f"{name!r:.40} has a {' or '.join(_IN_OPTION)} in its name", "Index a view that names it otherwise"
            )
        return _IndexedColumn(name, self._boost() if self._take("BOOST") else "")

    def _boost(self) -> str:
        token = self._next("a number")
        if not _is_number(token) or not float(token.text) > 0:
            self._at -= 1
            raise self._fault(f"{token.text!r:.40} is not a number above 0", "Write as in title BOOST 2.5")
        return token.text

    def _bracketed(self, read: Callable[[], Any]) -> list[Any]:
        """Return what `read` returns for each item between brackets."""
        self._expect("(")
        found = [read()]
        while not self._take(")"):
            self._expect(",", ")")
            if len(found) >= COLUMNS_MAX:
                raise self._fault(f"more than {COLUMNS_MAX} stand between these brackets", "Leave some out")
            found.append(read())
        return found

    def _clause(self) -> None:
        clauses: Mapping[str, Callable[[], None]] = {
            "KEY": self._read_key,
            "TARGET": self._read_target,
            "WHERE": self._read_where,
            "OPTIONS": self._read_options,
            "SCHEDULE": self._schedule,
            "TRIGGER": self._trigger,
        }
        token = self._next("a clause")
        word = token.text.upper() if token.kind is TokenKind.WORD else ""
        if word not in clauses:
            self._at -= 1
            raise self._fault(f"{token.text!r:.40} is not expected here", f"Write {INDEX_STATEMENT}")
        clauses[word]()

    def _read_key(self) -> None:
        self._once(self._key, "KEY")
        self._key = tuple(self._bracketed(lambda: self._identifier("a column's name")))

    def _read_target(self) -> None:
        self._once(self._target, "TARGET")
        at = self._at
        self._target = self._text()
        if not self._target:
            self._at = at
            raise self._place_fault("is no place", "Write as in TARGET '/lake/docs_index'")

    def _read_where(self) -> None:
        self._once(self._where, "WHERE")
        begin = self._next("a condition").start
        self._at -= 1
        depth = 0
        while self._at < len(self._tokens) and (depth or not self._begins_clause()):
            token = self._tokens[self._at]
            depth += token.says("(") - token.says(")")
            self._at += 1
        end = self._tokens[self._at].start if self._at < len(self._tokens) else self._end
        self._where = self._source.text[begin:end].strip()
        if not self._where:
            raise self._fault("the condition is missing", "Write as in WHERE language = 'en'")

    def _begins_clause(self) -> bool:
        """Return whether a clause begins here: none of these pairs of tokens can stand in a condition."""
        second = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else None
        if second is None:
            return False
        if self._sees("KEY", "OPTIONS"):
            return second.says("(")
        if self._sees("TARGET"):
            return second.kind is TokenKind.TEXT
        return (self._sees("SCHEDULE") and second.says("REFRESH", "CRON", "EVERY")) or (
            self._sees("TRIGGER") and second.says("ON")
        )

    def _read_options(self) -> None:
        self._once(self._options, "OPTIONS")
        self._options = {}
        self._bracketed(self._option)

    def _option(self) -> None:
        at = self._at
        name = self._identifier("an option's name").lower()
        if name in (self._options or {}):
            self._at = at
            raise self._fault(f"{name!r:.40} is said twice", "Leave one of them out")
        self._expect("=")
        token = self._next("a value")
        value: Any = token.text
        if _is_number(token):
            value = float(token.text) if "." in token.text else int(token.text)
        elif token.says("TRUE", "FALSE"):
            value = token.says("TRUE")
        elif token.kind is not TokenKind.TEXT:
            self._at -= 1
            raise self._fault(
                f"{token.text!r:.40} is neither a text nor a number", "Write as in OPTIONS (language = 'english')"
            )
        if self._options is not None:
            self._options[name] = value

    def _once(self, given: object, word: str) -> None:
        if given:
            self._at -= 1
            raise self._fault(f"{word} is said twice", "Leave one of them out")

    def _all_options(self, kind: str, columns: list[_IndexedColumn], at: int) -> dict[str, Any]:
        """Return the consumer's options: those of OPTIONS, and the columns in the brackets."""
        options = dict(self._options or {})
        named = self._options_of_columns(kind, columns, at, "embed" in options)
        if twice := sorted(named.keys() & options):
            self._at = at
            raise self._fault(f"the columns are said here, and by the option {twice[0]!r}", "Leave that option out")
        if kind == "search" and "embed" in options and "text" not in options and len(columns) == 1:
            named["text"] = columns[0].name
        return {**named, **options}

    def _options_of_columns(self, kind: str, columns: list[_IndexedColumn], at: int, embeds: bool) -> dict[str, Any]:
        if kind != "vector":
            return {"columns": ",".join(each.text for each in columns)}
        if len(columns) > 1 or columns[0].boost:
            self._at = at
            raise self._fault(
                "an index of vectors has one column, without a boost",
                "Name the column with the vectors, or with the text that OPTIONS (embed = …) makes vectors of",
            )
        return {"text" if embeds else "column": columns[0].name}


def _is_number(token: SqlToken) -> bool:
    return token.kind is TokenKind.NUMBER and len(token.text) <= NUMBER_CHARS_MAX
