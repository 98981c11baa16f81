"""The allow-list of functions of several rows: aggregates of groups and of windows' frames, and places in windows.

Exact sums of doubles, and of their squares, by DuckDB's whole numbers: the values of iscp's aggregates in Spark.

A double is the sum of four whole numbers, in units of 1, 2^-40, 2^-80 and 2^-120. Such parts, and products of two of
them, add up exactly in 128 bits, in whichever order they come. What goes beyond that, or has bits below 2^-120, raises.
A function of Python puts the sums together, and rounds once (`ExactSums.java` does the same for Spark).

The entries of the allow-list: an operation over some types, what guards it, and its text for DuckDB.

DuckDB gives Spark's value and type to the bit, or raises; every raise goes to Spark. An entry's text alone would not
do: its guards either refuse an expression before anything runs, or raise for single rows. No guard is there that the
table of equality (`tests/equality`) does not need, and no entry without a row in it.

The text of an argument may stand in a text several times. No entry makes a value much longer than its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import combinations_with_replacement
from typing import NamedTuple

from iscp.algebra.algebra import Expr
from iscp.algebra.result_types import DECIMAL_DIGITS_MAX, DIGITS, FLOATS, VOID, decimal_of, element_of

NATIVE_DIGITS = 18
"""Digits up to which DuckDB multiplies decimals in 64 bits, and raises where the product has more."""

TRIED_CHARS_MAX = 1_000
"""Characters of a number's text up to which each value is tried in 64 bits, which repeats the text up to five times."""

EXACT_DOUBLE_MAX = 2**53
"""The greatest number up to which every whole number is a double."""

_TYPES = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "date": "DATE",
    "boolean": "BOOLEAN",
    "timestamp": "TIMESTAMP",  # times of day are those of UTC in views, so both kinds are the same inside
    "timestamp_ntz": "TIMESTAMP",
    "binary": "BLOB",
}


def duck_type(kind: str) -> str | None:
    """Return DuckDB's name of a type, or None if it has no such type."""
    if (element := element_of(kind)) is not None:
        return f"{duck_type(element)}[]"
    digits = decimal_of(kind)
    return f"DECIMAL({digits[0]},{digits[1]})" if digits else _TYPES.get(kind)


def cast(text: str, kind: str) -> str:
    """Return the value as one of this type."""
    return f"CAST({text} AS {duck_type(kind)})"


def raised(reason: str) -> str:
    """Return the text that raises."""
    return f"error('left to Spark: {reason}')"


@dataclass(frozen=True, slots=True)
class DuckCall:
    """An expression that is written: `args` are the texts of its arguments.

    An aggregate has `distinct` before its argument, and `over`, a FILTER or a window, after each call.
    """

    expression: Expr
    args: tuple[str, ...]
    distinct: str = ""
    over: str = ""

    @property
    def type(self) -> str:
        return self.expression.type

    def kind(self, place: int = 0) -> str:
        """Return the type of an argument."""
        return self.expression.args[place].type

    def digits(self, place: int) -> tuple[int, int]:
        """Return precision and scale of an argument, which is a decimal or a whole number."""
        kind = self.kind(place)
        return decimal_of(kind) or (DIGITS[kind], 0)

    @property
    def ansi(self) -> bool:
        return "ANSI" in self.expression.info

    def aggregate(self, function: str, text: str | None = None) -> str:
        """Return an aggregate function of the first argument, or of another text."""
        return f"{function}({self.distinct}{self.args[0] if text is None else text}){self.over}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A guard that leaves an expression to Spark by its types, properties or constants, before anything runs."""

    reason: str
    refuses: Callable[[Expr], bool]


