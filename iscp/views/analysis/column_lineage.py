"""The lineage of columns: of which columns of its tables each column of a query's result, or of a job's target, is
made; and the rewriting of QUALIFY, which Spark does not have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
from sqlglot.optimizer.qualify_tables import qualify_tables
from sqlglot.optimizer.scope import Scope, build_scope

from iscp.model.job.job_row import JobRow
from iscp.model.run_events import InputColumn, KnownTables, source_uris
from iscp.model.spec.spec_parsing import ViewFields, view_of
from iscp.model.values.errors import InvalidRequest
from iscp.ports.system import Clock
from iscp.system.recent_values import RecentValues

log = logging.getLogger(__name__)

# --- lineage of a query -----------------------------------------------------------------------------------------------
# Lineage is found by the text of the query alone. Every subquery is resolved once, however often it is named, and
# columns of one name are one: following each name by itself, or writing all stars out, would take time and memory that
# grow exponentially with the query. A query that cannot be read so has no lineage, which is never a fault of its job.

SQL_CHARS_MAX = 20_000
"""Characters of a query whose columns are followed; a longer one has no lineage of columns."""

ORIGINS_MAX = 500
"""Columns of tables that are named as those which one column is made of; further ones are left out."""

Origin = tuple[str, str]
"""A table's name in the query, and a column of it."""

_KINDS = ("IDENTITY", "TRANSFORMATION", "AGGREGATION")
_CLAUSES = (("where", "FILTER"), ("having", "FILTER"), ("qualify", "FILTER"), ("group", "GROUP_BY"), ("order", "SORT"))
_Made = dict[Origin, int]


@dataclass(frozen=True, slots=True)
class QueryLineage:
    """For each column of the result, what it is made of, and how; and what the rows follow, and how."""

    columns: Mapping[str, Mapping[Origin, str]] = field(default_factory=dict)
    rows: Mapping[Origin, str] = field(default_factory=dict)


def find_lineage(sql: str, tables: Mapping[str, Mapping[str, str]]) -> QueryLineage:
    """Return the lineage of a query over `tables`, types by columns by names; an empty one where it is not found."""
    if len(sql) > SQL_CHARS_MAX:
        return QueryLineage()
    try:
        found = _Resolver(tables).lineage(sql)
    except (Exception, RecursionError) as error:  # noqa: BLE001  (sqlglot may not know what Spark knows)
        log.info("lineage.not_found", extra={"error": type(error).__name__})
        return QueryLineage()
    return found


