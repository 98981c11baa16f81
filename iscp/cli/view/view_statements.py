"""Read `CREATE MATERIALIZED VIEW …` as Databricks writes it; what cannot be taken over is refused, with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp.cli.view.sql_tokens import SqlSource, SqlToken, TokenKind
from iscp.cli.view.statement_reader import StatementReader, statement_tokens
from iscp.core.values.errors import InvalidRequest

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

    `run`: the fields of iscp.core.spec.spec_fields.RunFields. `ignored`: clauses that have no effect here. `tags`:
    names by which runs choose it, which statements of SQL have none of.
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
    tags: tuple[str, ...] = ()

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
