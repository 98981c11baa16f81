"""Scalar expressions, predicates and measures as trees of numbers, which any columns give a meaning.

A number stands for one of what fits, counted modulo how much there is: an expression stays one when columns go, and
when it is put somewhere else. So whatever a shrinker takes away, the rest is a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.random_views.cells import LITERALS, Family

W, P, D, T, DAY, TIME, IS, B, LIST, S = (
    Family.WHOLE,
    Family.DECIMAL,
    Family.DOUBLE,
    Family.TEXT,
    Family.DATE,
    Family.TIME,
    Family.TRUTH,
    Family.BYTES,
    Family.LIST,
    Family.STRUCT,
)


@dataclass(frozen=True, slots=True)
class Named:
    """A column that expressions may use: its text, and the family of its type."""

    text: str
    family: Family


@dataclass(frozen=True, slots=True)
class Expression:
    """One of the columns, counted by `number`."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class Literal(Expression):
    """A constant."""


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """One of FUNCTIONS, of those that give what is wanted."""

    arguments: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    template: str
    arguments: tuple[Family | None, ...]
    """None: any type."""
    result: Family


def _compare(*families: Family) -> list[Function]:
    signs = ("=", "<", "<=>", "<>", ">=")
    return [Function(f"({{0}} {sign} {{1}})", (each, each), IS) for sign in signs for each in families]


FUNCTIONS = (
    Function("({0} IS NULL)", (None,), IS),
    *_compare(W, P, D, T, DAY, TIME, IS, B, LIST, S),
    Function("(NOT {0})", (IS,), IS),
    Function("({0} AND {1})", (IS, IS), IS),
    Function("({0} OR {1})", (IS, IS), IS),
    Function("({0} IN (1, 3))", (W,), IS),
    Function("({0} NOT IN ('p', {1}))", (T, T), IS),
    Function("({0} LIKE 'p%')", (T,), IS),
    Function("({0} BETWEEN {1} AND {2})", (W, W, W), IS),
    Function("isnan({0})", (D,), IS),
    Function("({0} COLLATE UTF8_LCASE = {1})", (T, T), IS),
    Function("exists({0}, z -> z > 1)", (LIST,), IS),
    Function("array_contains({0}, CAST({1} AS BIGINT))", (LIST, W), IS),
    Function("(CAST({0} AS BIGINT) + CAST({1} AS BIGINT))", (W, W), W),
    Function("coalesce({0}, {1})", (W, W), W),
    Function("CASE WHEN {0} THEN {1} ELSE {2} END", (IS, W, W), W),
    Function("length({0})", (T,), W),
    Function("size({0})", (LIST,), W),
    Function("year({0})", (DAY,), W),
    Function("datediff({0}, {1})", (DAY, DAY), W),
    Function("{0}.p", (S,), W),
    Function("get({0}, 0)", (LIST,), W),
    Function("try_element_at({0}, -1)", (LIST,), W),
    Function("array_max({0})", (LIST,), W),
    Function("(CAST({0} AS BIGINT) % 2)", (W,), W),
    Function("({0} * 2)", (P,), P),
    Function("coalesce({0}, 0.5)", (P,), P),
    Function("CAST({0} AS DECIMAL(15,1))", (P,), P),
    Function("CAST({0} AS DECIMAL(20,2))", (W,), P),
    Function("({0} + {1})", (D, D), D),
    Function("nanvl({0}, {1})", (D, D), D),
    Function("coalesce({0}, {1})", (D, D), D),
    Function("CAST({0} AS DOUBLE)", (W,), D),
    Function("(-{0})", (D,), D),
    Function("concat({0}, '-', {1})", (T, T), T),
    Function("upper({0})", (T,), T),
    Function("coalesce({0}, 'none')", (T,), T),
    Function("CAST({0} AS STRING)", (D,), T),
    Function("CAST({0} AS STRING)", (P,), T),
    Function("CASE WHEN {0} THEN {1} END", (IS, T), T),
    Function("{0}.q", (S,), T),
    Function("hex({0})", (B,), T),
    Function("date_add({0}, 1)", (DAY,), DAY),
    Function("CAST({0} AS DATE)", (TIME,), DAY),
    Function("({0} + INTERVAL 1 HOUR)", (TIME,), TIME),
    Function("CAST({0} AS BINARY)", (T,), B),
    Function("array(CAST({0} AS BIGINT), CAST({1} AS BIGINT))", (W, W), LIST),
    Function("transform({0}, z -> z + 1)", (LIST,), LIST),
    Function("filter({0}, z -> z > 1)", (LIST,), LIST),
    Function("sort_array({0}, false)", (LIST,), LIST),
    Function("array_distinct({0})", (LIST,), LIST),
    Function("named_struct('p', CAST({0} AS BIGINT), 'q', {1})", (W, T), S),
)

