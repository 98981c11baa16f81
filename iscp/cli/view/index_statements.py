"""Read `CREATE FULLTEXT INDEX …`, `CREATE VECTOR INDEX …` and `CREATE SEARCH INDEX …`; faults have their places.

What an option may be is decided by the node, as everywhere; here an option has a name and one value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp.cli.view.sql_tokens import SqlSource, SqlToken, TokenKind
from iscp.cli.view.statement_reader import StatementReader
from iscp.core.spec.index_kinds import INDEX_KINDS
from iscp.core.values.errors import InvalidRequest

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

    `options` are those of the consumer, `run` the fields of iscp.core.spec.spec_fields.RunFields. An empty `target` is
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