@dataclass(frozen=True, slots=True)
class RowGuard:
    """A guard that raises for the rows for which the text `when` is true."""

    reason: str
    when: Callable[[DuckCall], str]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry: `op` over what it `takes`, called `kind`. A text `by_order` adds doubles in the order of rows, as Spark
    does: its last digits differ from run to run, in Spark too, and so it may be shown, and decides nothing. An
    aggregate that is not `distinct` is none of DISTINCT values, and one that is not `framed` none of a window's frame;
    only what is `of_arrays` has arrays as arguments.
    """

    op: str
    kind: str
    takes: Callable[[Expr], bool]
    text: Callable[[DuckCall], str]
    refusals: tuple[Refusal, ...] = ()
    guards: tuple[RowGuard, ...] = ()
    by_order: bool = False
    distinct: bool = True
    framed: bool = True
    of_arrays: bool = False

    @property
    def name(self) -> str:
        return f"{self.op} of {self.kind}" if self.kind else self.op

    def write(self, call: DuckCall) -> str:
        """Return the text with its guards."""
        text = self.text(call)
        cases = "".join(f"WHEN {each.when(call)} THEN {raised(each.reason)} " for each in self.guards)
        return f"(CASE {cases}ELSE {text} END)" if cases else text


# --- what entries take ------------------------------------------------------------------------------------------------


def of_types(*kinds: str) -> Callable[[Expr], bool]:
    """Return whether all arguments have one of these types."""
    return lambda each: all(arg.type in kinds for arg in each.args)


def of_first(*kinds: str) -> Callable[[Expr], bool]:
    """Return whether the first argument has one of these types."""
    return lambda each: bool(each.args) and each.args[0].type in kinds


def of_decimals(each: Expr) -> bool:
    return all(decimal_of(arg.type) for arg in each.args)


of_ints = of_types(*DIGITS)
of_floats = of_types(*FLOATS)
first_int = of_first(*DIGITS)
first_float = of_first(*FLOATS)


def first_decimal(each: Expr) -> bool:
    return decimal_of(each.args[0].type) is not None


def anything(_: Expr) -> bool:
    return True


def constant(each: Expr) -> str | None:
    """Return the text of a literal that is not null, or None."""
    value = each.info[0] if each.op == "Literal" else None
    return value if isinstance(value, str) else None


DELIMITER_CHARS_MAX = 16
"""Characters between texts that are put together, each of which takes as much memory itself."""


def _is_short(delimiter: Expr) -> bool:
    text = constant(delimiter)
    return text is not None and len(text) <= DELIMITER_CHARS_MAX


def delimited(place: int) -> tuple[Refusal, ...]:
    """Return the guard of what puts texts together, with an argument at this place between them."""
    return (Refusal("a delimiter that is no short constant", lambda each: not _is_short(each.args[place])),)


def whole_constant(each: Expr) -> int | None:
    """Return the value of a whole number that is a literal, or None."""
    text = constant(each) if each.type in DIGITS else None
    return None if text is None else int(text)


def spelled(call: DuckCall, function: str) -> str:
    """Return a function of all arguments."""
    return f"{function}({', '.join(call.args)})"


def same(function: str) -> Callable[[DuckCall], str]:
    """Return the text of a function that DuckDB has with the same meaning."""
    return lambda call: spelled(call, function)


def between(sign: str) -> Callable[[DuckCall], str]:
    """Return the text of an operator that DuckDB has with the same meaning."""
    return lambda call: "(" + f" {sign} ".join(call.args) + ")"


# --- exact decimals ---------------------------------------------------------------------------------------------------


class Digits(NamedTuple):
    """The text of a whole number of at most `most` digits, of 64 bits where these suffice: DuckDB divides numbers of
    128 bits, and converts decimals to these, thirty times slower.
    """

    text: str
    most: int

    def shifted(self, places: int) -> Digits:
        """Return the number with so many zeros more."""
        if not places:
            return self
        most = self.most + places
        return Digits(f"({self.text} * {10**places}::{_whole_type(most)})", most)


def _whole_type(digits: int) -> str:
    return "BIGINT" if digits <= NATIVE_DIGITS else "HUGEINT"


def unscaled(text: str, precision: int, scale: int) -> Digits:
    """Return a decimal's digits as a whole number; the text raises where 128 bits do not suffice."""
    if not scale:
        return Digits(f"CAST({text} AS {_whole_type(precision)})", precision)
    if precision + scale < NATIVE_DIGITS:
        return Digits(_digits_within(text, precision, scale), precision)
    found = f"CAST(replace(CAST({text} AS VARCHAR), '.', '') AS HUGEINT)"
    wide = max(precision, NATIVE_DIGITS + 1)
    if wide + scale < DECIMAL_DIGITS_MAX:
        found = _digits_within(text, wide, scale)
    native = NATIVE_DIGITS - 1 - scale
    if native > scale and len(text) <= TRIED_CHARS_MAX:  # most numbers have few digits, whatever their type allows
        most, few = 10 ** (native - scale) - 1, _digits_within(text, native, scale)
        found = f"(CASE WHEN {text} BETWEEN -{most} AND {most} THEN CAST({few} AS HUGEINT) ELSE {found} END)"
    return Digits(found, max(precision, NATIVE_DIGITS + 1))