class _Resolver:
    """Follows columns down to the tables. Names are compared without case, and given as the tables have them."""

    def __init__(self, tables: Mapping[str, Mapping[str, str]]) -> None:
        self._tables = {
            name.lower(): {column.lower(): {(name, column): 0} for column in columns}
            for name, columns in tables.items()
        }
        self._outputs_of: dict[int, dict[str, _Made]] = {}

    def lineage(self, sql: str) -> QueryLineage:
        tree = normalize_identifiers(sqlglot.parse_one(sql, dialect="spark"), dialect="spark")
        root = build_scope(qualify_tables(tree, dialect="spark"))
        if root is None:
            return QueryLineage()
        columns = {
            name: {origin: _KINDS[kind] for origin, kind in made.items()} for name, made in self._outputs(root).items()
        }
        rows: dict[Origin, str] = {}
        for scope in root.traverse():
            for clause, way in _row_clauses(scope.expression):
                for origin in self._made_of(scope, clause):
                    rows.setdefault(origin, way)
        return QueryLineage(columns, rows)

    def _outputs(self, source: Any) -> dict[str, _Made]:
        """Return what each column of a source, a subquery or a table, is made of."""
        if isinstance(source, exp.Table):
            return self._tables.get(".".join(part.name for part in source.parts).lower(), {})
        if not isinstance(source, Scope):
            return {}
        if (known := self._outputs_of.get(id(source))) is not None:
            return known
        found = self._outputs_of[id(source)] = {}  # a recursive query comes back to itself
        if source.set_operation_scopes:
            first, *others = ([*self._outputs(each).items()] for each in source.set_operation_scopes)
            for number, (name, made) in enumerate(first):
                found[name] = dict(made)
                for other in others:
                    _add(found[name], other[number][1] if number < len(other) else {}, 0)
            return found
        for projection in getattr(source.expression, "selects", ()):
            if projection.is_star:
                self._add_star(source, projection, found)
            else:
                made = found.setdefault(projection.alias_or_name, {})
                _add(made, self._made_of(source, projection), _kind_of(projection.unalias()))
        return found

    def _add_star(self, scope: Scope, projection: Any, found: dict[str, _Made]) -> None:
        star = projection.find(exp.Star)
        left_out = {each.name for each in star.args.get("except_") or star.args.get("except") or ()}
        for alias, source in _sources(scope):
            if projection.name == "*" and getattr(projection, "table", "") in ("", alias):
                for name, made in self._outputs(source).items():
                    if name not in left_out:
                        _add(found.setdefault(name, {}), made, 0)

    def _made_of(self, scope: Scope, part: Any) -> _Made:
        """Return what the columns in a part of a query, and in the subqueries within it, are made of."""
        made: _Made = {}
        for column in part.find_all(exp.Column):
            _add(made, self._resolve(scope, column, part), 0)
        if isinstance(part, exp.Group):
            selects = getattr(scope.expression, "selects", ())
            for literal in (each for each in part.expressions if each.is_int):
                if 0 < int(literal.this) <= len(selects):
                    _add(made, self._made_of(scope, selects[int(literal.this) - 1]), 0)
        return made

    def _resolve(self, scope: Scope, column: exp.Column, part: Any) -> _Made:
        # What is before a dot may be a table, or a column whose field is meant.
        names = [each.name for each in column.parts]
        for at in range(len(names) - 1, -1, -1):
            alias = names[at - 1] if at else ""
            if (found := self._find(scope, alias, names[at])) is not None:
                field = 0 if at == len(names) - 1 else 1
                return {origin: max(field, kind) for origin, kind in found.items()}
        if len(names) > 1 or isinstance(part, exp.Alias):
            return {}
        # The name of a column of the result, in GROUP BY, HAVING or ORDER BY.
        named = (each for each in getattr(scope.expression, "selects", ()) if each.alias == names[0])
        return next((self._made_of(scope, each) for each in named), {})

    def _find(self, scope: Scope, alias: str, name: str) -> _Made | None:
        """Return what a column is made of, of the scope, of what is around it, or of a subquery within it."""
        around: Scope | None = scope
        while around is not None:
            if (found := self._find_here(around, alias, name)) is not None:
                return found
            around = around.parent
        within = (self._find_here(each, alias, name) for each in scope.traverse() if each is not scope)
        return next((found for found in within if found is not None), None)

    def _find_here(self, scope: Scope, alias: str, name: str) -> _Made | None:
        for known, source in _sources(scope):
            if alias in ("", known) and (found := self._outputs(source).get(name)) is not None:
                return found
        return None


def _sources(scope: Scope) -> list[tuple[str, Any]]:
    """Return the sources of FROM and JOIN, by their aliases, in order."""
    return [(alias, source) for alias, (_, source) in scope.selected_sources.items()]


def _row_clauses(expression: Any) -> Iterator[tuple[Any, str]]:
    for name, way in _CLAUSES:
        if (clause := expression.args.get(name)) is not None:
            yield clause, way
    for join in expression.args.get("joins") or ():
        if (on := join.args.get("on")) is not None:
            yield on, "JOIN"
        for name in join.args.get("using") or ():
            yield exp.column(name.name), "JOIN"


def _kind_of(projected: Any) -> int:
    if isinstance(projected, exp.Column):
        return 0
    return 2 if projected.find(exp.AggFunc) is not None else 1


def _add(made: _Made, more: Mapping[Origin, int], kind: int) -> None:
    for origin, before in more.items():
        if origin in made or len(made) < ORIGINS_MAX:
            made[origin] = max(kind, before, made.get(origin, 0))


