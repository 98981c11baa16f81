"""A user's condition on stored columns, made into Lance's SQL: from its tree alone, never from its text.

The condition is read as Spark's SQL. What is not in the list below is refused by name. Comparisons with null are
neither true nor false, which NOT leaves as it is. So NOT is moved into the comparisons, of which nothing but AND and OR
remains: there null is as good as false.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from iscp.core.api.search_views import FILTER_CHARS_MAX
from iscp.core.sql.sql_bounds import SQL_NESTING_MAX, nesting_of
from iscp.core.values.untrusted_values import first_line, shown
from iscp.index.search.filter_comparisons import (
    ColumnKind,
    Sign,
    StoredColumn,
    compared,
    compared_columns,
    equal_to_any,
    quoted,
    stored_column,
)
from iscp.index.search.filter_literals import Value, literal_value, refusal

if TYPE_CHECKING:
    import pyarrow as pa

COMPARISONS_MAX = 1_000
"""Comparisons of a filter, each value of a list counted; one with more is refused."""

LEVELS_MAX = 100
"""Levels of AND, OR and NOT within each other in a filter; one with more is refused."""

TRUE, FALSE = "TRUE", "FALSE"

_SIGNS: Mapping[type[exp.Expr], Sign] = {
    exp.EQ: Sign.EQ,
    exp.NEQ: Sign.NE,
    exp.LT: Sign.LT,
    exp.LTE: Sign.LE,
    exp.GT: Sign.GT,
    exp.GTE: Sign.GE,
}
_ALLOWED: Mapping[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys([*_SIGNS, exp.And, exp.Or, exp.NullSafeEQ, exp.NullSafeNEQ], frozenset({"this", "expression"})),
    exp.Is: frozenset({"this", "expression"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    **dict.fromkeys([exp.Not, exp.Paren, exp.Neg, exp.Boolean], frozenset({"this"})),
    exp.Null: frozenset(),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    **dict.fromkeys([exp.Cast, exp.TryCast], frozenset({"this", "to", "safe", "requires_string"})),
    exp.DataType: frozenset({"this", "expressions"}),
    exp.DataTypeParam: frozenset({"this"}),
    exp.Concat: frozenset({"expressions"}),  # two texts side by side, which are then refused as such
}
"""What the tree of a filter may be made of: nodes, and which of their arguments may have a value."""

_ESCAPE = re.compile(r"\\.?", re.DOTALL)
_ESCAPED = frozenset("\\'\"ntr")


def lance_filter(condition: str, schema: pa.Schema, stored: Sequence[str]) -> str:
    """Return a condition as a filter of Lance's: TRUE if it holds of all rows, FALSE if of none.

    `stored` are the columns that may be named. Raises InvalidRequest (field `filter`).
    """
    if len(condition) > FILTER_CHARS_MAX:
        raise refusal(f"has {len(condition)} characters, more than {FILTER_CHARS_MAX}", "Make it shorter")
    if nesting_of(condition) > SQL_NESTING_MAX:
        _refuse_depth()
    for found in _ESCAPE.finditer(condition):
        if found[0][1:] not in _ESCAPED:
            raise refusal(f"has {shown(found[0])} at character {found.start() + 1}", "Write \\\\ for a backslash")
    columns = {name.lower(): stored_column(schema.field(name)) for name in stored if not set(name) & set("`.")}
    try:
        trees = sqlglot.parse(condition, dialect="spark")
    except SqlglotError as error:
        raise refusal(
            f"does not parse: {first_line(error)}", "Write a condition as in SQL: a > 1 AND b = 'x'"
        ) from error
    except RecursionError:
        _refuse_depth()
    if len(trees) != 1 or trees[0] is None:
        raise refusal("is not one condition", "Write one, without a semicolon")
    tree = trees[0]
    assert isinstance(tree, exp.Expr)  # sqlglot declares a wider type
    for node in tree.walk():
        _refuse_unlisted(node)
    try:
        return _FilterTranslation(columns, list(stored)).sql(tree)
    except RecursionError:
        _refuse_depth()


def _refuse_depth() -> NoReturn:
    raise refusal(
        "is nested too deeply", f"Use at most {SQL_NESTING_MAX} parentheses and {LEVELS_MAX} levels of AND, OR, NOT"
    )


def _refuse_unlisted(node: exp.Expr) -> None:
    known = _ALLOWED.get(type(node))
    if known is None or any(value and name not in known for name, value in node.args.items()):
        _refuse_node(node)


def _refuse_node(node: exp.Expr) -> NoReturn:
    raise refusal(
        f"has {shown(node.sql('spark'))}, which filters cannot have",
        "Use comparisons, AND, OR, NOT, IN, BETWEEN, LIKE and IS NULL over stored columns",
    )


@dataclass
class _FilterTranslation:
    columns: Mapping[str, StoredColumn]
    stored: Sequence[str]
    count: int = 0

    def sql(self, node: exp.Expr, negated: bool = False, level: int = 0) -> str:
        """Return SQL that is true where `node` is true (`negated`: where it is false), and else false or null."""
        if level > LEVELS_MAX:
            _refuse_depth()
        match node:
            case exp.Paren():
                return self.sql(node.this, negated, level)
            case exp.Not():
                return self.sql(node.this, not negated, level + 1)
            case exp.And() | exp.Or():
                parts = [self.sql(each, negated, level + 1) for each in _chain(node)]
                return _joined(parts, "AND" if isinstance(node, exp.And) is not negated else "OR")
            case exp.Boolean() | exp.Null():
                value = literal_value(node)
                return FALSE if value is None or value is negated else TRUE
        self.count += 1
        self._refuse_many()
        return self._comparison(node, negated)

    def _comparison(self, node: exp.Expr, negated: bool) -> str:
        if (sign := _SIGNS.get(type(node))) is not None:
            return self._binary(node.this, sign.opposite if negated else sign, node.expression)
        match node:
            case exp.Column():
                column = self._column(node)
                if column.kind is not ColumnKind.BOOLEAN:
                    raise refusal(
                        f"has {column.name} as a condition, which is not TRUE or FALSE", "Compare it with a value"
                    )
                return compared(column, Sign.EQ, not negated)
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                return self._null_safe(node, negated is isinstance(node, exp.NullSafeEQ))
            case exp.Is():
                return self._is(node, negated)
            case exp.In():
                return self._in(node, negated)
            case exp.Between():
                low, high = node.args["low"], node.args["high"]
                parts = [
                    self._binary(node.this, Sign.LT if negated else Sign.GE, low),
                    self._binary(node.this, Sign.GT if negated else Sign.LE, high),
                ]
                return _joined(parts, "OR" if negated else "AND")
            case exp.Like():
                return self._like(node, negated)
        _refuse_node(node)

    def _binary(self, left: exp.Expr, sign: Sign, right: exp.Expr) -> str:
        left, right = left.unnest(), right.unnest()
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            return compared_columns(self._column(left), sign, self._column(right))
        if isinstance(right, exp.Column):
            left, sign, right = right, sign.mirrored, left
        if not isinstance(left, exp.Column):
            raise refusal(
                f"has {shown(left.sql('spark'))} where a column is to be", "Compare stored columns with values"
            )
        column, value = self._column(left), literal_value(right)
        if value is None:
            return FALSE
        return compared(column, sign, value)

    def _null_safe(self, node: exp.Binary, negated: bool) -> str:
        """Compare so that null is equal to null, and to nothing else."""
        left, right = node.this.unnest(), node.expression.unnest()
        if isinstance(right, exp.Column):
            left, right = right, left
        if not isinstance(left, exp.Column) or isinstance(right, exp.Column):
            raise refusal("compares by <=> what is not a column and a value", "Compare a stored column with a value")
        column, value = self._column(left), literal_value(right)
        if value is None:
            return f"{column.sql} IS {'NOT NULL' if negated else 'NULL'}"
        if negated:
            return _joined([compared(column, Sign.NE, value), f"{column.sql} IS NULL"], "OR")
        return compared(column, Sign.EQ, value)

    def _is(self, node: exp.Is, negated: bool) -> str:
        left = node.this.unnest()
        if not isinstance(left, exp.Column):
            raise refusal(f"has {shown(node.sql('spark'))}", "Ask IS NULL of a stored column")
        column = self._column(left)
        if isinstance(node.expression, exp.Null):
            return f"{column.sql} IS {'NOT NULL' if negated else 'NULL'}"
        if isinstance(node.expression, exp.Boolean) and column.kind is ColumnKind.BOOLEAN:
            return f"{column.sql} IS {'NOT ' if negated else ''}{TRUE if node.expression.this else FALSE}"
        raise refusal(
            f"has {shown(node.sql('spark'))}", "Ask IS NULL of a column, or IS TRUE of one that is TRUE or FALSE"
        )

    def _in(self, node: exp.In, negated: bool) -> str:
        left = node.this.unnest()
        if not isinstance(left, exp.Column):
            raise refusal(f"has {shown(left.sql('spark'))} before IN", "Name a stored column there")
        column = self._column(left)
        self.count += len(node.expressions)
        self._refuse_many()
        values: list[Value] = [literal_value(each) for each in node.expressions]
        some = [each for each in values if each is not None]
        if negated and len(some) < len(values):
            some_sql = [FALSE]  # nothing is known not to be null
        else:
            some_sql = equal_to_any(column, some, negated) if some else [FALSE]
        return _joined(some_sql, "AND" if negated else "OR")

    def _like(self, node: exp.Like, negated: bool) -> str:
        left, pattern = node.this.unnest(), literal_value(node.expression)
        if not isinstance(left, exp.Column) or (column := self._column(left)).kind is not ColumnKind.TEXT:
            raise refusal(f"has {shown(left.sql('spark'))} before LIKE", "Name a stored column of texts there")
        if pattern is None:
            return FALSE
        if not isinstance(pattern, str) or "\\" in pattern:
            raise refusal(f"has the pattern {shown(str(pattern))}", "Write a text with % and _, without a backslash")
        if node.args.get("negate"):
            negated = not negated
        return f"{column.sql} {'NOT LIKE' if negated else 'LIKE'} {quoted(pattern)}"

    def _column(self, node: exp.Column) -> StoredColumn:
        found = None if node.args.get("table") is not None else self.columns.get(node.name.lower())
        if found is None:
            raise refusal(
                f"names {shown(node.sql('spark'))}, which the index does not store",
                f"Name one of {shown(', '.join(self.stored)) if self.stored else 'no columns: none are stored'}",
            )
        return found

    def _refuse_many(self) -> None:
        if self.count > COMPARISONS_MAX:
            raise refusal(f"has more than {COMPARISONS_MAX} comparisons", "Compare less")


def _chain(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the parts of a chain of one operator, from left to right, however long it is."""
    parts, stack, kind = [], [node], type(node)
    while stack:
        last = stack.pop()
        if type(last) is kind:
            stack += [last.expression, last.this]
        else:
            parts.append(last)
    yield from parts


def _joined(parts: Sequence[str], operator: str) -> str:
    """Join by AND or OR, in a tree that is as flat as can be: a chain of a thousand would be as deep to Lance."""
    whole, nothing = (TRUE, FALSE) if operator == "AND" else (FALSE, TRUE)
    if nothing in parts:
        return nothing
    rest = [each for each in dict.fromkeys(parts) if each != whole]
    if not rest:
        return whole
    while len(rest) > 1:
        pairs = [rest[at : at + 2] for at in range(0, len(rest), 2)]
        rest = [f"({f' {operator} '.join(pair)})" if len(pair) > 1 else pair[0] for pair in pairs]
    return rest[0]