MEASURES = (
    Function("count(*)", (), W),
    Function("count({0})", (None,), W),
    Function("sum({0})", (W,), W),
    Function("sum({0})", (P,), P),
    Function("avg({0})", (W,), D),
    Function("avg({0})", (P,), P),
    Function("sum({0})", (D,), D),
    Function("avg({0})", (D,), D),
    Function("count(DISTINCT {0})", (None,), W),
    Function("count(DISTINCT {0}, {1})", (None, None), W),
    Function("min({0})", (W,), W),
    Function("max({0})", (T,), T),
    Function("min({0})", (P,), P),
    Function("max({0} + 0.0D)", (D,), D),
    Function("min({0})", (DAY,), DAY),
    Function("max({0})", (TIME,), TIME),
    Function("min({0})", (B,), B),
    Function("max({0})", (S,), S),
    Function("min({0})", (LIST,), LIST),
    Function("bool_or({0})", (IS,), IS),
    Function("bool_and({0})", (IS,), IS),
    Function("bit_xor(CAST({0} AS BIGINT))", (W,), W),
    Function("bit_and(CAST({0} AS BIGINT))", (W,), W),
    Function("count_if({0})", (IS,), W),
    Function("sum(DISTINCT {0})", (W,), W),
    Function("round(stddev({0}), 4)", (W,), D),
    Function("round(var_pop({0}), 4)", (P,), D),
    Function("round(corr({0}, {1}), 4)", (W, W), D),
    Function("percentile({0}, 0.5)", (W,), D),
    Function("median({0})", (P,), D),
    Function("percentile_approx({0}, 0.5)", (W,), W),
    Function("approx_count_distinct({0})", (None,), W),
    Function("max_by({0}, struct({all}))", (W,), W),
    Function("min_by({0}, struct({all}))", (T,), T),
    Function("sort_array(collect_list(CAST({0} AS BIGINT)))", (W,), LIST),
    Function("sort_array(collect_set(CAST({0} AS BIGINT)))", (W,), LIST),
    Function("listagg({0}, ',') WITHIN GROUP (ORDER BY {0})", (T,), T),
    Function("sum({0}) FILTER (WHERE {1})", (W, IS), W),
)

OVER = (
    Function("row_number() OVER ({part} ORDER BY {order})", (), W),
    Function("rank() OVER ({part} ORDER BY {0})", (None,), W),
    Function("dense_rank() OVER ({part} ORDER BY {0} DESC)", (None,), W),
    Function("lag({0}) OVER ({part} ORDER BY {order})", (W,), W),
    Function("lead({0}, 2) OVER ({part} ORDER BY {order})", (T,), T),
    Function("sum({0}) OVER ({part})", (W,), W),
    Function("count(*) OVER ({part})", (), W),
    Function("max({0}) OVER ({part})", (P,), P),
    Function("sum({0}) OVER ({part} ORDER BY {1})", (W, None), W),
    Function("avg({0}) OVER ({part} ORDER BY {order} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)", (W,), D),
    Function("first_value({0}) OVER ({part} ORDER BY {order})", (T,), T),
    Function("nth_value({0}, 2) OVER ({part} ORDER BY {order})", (W,), W),
    Function("ntile(2) OVER ({part} ORDER BY {order})", (), W),
    Function("round(cume_dist() OVER ({part} ORDER BY {0}), 6)", (None,), D),
)

TIED_MEASURES = (
    *MEASURES,
    Function("first({0})", (W,), W),
    Function("last({0}, true)", (T,), T),
    Function("any_value({0})", (D,), D),
    Function("max_by({0}, {1})", (T, W), T),
    Function("min_by({0}, {1})", (W, T), W),
    Function("mode({0})", (T,), T),
    Function("collect_list(CAST({0} AS BIGINT))", (W,), LIST),
    Function("collect_set(CAST({0} AS BIGINT))", (W,), LIST),
    Function("listagg({0}, '-')", (T,), T),
    Function("listagg(DISTINCT {0})", (T,), T),
    Function("first(DISTINCT {0})", (W,), W),
    Function("first({0}) FILTER (WHERE {1})", (T, IS), T),
)
"""With those that go by the order in which rows come."""