def _digits_within(text: str, precision: int, scale: int) -> str:
    """Return the digits of a number that is a decimal of this type; DuckDB multiplies as wide as the wider type is."""
    unit = f"CAST({10**scale} AS DECIMAL({scale + 1},0))"
    return f"CAST(CAST({text} AS DECIMAL({precision},{scale})) * {unit} AS {_whole_type(precision + scale + 1)})"


def scaled(digits: Digits, kind: str) -> str:
    """Return digits as the decimal of this type; it raises where they are more than 38.

    DuckDB multiplies the digits of decimals as they are, and checks that the product has no more than 38.
    """
    precision, scale = decimal_of(kind) or (0, 0)
    native = digits.most <= NATIVE_DIGITS and precision + scale <= DECIMAL_DIGITS_MAX
    found = f"CAST({digits.text} AS DECIMAL({precision if native else DECIMAL_DIGITS_MAX},0))"
    return f"CAST({found + (f' * {_unit(scale)}' if scale else '')} AS DECIMAL({precision},{scale}))"


def _unit(places: int) -> str:
    return f"CAST('0.{'0' * (places - 1)}1' AS DECIMAL({places},{places}))"


def rescaled(digits: Digits, scale: int, kind: str) -> str:
    """Return digits with so many places as the decimal of this type, which may have fewer of them."""
    _, kept = decimal_of(kind) or (0, 0)
    if kept >= scale:
        return scaled(digits, kind)
    return quotient(digits, 0, Digits("1::BIGINT", 1).shifted(scale - kept), kind)


def quotient(numerator: Digits, places: int, denominator: Digits, kind: str) -> str:
    """Return a quotient of whole numbers, rounded half away from zero as Spark rounds, as the decimal of this type; the
    numerator is shifted by `places` first.
    """
    above, below = numerator.shifted(max(places, 0)), denominator.shifted(max(-places, 0))
    most = max(above.most, below.most)
    found = _half_up(above.text, below.text)
    if most > NATIVE_DIGITS and len(above.text) + len(below.text) <= TRIED_CHARS_MAX:
        native = f"BETWEEN -{10**NATIVE_DIGITS} AND {10**NATIVE_DIGITS}"
        few = _half_up(*(f"CAST({each.text} AS BIGINT)" for each in (above, below)))
        are_few = f"{above.text} {native} AND {below.text} {native}"
        found = f"(CASE WHEN {are_few} THEN CAST({few} AS HUGEINT) ELSE {found} END)"
    return scaled(Digits(found, most), kind)


def _half_up(numerator: str, denominator: str) -> str:
    return f"((2 * {numerator} + sign({numerator}) * abs({denominator})) // (2 * {denominator}))"


_BITS = 40
PARTS = 4
"""Whole numbers of which a double consists."""

_UNIT = 1 << _BITS * (PARTS - 1)
_PRODUCTS = tuple(combinations_with_replacement(range(PARTS), 2))
_QUOTIENT = Context(prec=40, rounding=ROUND_HALF_UP)


def _part(place: int) -> str:
    """Return the text of a part of `x`; the last one is all that is left, and has to be whole."""
    rest = "x"
    for _ in range(place):
        rest = f"exact_below({rest})"
    whole = f"CAST(trunc({rest}) AS HUGEINT)"
    if place < PARTS - 1:
        return whole
    return f"(CASE WHEN {rest} <> trunc({rest}) THEN error('left to Spark: bits below 2^-120') ELSE {whole} END)"


MACROS: tuple[str, ...] = (
    f"exact_below(x) AS (x - trunc(x)) * {1 << _BITS}",
    *(f"exact_part{place}(x) AS {_part(place)}" for place in range(PARTS)),
)
"""The definitions of the parts of a double, of which each step is exact."""


def sum_text(value: str, total: Callable[[str], str]) -> str:
    """Return the text of an exact sum of doubles; `total` gives the text of a sum of whole numbers."""
    return f"exact_sum({_listed(map(total, _parts(value)))})"


def moment_text(value: str, count: str, total: Callable[[str], str]) -> str:
    """Return the text of the sum of the squares of what doubles differ from their average by; `count` is their
    number.
    """
    parts = _parts(value)
    products = (f"{parts[one]} * {parts[other]}" for one, other in _PRODUCTS)
    return f"exact_moment({_listed((count, *map(total, (*parts, *products))))})"


