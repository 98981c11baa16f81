"""The allow-list of functions of several rows: aggregates of groups and of windows' frames, and places in windows."""

from __future__ import annotations

from collections.abc import Callable

from iscp.core.algebra.algebra import Expr
from iscp.core.algebra.duck_entries import (
    EXACT_DOUBLE_MAX,
    DuckCall,
    Entry,
    Refusal,
    RowGuard,
    anything,
    cast,
    first_decimal,
    first_float,
    first_int,
    quotient,
    unscaled,
)
from iscp.core.algebra.result_types import DECIMAL_DIGITS_MAX, VOID, decimal_of

_SUMMED_DIGITS_SAFE = 28
"""Digits of decimals of which no table has so many rows that their sum has more than 38."""


def _count(call: DuckCall) -> str:
    args, expression = call.args, call.expression
    if len(args) > 1:  # rows in which none is null
        whole = " AND ".join(f"{each} IS NOT NULL" for each in args)
        return call.aggregate("count", f"CASE WHEN {whole} THEN ({', '.join(args)}) END")
    counted = expression.args[0]
    every = counted.op == "Literal" and counted.info[0] is not None and not call.distinct
    return f"count(*){call.over}" if every else call.aggregate("count")


def _n(call: DuckCall) -> str:
    return call.aggregate("count")


def _sum(call: DuckCall) -> str:
    return call.aggregate("sum")


def _huge(call: DuckCall) -> str:
    return f"CAST({call.args[0]} AS HUGEINT)"


def _decimal_sum(call: DuckCall) -> str:
    return cast(_sum(call), call.type)


def _beyond(call: DuckCall) -> str:
    """Return whether a sum has more digits than Spark has; DuckDB adds up to 2^127, which has 39."""
    precision, scale = decimal_of(call.type) or (0, 0)
    if call.digits(0)[0] <= _SUMMED_DIGITS_SAFE:
        return "FALSE"
    most = "9" * (precision - scale) + ("." + "9" * scale if scale else "")
    return f"abs({_sum(call)}) > CAST('{most}' AS DECIMAL({precision},{scale}))"


def _average_of_ints(call: DuckCall) -> str:
    return f"(CASE WHEN {_n(call)} > 0 THEN CAST({_sum(call)} AS DOUBLE) / CAST({_n(call)} AS DOUBLE) END)"


def _average_of_decimals(call: DuckCall) -> str:
    scale = call.digits(0)[1]
    kind = _sum_type(call.expression)
    digits = unscaled(cast(_sum(call), kind), *(decimal_of(kind) or (0, 0)))
    places = (decimal_of(call.type) or (0, 0))[1] - scale
    found = quotient(digits, places, f"CAST({_n(call)} AS HUGEINT)", call.type)
    return f"(CASE WHEN {_n(call)} > 0 THEN {found} END)"


def _sum_type(each: Expr) -> str:
    scale = (decimal_of(each.args[0].type) or (0, 0))[1]
    return f"decimal({max(DECIMAL_DIGITS_MAX - scale - 1, scale)},{scale})"


def _average_of_floats(call: DuckCall) -> str:
    return f"(CASE WHEN {_n(call)} > 0 THEN {_sum(call)} / {_n(call)} END)"


def _moment(call: DuckCall) -> str:
    """Return n times the sum of the squares, without the square of the sum: the second moment, times n."""
    squares = call.aggregate("sum", f"{_huge(call)} * {_huge(call)}")
    total = call.aggregate("sum", _huge(call))
    return f"(CAST({_n(call)} AS HUGEINT) * {squares} - {total} * {total})"


def _deviation(sample: bool, root: bool) -> Callable[[DuckCall], str]:
    def text(call: DuckCall) -> str:
        count = f"CAST({_n(call)} AS DOUBLE)"
        found = f"(CAST({_moment(call)} AS DOUBLE) / {count}) / ({count}{' - 1' if sample else ''})"
        return f"(CASE WHEN {_n(call)} > {int(sample)} THEN {f'sqrt({found})' if root else found} END)"

    return text


def _ranked(function: str) -> Callable[[DuckCall], str]:
    return lambda call: cast(f"{function}(){call.over}", call.type)


def _places_off(call: DuckCall) -> str:
    """Return the value so many rows before or after, or the default."""
    expression = call.expression
    default = expression.args[1]
    other = "" if default.type == VOID else f", {call.args[1]}"
    return f"{expression.op.lower()}({call.args[0]}, {expression.info[0]}{other}){call.over}"


def _placed(function: str) -> Callable[[DuckCall], str]:
    def text(call: DuckCall) -> str:
        nulls = " IGNORE NULLS" if call.expression.info[-1] else ""
        number = f", {call.expression.info[0]}" if function == "nth_value" else ""
        return f"{function}({call.args[0]}{number}{nulls}){call.over}"

    return text


def _partial_sums(call: DuckCall) -> str:
    return f"{call.aggregate('sum', f'abs({_huge(call)})')} > {EXACT_DOUBLE_MAX}"


def _fractions(call: DuckCall) -> str:
    """Return whether some doubles are no whole numbers, or too large ones: only of others sums are exact here."""
    value = call.args[0]
    return call.aggregate("bool_or", f"{value} <> trunc({value}) OR abs({value}) > {EXACT_DOUBLE_MAX}")