TIED_OVER = (
    *OVER,
    Function("last_value({0}) OVER ({part} ORDER BY {order})", (T,), T),
    Function("last_value({0}, true) OVER ({part} ORDER BY {1})", (D, None), D),
    Function("nth_value({0}, 2) IGNORE NULLS OVER ({part} ORDER BY {order})", (W,), W),
    Function("collect_list(CAST({0} AS BIGINT)) OVER ({part} ORDER BY {order})", (W,), LIST),
    Function("collect_set(CAST({0} AS BIGINT)) OVER ({part} ORDER BY {1} DESC)", (W, None), LIST),
    Function("listagg({0}, ',') OVER ({part} ORDER BY {order})", (T,), T),
    Function("max_by({0}, {1}) OVER ({part} ORDER BY {1})", (W, W), W),
    Function("mode({0}) OVER ({part} ORDER BY {1})", (T, None), T),
    Function("any_value({0}) OVER ({part})", (D,), D),
    Function("sum({0}) OVER ({part} ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)", (W,), W),
    Function(
        "collect_list(CAST({0} AS BIGINT)) OVER "
        "({part} ORDER BY {1} RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
        (W, None),
        LIST,
    ),
)


SUMMED_MEASURES = (
    *[Function("sum({0})", (D,), D)] * 6,
    *[Function("avg({0})", (D,), D)] * 3,
    *(Function(f"{name}({{0}})", (D,), D) for name in ("stddev", "stddev_pop", "variance", "var_pop", "skewness")),
    *(Function(f"{name}({{0}}, {{1}})", (D, D), D) for name in ("covar_pop", "covar_samp", "regr_slope", "regr_sxy")),
    Function("sum(DISTINCT {0})", (D,), D),
    Function("sum({0}) FILTER (WHERE {1})", (D, IS), D),
    Function("avg({0})", (W,), D),
    Function("max({0})", (D,), D),
    Function("count(DISTINCT {0})", (D,), W),
    Function("round(sum({0}), 1)", (D,), D),
    Function("count(*)", (), W),
    Function("sum({0})", (W,), W),
    Function("min({0})", (T,), T),
    Function("count_if({0})", (IS,), W),
    Function("max_by({0}, struct({all}))", (W,), W),
)
"""Most add doubles."""

SUMMED_OVER = (
    *[Function("sum({0}) OVER ({part})", (D,), D)] * 3,
    Function("sum({0}) OVER ({part} ORDER BY {1})", (D, None), D),
    Function("sum({0}) OVER ({part} ORDER BY {order} ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)", (D,), D),
    Function("avg({0}) OVER ({part} ORDER BY {1} RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)", (D, None), D),
    Function("stddev({0}) OVER ({part})", (D,), D),
    Function("covar_pop({0}, {1}) OVER ({part})", (D, D), D),
    Function("row_number() OVER ({part} ORDER BY {0} DESC, {order})", (D,), W),
    Function("rank() OVER ({part} ORDER BY {0})", (D,), W),
    Function("dense_rank() OVER ({part} ORDER BY {0} DESC)", (D,), W),
    Function("lag({0}) OVER ({part} ORDER BY {order})", (D,), D),
    Function("count(*) OVER ({part} ORDER BY {0})", (D,), W),
)


def text_of(expression: Expression, columns: Sequence[Named], wanted: Family | None = None) -> Named:
    """The expression over these columns, as a value of the family that is wanted (None: any)."""
    match expression:
        case Call():
            fit = [each for each in FUNCTIONS if wanted in (None, each.result)]
            return call_of(fit[expression.number % len(fit)], expression.arguments, columns)
        case Literal():
            return constant(wanted or Family.WHOLE, expression.number)
        case _:
            found = [each for each in columns if wanted in (None, each.family)]
            return found[expression.number % len(found)] if found else constant(wanted or W, expression.number)


def call_of(
    function: Function,
    arguments: Sequence[Expression],
    columns: Sequence[Named],
    partition: str = "",
    *,
    ties: bool = False,
) -> Named:
    """Arguments that lack are the first column that fits. `ties`: rows that differ may tie where they are ordered."""
    given = [*arguments, *[Expression()] * len(function.arguments)]
    texts = [text_of(each, columns, family).text for each, family in zip(given, function.arguments, strict=False)]
    whole = total_order(columns)
    order = order_with_ties(columns) if ties else whole
    text = function.template.format(*texts, part=partition, order=order, all=whole)
    return Named(text, function.result)


def constant(family: Family, number: int) -> Named:
    texts = LITERALS[family]
    return Named(texts[number % len(texts)], family)


def total_order(columns: Sequence[Named]) -> str:
    """Rows that tie in it are equal; zeros of another sign, which tie too, differ in their text."""
    signs = [f"CAST({each.text} AS STRING)" for each in columns if each.family is D]
    return ", ".join([*(each.text for each in columns), *signs])


def order_with_ties(columns: Sequence[Named]) -> str:
    """By one of the columns, or by two of which one is descending."""
    texts = [each.text for each in columns]
    orders = (texts[0], f"{texts[-1]} DESC NULLS FIRST", f"{texts[-1]} DESC, {texts[0]}", f"{texts[0]} NULLS LAST")
    return orders[(len(texts) + len(texts[0])) % len(orders)]