def whole_moment_text(value: str, count: str, total: Callable[[str], str]) -> str:
    """Return `moment_text` of doubles that are whole numbers of 32 bits: three sums in place of fifteen.

    A quotient of two whole numbers that doubles hold is rounded once, as Spark's is: it lies too far from the middle of
    two doubles for forty digits to make it one.
    """
    whole = f"CAST({value} AS BIGINT)"
    one, two, many = total(whole), total(f"{whole} * {whole}"), f"CAST({count} AS HUGEINT)"
    found = _listed([count, one, *["0"] * (PARTS - 1), two, *["0"] * (len(_PRODUCTS) - 1)])
    difference = f"({many} * {two} - {one} * {one})"
    few = f"{difference} <= {EXACT_DOUBLE_MAX} AND {count} <= {EXACT_DOUBLE_MAX}"
    return (
        f"(CASE WHEN {few} THEN CAST({difference} AS DOUBLE) / CAST({count} AS DOUBLE) ELSE exact_moment({found}) END)"
    )


def whole_sum_text(total: str) -> str:
    """Return the text of the nearest double to a whole number."""
    found = f"exact_sum({_listed((total, *['0'] * (PARTS - 1)))})"
    return f"(CASE WHEN abs({total}) <= {EXACT_DOUBLE_MAX} THEN CAST({total} AS DOUBLE) ELSE {found} END)"


def _listed(numbers: Iterable[str]) -> str:
    """Return the text of a list of whole numbers, as the functions take it."""
    return " || ' ' || ".join(f"CAST({each} AS VARCHAR)" for each in numbers)


def exact_sum(*sums: int) -> float:
    """Return the nearest double to a sum, of two that are as near the even one; `sums` are those of the parts."""
    return _whole(sums) / _UNIT


def exact_moment(count: int, *sums: int) -> float:
    """Return the second moment of `count` values, of the sums of their parts and of the products of these."""
    total = _whole(sums[:PARTS])
    squares = 0
    for (one, other), product in zip(_PRODUCTS, sums[PARTS:], strict=True):
        places = 2 * (PARTS - 1) - one - other
        squares += (product if one == other else 2 * product) << _BITS * places
    # Spark's is rounded to forty digits first, and then to a double.
    return float(_QUOTIENT.divide(Decimal(count * squares - total * total), Decimal(count * _UNIT * _UNIT)))


FUNCTIONS: Mapping[str, Callable[..., float]] = {"exact_sum": exact_sum, "exact_moment": exact_moment}
"""The functions by which sums are put together, of whole numbers that an engine gives as `_listed`."""


def _parts(value: str) -> list[str]:
    return [f"exact_part{place}({value})" for place in range(PARTS)]


def _whole(sums: tuple[int, ...]) -> int:
    return sum(each << _BITS * (PARTS - 1 - place) for place, each in enumerate(sums))


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


def _counted(count: str) -> Digits:
    return Digits(f"CAST({count} AS HUGEINT)", NATIVE_DIGITS + 1)


def _average_of_decimals(call: DuckCall) -> str:
    scale = call.digits(0)[1]
    kind = _sum_type(call.expression)
    digits = unscaled(cast(_sum(call), kind), *(decimal_of(kind) or (0, 0)))
    places = (decimal_of(call.type) or (0, 0))[1] - scale
    found = quotient(digits, places, _counted(_n(call)), call.type)
    return f"(CASE WHEN {_n(call)} > 0 THEN {found} END)"


def _sum_type(each: Expr) -> str:
    scale = (decimal_of(each.args[0].type) or (0, 0))[1]
    return f"decimal({max(DECIMAL_DIGITS_MAX - scale - 1, scale)},{scale})"


def _average_of_floats(call: DuckCall) -> str:
    return f"(CASE WHEN {_n(call)} > 0 THEN {_sum(call)} / {_n(call)} END)"


def _double(call: DuckCall) -> str:
    return call.args[0] if call.kind() == "double" else cast(call.args[0], "double")


def _total(call: DuckCall) -> Callable[[str], str]:
    return lambda text: call.aggregate("sum", text)


def _exact_sum(call: DuckCall) -> str:
    return sum_text(_double(call), _total(call))


def _exact_average(call: DuckCall) -> str:
    return f"(CASE WHEN {_n(call)} > 0 THEN {_exact_sum(call)} / CAST({_n(call)} AS DOUBLE) END)"


def _exact_average_of_ints(call: DuckCall) -> str:
    total = whole_sum_text(call.aggregate("sum", _huge(call)))
    return f"(CASE WHEN {_n(call)} > 0 THEN {total} / CAST({_n(call)} AS DOUBLE) END)"


