"""The allow-list of casts, from which type to which."""

from __future__ import annotations

from collections.abc import Callable

from iscp.core.algebra.algebra import Expr
from iscp.core.algebra.duck_entries import DuckCall, Entry, Refusal, RowGuard, cast
from iscp.core.algebra.result_types import DIGITS, FLOATS, MOMENTS, decimal_of

_EXACT_DIGITS = 15
"""Digits of a decimal of which every value is a double, and which both engines round alike."""

INTS = frozenset(DIGITS)
DECIMALS = frozenset({"decimal"})
TEXT, DATE, BOOLEAN = frozenset({"string"}), frozenset({"date"}), frozenset({"boolean"})


def _is_one(kind: str, kinds: frozenset[str]) -> bool:
    return kind in kinds or ("decimal" in kinds and decimal_of(kind) is not None)


def _from(source: frozenset[str], target: frozenset[str]) -> Callable[[Expr], bool]:
    return lambda each: _is_one(each.args[0].type, source) and _is_one(each.type, target)


def _plain(call: DuckCall) -> str:
    return cast(call.args[0], call.type)


def _truncated(call: DuckCall) -> str:
    """Return the whole part; DuckDB alone would round."""
    return cast(f"trunc({call.args[0]})", call.type)


def _unchanged(call: DuckCall) -> str:
    return call.args[0]


def _digits_of_source(each: Expr) -> tuple[int, int]:
    return decimal_of(each.args[0].type) or (0, 0)


def _unlike(pattern: str) -> Callable[[DuckCall], str]:
    return lambda call: f"NOT regexp_full_match({call.args[0]}, '{pattern}')"


_YEARS = (RowGuard("a year without four digits", lambda call: f"year({call.args[0]}) NOT BETWEEN 1 AND 9999"),)
_PLAIN_WHOLE = (RowGuard("a text of other than plain digits", _unlike("-?[0-9]{1,18}")),)
_PLAIN_DIGITS = (RowGuard("a text of other than plain digits", _unlike("-?[0-9]{1,18}(\\.[0-9]{1,18})?")),)
_PLAIN_DATE = (RowGuard("a text of another form", _unlike("[0-9]{4}-[0-9]{2}-[0-9]{2}")),)

CASTS = (
    Entry("Cast", "whole numbers", _from(INTS, INTS), _plain),
    Entry("Cast", "whole numbers as floats", _from(INTS, FLOATS), _plain),
    Entry("Cast", "whole numbers as texts", _from(INTS, TEXT), _plain),
    Entry("Cast", "whole numbers as decimals", _from(INTS, DECIMALS), _plain),
    Entry("Cast", "decimals", _from(DECIMALS, DECIMALS), _plain),
    Entry(
        "Cast",
        "decimals as doubles",
        _from(DECIMALS, frozenset({"double"})),
        _plain,
        (Refusal("more than 15 digits", lambda each: _digits_of_source(each)[0] > _EXACT_DIGITS),),
    ),
    Entry("Cast", "decimals as whole numbers", _from(DECIMALS, INTS), _truncated),
    Entry(
        "Cast",
        "decimals as texts",
        _from(DECIMALS, TEXT),
        _plain,
        (Refusal("no whole digits", lambda each: len({*_digits_of_source(each)}) == 1),),
    ),
    Entry("Cast", "floats as doubles", _from(FLOATS, frozenset({"double"})), _plain),
    Entry("Cast", "floats as whole numbers", _from(FLOATS, INTS), _truncated),
    Entry("Cast", "dates as texts", _from(DATE, TEXT), _plain, guards=_YEARS),
    Entry("Cast", "dates as times of day", _from(DATE, MOMENTS), _plain),
    Entry("Cast", "times of day as dates", _from(MOMENTS, DATE), _plain),
    Entry("Cast", "times of day", _from(MOMENTS, MOMENTS), _unchanged),
    Entry("Cast", "times of day as texts", _from(MOMENTS, TEXT), _plain, guards=_YEARS),
    Entry("Cast", "texts as dates", _from(TEXT, DATE), _plain, guards=_PLAIN_DATE),
    Entry("Cast", "texts as whole numbers", _from(TEXT, INTS), _plain, guards=_PLAIN_WHOLE),
    Entry("Cast", "texts as decimals", _from(TEXT, DECIMALS), _plain, guards=_PLAIN_DIGITS),
    Entry("Cast", "booleans as texts", _from(BOOLEAN, TEXT), _plain),
    Entry("Cast", "booleans as whole numbers", _from(BOOLEAN, INTS), _plain),
    Entry("Cast", "whole numbers as booleans", _from(INTS, BOOLEAN), lambda call: f"({call.args[0]} <> 0)"),
)