def _exact_sum(call: DuckCall) -> str:
    return cast(call.aggregate("sum", _huge(call)), "double")


def _exact_average(call: DuckCall) -> str:
    return f"(CASE WHEN {_n(call)} > 0 THEN {_exact_sum(call)} / CAST({_n(call)} AS DOUBLE) END)"


_INEXACT = (RowGuard("a sum beyond 2^53", _partial_sums),)
_SUM_INEXACT = RowGuard(
    "a sum beyond 2^53", lambda call: f"abs({call.aggregate('sum', _huge(call))}) > {EXACT_DOUBLE_MAX}"
)
_MOMENT_INEXACT = RowGuard("a moment beyond 2^53", lambda call: f"{_moment(call)} > {EXACT_DOUBLE_MAX}")
_FRACTIONS = RowGuard("fractions", _fractions)
_INFINITE = RowGuard(
    "values that are not finite", lambda call: call.aggregate("bool_or", f"NOT isfinite({call.args[0]})")
)


def _spread(function: str) -> Callable[[DuckCall], str]:
    return lambda call: call.aggregate(function)


_IGNORING = (Refusal("nulls ignored", lambda each: bool(each.info[1])),)

GROUP_ENTRIES = (
    Entry("Count", "", anything, _count),
    Entry("Min", "", anything, lambda call: call.aggregate("min")),
    Entry("Max", "", anything, lambda call: call.aggregate("max")),
    Entry("Sum", "whole numbers", first_int, _decimal_sum),
    Entry("Sum", "decimals", first_decimal, _decimal_sum, guards=(RowGuard("more than 38 digits", _beyond),)),
    Entry("Sum", "floats", first_float, _sum, by_order=True),
    Entry("Average", "whole numbers", first_int, _average_of_ints, guards=_INEXACT),
    Entry("Average", "decimals", first_decimal, _average_of_decimals),
    Entry("Average", "floats", first_float, _average_of_floats, by_order=True),
    *(
        Entry(op, "floats", first_float, _spread(name), guards=(_INFINITE,), by_order=True)
        for op, name in (
            ("StddevSamp", "stddev_samp"),
            ("StddevPop", "stddev_pop"),
            ("VarianceSamp", "var_samp"),
            ("VariancePop", "var_pop"),
        )
    ),
    Entry("ExactSum", "floats", first_float, _exact_sum, guards=(_FRACTIONS, _SUM_INEXACT)),
    Entry("ExactAverage", "whole numbers", first_int, _exact_average, guards=(_SUM_INEXACT,)),
    Entry("ExactAverage", "floats", first_float, _exact_average, guards=(_FRACTIONS, _SUM_INEXACT)),
    *(
        Entry(f"Exact{name}", "floats", first_float, _deviation(sample, root), guards=(_FRACTIONS, _MOMENT_INEXACT))
        for name, sample, root in (
            ("StddevSamp", True, True),
            ("StddevPop", False, True),
            ("VarianceSamp", True, False),
            ("VariancePop", False, False),
        )
    ),
    Entry("SingleValue", "", anything, lambda call: call.aggregate("any_value")),
)
"""Aggregates of groups; those of windows are the same, but for DISTINCT."""


def _average_of(call: DuckCall) -> str:
    """Return the average that a stored sum and a stored count come to."""
    total, count = call.args
    if call.type == "double":
        found = f"CAST({total} AS DOUBLE) / CAST({count} AS DOUBLE)"
    else:
        precision, scale = call.digits(0)
        places = (decimal_of(call.type) or (0, 0))[1] - scale
        found = quotient(unscaled(total, precision, scale), places, f"CAST({count} AS HUGEINT)", call.type)
    return f"(CASE WHEN {count} > 0 THEN {found} END)"


_TOTAL_INEXACT = RowGuard(
    "a sum beyond 2^53", lambda call: f"abs({call.args[0]}) > {EXACT_DOUBLE_MAX}" if call.type == "double" else "FALSE"
)

PLANNED_ENTRIES = (Entry("AverageOf", "", anything, _average_of, guards=(_TOTAL_INEXACT,)),)
"""Operations that only a planner makes, and no query has."""

WINDOW_ENTRIES = (
    Entry("RowNumber", "", anything, _ranked("row_number")),
    Entry("Rank", "", anything, _ranked("rank")),
    Entry("DenseRank", "", anything, _ranked("dense_rank")),
    Entry("PercentRank", "", anything, _ranked("percent_rank")),
    Entry("CumeDist", "", anything, _ranked("cume_dist")),
    Entry("NTile", "", anything, lambda call: cast(f"ntile({call.expression.info[0]}){call.over}", call.type)),
    Entry("Lag", "", anything, _places_off, _IGNORING),
    Entry("Lead", "", anything, _places_off, _IGNORING),
    Entry("First", "", anything, _placed("first_value")),
    Entry("Last", "", anything, _placed("last_value")),
    Entry("NthValue", "", anything, _placed("nth_value")),
)
"""Functions of a row's place in its window; `First` and `Last` are of its frame."""