def _is_small(call: DuckCall) -> bool:
    """Return whether the values are whole numbers of 32 bits at most, which Spark casts to doubles."""
    (value,) = call.expression.args
    kind = value.args[0].type if value.op == "Cast" else value.type
    return kind in ("byte", "short", "integer")


def _deviation(sample: bool, root: bool) -> Callable[[DuckCall], str]:
    def text(call: DuckCall) -> str:
        moment = (whole_moment_text if _is_small(call) else moment_text)(_double(call), _n(call), _total(call))
        found = f"{moment} / (CAST({_n(call)} AS DOUBLE){' - 1' if sample else ''})"
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


_INEXACT = (RowGuard("a sum beyond 2^53", _partial_sums),)
_INFINITE = RowGuard(
    "values that are not finite", lambda call: call.aggregate("bool_or", f"NOT isfinite({call.args[0]})")
)


def _spread(function: str) -> Callable[[DuckCall], str]:
    return lambda call: call.aggregate(function)


def _extreme(function: str) -> Callable[[DuckCall], str]:
    """Return the text of the value, which may be null, in the row of the greatest or least number."""
    return lambda call: _signed(call, call.aggregate(function, f"{_value(call)}, {call.args[1]}"))


def _value(call: DuckCall) -> str:
    """Return the text of the first argument; of a 32-bit float DuckDB would lose the sign of a zero."""
    return cast(call.args[0], "double") if call.kind() == "float" else call.args[0]


def _signed(call: DuckCall, text: str) -> str:
    return cast(text, "float") if call.kind() == "float" else text


def _in_order(function: str) -> Callable[[DuckCall], str]:
    """Return the text of a function of the first argument, in rows that are sorted by the others."""

    def text(call: DuckCall) -> str:
        return _signed(call, call.aggregate(function, f"{_value(call)} {_order(call, call.args[1:])}"))

    return text


def _order(call: DuckCall, keys: Iterable[str]) -> str:
    direction = "DESC NULLS LAST" if call.expression.info == (False,) else "ASC NULLS FIRST"
    return f"ORDER BY {', '.join(f'{each} {direction}' for each in keys)}"


def _list(call: DuckCall) -> str:
    return f"list_filter(coalesce({_in_order('list')(call)}, []), lambda each: each IS NOT NULL)"


def _texts(call: DuckCall) -> str:
    text, delimiter, *keys = call.args
    return call.aggregate("string_agg", f"{text}, {delimiter} {_order(call, keys)}")


_BY_ARRAYS = Refusal("an order by arrays", lambda each: any(element_of(key.type) is not None for key in each.args[1:]))
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
    Entry("ExactSum", "floats", first_float, _exact_sum, distinct=False),
    Entry("ExactAverage", "whole numbers", first_int, _exact_average_of_ints),
    Entry("ExactAverage", "floats", first_float, _exact_average, distinct=False),
    *(
        Entry(f"Exact{name}", "floats", first_float, _deviation(sample, root), distinct=False)
        for name, sample, root in (
            ("StddevSamp", True, True),
            ("StddevPop", False, True),
            ("VarianceSamp", True, False),
            ("VariancePop", False, False),
        )
    ),
    Entry("SingleValue", "", anything, lambda call: call.aggregate("any_value")),
    Entry("MaxBy", "numbered rows", anything, _extreme("arg_max_null"), distinct=False),
    Entry("MinBy", "numbered rows", anything, _extreme("arg_min_null"), distinct=False),
    *(
        Entry(op, "", anything, _in_order(name), (_BY_ARRAYS,), distinct=False, framed=False, of_arrays=True)
        for op, name in (("FirstInOrder", "first"), ("LastInOrder", "last"))
    ),
    Entry("ListInOrder", "", anything, _list, (_BY_ARRAYS,), framed=False, of_arrays=True),
    Entry("TextInOrder", "", anything, _texts, (_BY_ARRAYS, *delimited(1)), framed=False, of_arrays=True),
)
"""Aggregates of groups, and of windows' frames."""


def _average_of(call: DuckCall) -> str:
    """Return the average that a stored sum and a stored count come to."""
    total, count = call.args
    if call.type == "double":
        found = f"CAST({total} AS DOUBLE) / CAST({count} AS DOUBLE)"
    else:
        precision, scale = call.digits(0)
        places = (decimal_of(call.type) or (0, 0))[1] - scale
        found = quotient(unscaled(total, precision, scale), places, _counted(count), call.type)
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
