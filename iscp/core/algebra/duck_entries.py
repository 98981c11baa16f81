"""The entries of the allow-list: an operation over some types, what guards it, and its text for DuckDB.

DuckDB gives Spark's value and type to the bit, or raises; every raise goes to Spark. An entry's text alone would not
do: its guards either refuse an expression before anything runs, or raise for single rows. No guard is there that the
table of equality (`tests/equality`) does not need, and no entry without a row in it.

The text of an argument may stand in a text several times. No entry makes a value much longer than its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iscp.core.algebra.algebra import Expr
from iscp.core.algebra.result_types import DECIMAL_DIGITS_MAX, DIGITS, FLOATS, decimal_of

_HUGE_DIGITS = 38
"""Digits that all fit into DuckDB's whole numbers of 128 bits."""

_PLACES_FEW = 10
"""Places of a decimal that leave at least 18 whole digits where the places are counted twice."""

NATIVE_DIGITS = 18
"""Digits up to which DuckDB multiplies decimals in 64 bits, and raises where the product has more."""

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
    does: its last digits differ from run to run, in Spark too, and so it may be shown, and decides nothing.
    """

    op: str
    kind: str
    takes: Callable[[Expr], bool]
    text: Callable[[DuckCall], str]
    refusals: tuple[Refusal, ...] = ()
    guards: tuple[RowGuard, ...] = ()
    by_order: bool = False

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


def unscaled(text: str, precision: int, scale: int) -> str:
    """Return a decimal's digits as a whole number of 128 bits; it raises where they do not suffice."""
    if not scale:
        return f"CAST({text} AS HUGEINT)"
    wide = max(precision, NATIVE_DIGITS + 1)
    if wide + scale + 1 <= DECIMAL_DIGITS_MAX:
        shifted = f"CAST({text} AS DECIMAL({wide},{scale})) * CAST({10**scale} AS DECIMAL({scale + 1},0))"
        return f"CAST({shifted} AS HUGEINT)"
    return f"CAST(replace(CAST({text} AS VARCHAR), '.', '') AS HUGEINT)"


def shifted(text: str, places: int) -> str:
    """Return a whole number with so many zeros more."""
    return f"({text} * {10**places}::HUGEINT)" if places else text


def half_up(numerator: str, denominator: str) -> str:
    """Return the quotient of two whole numbers, rounded half away from zero as Spark rounds."""
    return f"((2 * {numerator} + sign({numerator}) * abs({denominator})) // (2 * {denominator}))"


def scaled(text: str, kind: str) -> str:
    """Return digits as the decimal of this type, from parts of which each fits into 38 digits.

    With few places one part does: it raises where the number and twice its places need more.
    """
    precision, scale = decimal_of(kind) or (0, 0)
    if not scale:
        return f"CAST({text} AS DECIMAL({precision},0))"
    if scale <= _PLACES_FEW or precision <= _HUGE_DIGITS - scale:
        shown = f"CAST({text} AS DECIMAL({_HUGE_DIGITS - scale},0)) * {_unit(scale)}"
        return f"CAST({shown} AS DECIMAL({precision},{scale}))"
    few = scale // 2
    wide = f"DECIMAL({_HUGE_DIGITS},{scale})"
    parts = [f"CAST(CAST({text} // {10**scale}::HUGEINT AS DECIMAL({_HUGE_DIGITS - scale},0)) AS {wide})"]
    low = f"{text} % {10 ** (scale - few)}::HUGEINT"
    parts.append(f"CAST(CAST({low} AS DECIMAL({scale - few},0)) * {_unit(scale)} AS {wide})")
    if few:
        high = f"({text} % {10**scale}::HUGEINT) // {10 ** (scale - few)}::HUGEINT"
        parts.append(f"CAST(CAST({high} AS DECIMAL({few},0)) * {_unit(few)} AS {wide})")
    return f"CAST({' + '.join(parts)} AS DECIMAL({precision},{scale}))"


def _unit(places: int) -> str:
    return f"CAST('0.{'0' * (places - 1)}1' AS DECIMAL({places},{places}))"


def rescaled(text: str, scale: int, kind: str) -> str:
    """Return digits with so many places as the decimal of this type, which may have fewer of them."""
    _, kept = decimal_of(kind) or (0, 0)
    return scaled(half_up(text, f"{10 ** (scale - kept)}::HUGEINT") if kept < scale else text, kind)


def quotient(numerator: str, places: int, denominator: str, kind: str) -> str:
    """Return a quotient of whole numbers as the decimal of this type; the numerator is shifted by `places` first."""
    return scaled(half_up(shifted(numerator, max(places, 0)), shifted(denominator, max(-places, 0))), kind)