# --- lineage of a job -------------------------------------------------------------------------------------------------
# What is known of a job's tables, and of which columns its target's are made, is for events, never for the job's rows.

V = TypeVar("V")

REMEMBERED_MAX = 1_000
"""Tables, and jobs, whose columns are remembered for events; beyond them the oldest are read again."""

REMEMBERED_S = 600.0
"""Seconds for which columns are remembered for events: those that have changed meanwhile are shown as they were."""

MISSING_S = 10.0
"""Seconds for which it is remembered that the columns of a table could not be read."""

ReadColumns = Callable[[str], Mapping[str, str]]
"""Returns the types of a table's columns, by their names, by its URI; empty where they cannot be read."""


class _Remembered(Generic[V]):
    """Values by keys, for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: RecentValues[object, tuple[float, V]] = RecentValues(REMEMBERED_MAX)

    def get(self, key: object, find: Callable[[], V], whole: Callable[[V], bool]) -> V:
        now_s = self._clock.monotonic_s()
        remembered = self._values.get(key)
        if remembered is None or remembered[0] <= now_s:
            value = find()
            remembered = self._values.put(key, (now_s + (REMEMBERED_S if whole(value) else MISSING_S), value))
        return remembered[1]


class JobLineage:
    """For one thread, which may wait for the storage."""

    def __init__(self, read_columns: ReadColumns, clock: Clock) -> None:
        self._read_columns = read_columns
        self._tables: _Remembered[Mapping[str, str]] = _Remembered(clock)
        self._jobs: _Remembered[KnownTables] = _Remembered(clock)

    def known_tables(self, row: JobRow, target: str) -> KnownTables:
        """Return what is known of the tables of a job that writes `target`."""
        uris = (*source_uris(row), *([target] if target else []))
        columns = {uri: self._tables.get(uri, lambda uri=uri: self._read_columns(uri), bool) for uri in uris}  # type: ignore[misc]
        missing = not all(columns.values())
        key = row.job_id, row.spec_json, target
        return self._jobs.get(key, lambda: _known(row, target, columns), lambda _: not missing)


def _known(row: JobRow, target: str, columns: Mapping[str, Mapping[str, str]]) -> KnownTables:
    view = view_of(row.spec_json)
    if view is None:
        return KnownTables(columns, _copied(row, columns.get(target, {}), columns[row.table_uri]))
    return _of_view(view, target, columns)


def _copied(row: JobRow, made: Mapping[str, str], source: Mapping[str, str]) -> Mapping[str, tuple[InputColumn, ...]]:
    """Return the columns that other kinds take over as they are: those of the same name."""
    return {name: (InputColumn(row.table_uri, name),) for name in made if name in source}


def _of_view(view: ViewFields, target: str, columns: Mapping[str, Mapping[str, str]]) -> KnownTables:
    tables = view.tables
    found = find_lineage(view.sql, {name: columns.get(uri, {}) for name, uri in tables.items()})
    real = {name.lower(): name for name in columns.get(target, {})}
    made_of = {
        real.get(name.lower(), name): tuple(
            InputColumn(tables[table], column, "DIRECT", how) for (table, column), how in origins.items()
        )
        for name, origins in found.columns.items()
    }
    rows = tuple(InputColumn(tables[table], column, "INDIRECT", how) for (table, column), how in found.rows.items())
    return KnownTables(columns, made_of, rows)


# --- QUALIFY ----------------------------------------------------------------------------------------------------------
# QUALIFY is written as a filter above the SELECT that it belongs to. Text is put in and moved, and none is written
# again: what the query says of its columns and functions stays to the letter. The condition becomes one more column,
# which may use the other ones by their names, and is left out above:
#
#     SELECT a, b FROM t QUALIFY c   becomes   SELECT * EXCEPT (q) FROM (SELECT a, b, (c) AS q FROM t) WHERE q
#
# DISTINCT may stay where it is, as of all rows with the same columns those with the condition are one.

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
