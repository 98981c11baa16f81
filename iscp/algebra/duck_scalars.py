"""The allow-list of functions of one row: comparisons, logic, arithmetic, texts, dates, arrays and casts."""

from __future__ import annotations

import re
from collections.abc import Callable

from iscp.algebra.algebra import Expr
from iscp.algebra.duck_aggregates import (
    EXACT_DOUBLE_MAX,
    NATIVE_DIGITS,
    Digits,
    DuckCall,
    Entry,
    Refusal,
    RowGuard,
    anything,
    between,
    cast,
    constant,
    delimited,
    first_decimal,
    first_int,
    of_decimals,
    of_first,
    of_floats,
    of_ints,
    of_types,
    quotient,
    raised,
    rescaled,
    same,
    spelled,
    unscaled,
    whole_constant,
)
from iscp.algebra.result_types import (
    DECIMAL_DIGITS_MAX,
    DIGITS,
    FLOATS,
    MOMENTS,
    TIMES,
    decimal_of,
)

_BITS = 32
"""Bits that are shifted away at most; Spark begins again with none at 32 or 64."""

_NEGATED_DIGITS = 34
"""Digits of a decimal that Spark does not round when it changes the sign."""

_PLACES_MAX = 22
"""Places that a decimal has besides the digits of a double which is no whole number for its size."""

_SHORT = 0xFFFF

_of_text = of_types("string")


def _digits(each: Expr, place: int) -> tuple[int, int]:
    kind = each.args[place].type
    return decimal_of(kind) or (DIGITS[kind], 0)


# --- comparisons and logic --------------------------------------------------------------------------------------------


def _among(call: DuckCall) -> str:
    value, *others = call.args
    return f"({value} IN ({', '.join(others)}))" if others else cast("FALSE", "boolean")


def _cases(call: DuckCall) -> str:
    args = call.args
    pairs = "".join(f" WHEN {args[at]} THEN {args[at + 1]}" for at in range(0, len(args) - 1, 2))
    return f"(CASE{pairs}{f' ELSE {args[-1]}' if len(args) % 2 else ''} END)"


def _unchanged(call: DuckCall) -> str:
    return call.args[0]


_LOGIC = (
    *(
        Entry(op, "", anything, between(sign))
        for op, sign in (
            ("EqualTo", "="),
            ("EqualNullSafe", "IS NOT DISTINCT FROM"),
            ("LessThan", "<"),
            ("LessThanOrEqual", "<="),
            ("GreaterThan", ">"),
            ("GreaterThanOrEqual", ">="),
        )
    ),
    Entry("And", "", anything, between("AND")),
    Entry("Or", "", anything, between("OR")),
    Entry("Not", "", anything, lambda call: f"(NOT {call.args[0]})"),
    Entry("IsNull", "", anything, lambda call: f"({call.args[0]} IS NULL)", of_arrays=True),
    Entry("IsNotNull", "", anything, lambda call: f"({call.args[0]} IS NOT NULL)", of_arrays=True),
    Entry("IsNaN", "floats", of_floats, lambda call: f"coalesce(isnan({call.args[0]}), FALSE)"),
    Entry("IsNegativeZero", "floats", of_floats, lambda call: "({0} = 0 AND signbit({0}))".format(*call.args)),
    Entry("In", "", anything, _among),
    Entry("Coalesce", "", anything, same("coalesce"), of_arrays=True),
    Entry("If", "", anything, _cases, of_arrays=True),
    Entry("CaseWhen", "", anything, _cases, of_arrays=True),
    # Zeros of both signs are equal, and DuckDB takes the other one.
    Entry("Greatest", "ordered values", lambda each: each.type not in FLOATS, same("greatest")),
    Entry("Least", "ordered values", lambda each: each.type not in FLOATS, same("least")),
    Entry("KnownFloatingPointNormalized", "", anything, _unchanged),
    Entry(
        "NormalizeNaNAndZero",
        "floats",
        of_floats,
        lambda call: f"(CASE WHEN {call.args[0]} = 0 THEN {cast('0', call.type)} ELSE {call.args[0]} END)",
    ),
)

# --- arithmetic -------------------------------------------------------------------------------------------------------


def _is_capped(each: Expr) -> bool:
    """Return whether Spark cuts the type of a sum or product of decimals, which has more than 38 digits."""
    (p1, s1), (p2, s2) = _digits(each, 0), _digits(each, 1)
    if each.op == "Multiply":
        return p1 + p2 + 1 > DECIMAL_DIGITS_MAX
    return max(p1 - s1, p2 - s2) + max(s1, s2) + 1 > DECIMAL_DIGITS_MAX


def _result_scale(each: Expr) -> int:
    return (decimal_of(each.type) or (0, 0))[1]


def _native_decimals(sign: str) -> Callable[[DuckCall], str]:
    def text(call: DuckCall) -> str:
        left, right = call.args
        (p1, s1), (p2, _) = call.digits(0), call.digits(1)
        if max(p1, p2) <= NATIVE_DIGITS < (decimal_of(call.type) or (0, 0))[0]:
            left = cast(left, f"decimal({NATIVE_DIGITS + 1},{s1})")
        return cast(f"({left} {sign} {right})", call.type)

    return text


def _common(call: DuckCall) -> tuple[Digits, Digits, int]:
    """Return the digits of two decimals (or whole numbers) with the same places, and these."""
    (p1, s1), (p2, s2) = call.digits(0), call.digits(1)
    scale = max(s1, s2)
    left, right = unscaled(call.args[0], p1, s1), unscaled(call.args[1], p2, s2)
    return left.shifted(scale - s1), right.shifted(scale - s2), scale


def _computed(left: Digits, sign: str, right: Digits, most: int) -> Digits:
    return Digits(f"({left.text} {sign} {right.text})", most)


def _capped_sum(sign: str) -> Callable[[DuckCall], str]:
    def text(call: DuckCall) -> str:
        left, right, scale = _common(call)
        return rescaled(_computed(left, sign, right, max(left.most, right.most) + 1), scale, call.type)

    return text


def _capped_product(call: DuckCall) -> str:
    (p1, s1), (p2, s2) = call.digits(0), call.digits(1)
    left, right = unscaled(call.args[0], p1, s1), unscaled(call.args[1], p2, s2)
    return rescaled(_computed(left, "*", right, left.most + right.most), s1 + s2, call.type)


def _zero(call: DuckCall) -> str:
    """Return the case of a divisor of zero: an error, or null where Spark is lenient."""
    return f"WHEN {call.args[1]} = 0 THEN {raised('division by zero') if call.ansi else 'NULL'}"


def _undivided(call: DuckCall, text: str) -> str:
    return f"(CASE {_zero(call)} ELSE {text} END)"


def _divided_decimals(call: DuckCall) -> str:
    (p1, s1), (p2, s2) = call.digits(0), call.digits(1)
    places = _result_scale(call.expression) - s1 + s2
    found = quotient(unscaled(call.args[0], p1, s1), places, unscaled(call.args[1], p2, s2), call.type)
    return _undivided(call, found)


def _whole_quotient(call: DuckCall) -> str:
    left, right, _ = _common(call)
    return _undivided(call, cast(f"({left.text} // {right.text})", "long"))


def _remainder_of_ints(call: DuckCall) -> str:
    left, right = call.args
    minus = f"WHEN {right} = -1 AND {left} IS NOT NULL THEN {cast('0', call.type)}"
    return f"(CASE {_zero(call)} {minus} ELSE {left} % {right} END)"


def _remainder_of_decimals(call: DuckCall) -> str:
    left, right, scale = _common(call)
    return _undivided(call, rescaled(_computed(left, "%", right, right.most), scale, call.type))


def _pmod(call: DuckCall) -> str:
    left, right = call.args
    return f"(CASE {_zero(call)} WHEN {left} % {right} < 0 THEN {left} % {right} + {right} ELSE {left} % {right} END)"


def _places(each: Expr) -> int:
    return whole_constant(each.args[1]) or 0


def _rounded_double(call: DuckCall) -> str:
    """Return a double rounded half up as its shortest text has it, which is how Java rounds.

    Doubles that are whole for their size stay. DuckDB reads no decimal rightly from a text with a negative exponent.
    """
    value, places = call.args[0], min(max(_places(call.expression), 0), _PLACES_MAX)
    text = f"CAST(abs({value}) AS VARCHAR)"
    digits = f"replace(split_part({text}, 'e-', 1), '.', '')"
    zeros = f"repeat('0', CAST(split_part({text}, 'e-', 2) AS INTEGER) - 1)"
    plain = f"(CASE WHEN contains({text}, 'e-') THEN '0.' || {zeros} || {digits} ELSE {text} END)"
    found = f"CAST(CAST(CAST({plain} AS DECIMAL(38,{places})) AS VARCHAR) AS DOUBLE)"
    stays = f"NOT isfinite({value}) OR abs({value}) >= {EXACT_DOUBLE_MAX}"
    small = f"WHEN abs({value}) < 5e-{places + 1} THEN CAST(0 AS DOUBLE)"
    return f"(CASE {small} WHEN {stays} THEN {value} ELSE sign({value}) * {found} END)"


_NEGATED = (
    Refusal(f"more than {_NEGATED_DIGITS} digits", lambda each: (decimal_of(each.type) or (0, 0))[0] > _NEGATED_DIGITS),
)
_ROUNDED = (Refusal("negative places", lambda each: _places(each) < 0),)
_OTHER_PLACES = (Refusal(f"places below 0 or above {_PLACES_MAX}", lambda each: not 0 <= _places(each) <= _PLACES_MAX),)


def _of_capped(each: Expr) -> bool:
    return of_decimals(each) and _is_capped(each)


_SUMS = tuple(
    entry
    for op, sign in (("Add", "+"), ("Subtract", "-"), ("Multiply", "*"))
    for entry in (
        Entry(op, "whole numbers", of_ints, between(sign)),
        Entry(op, "floats", of_floats, between(sign)),
        Entry(
            op,
            "decimals of more than 38 digits",
            _of_capped,
            _capped_product if op == "Multiply" else _capped_sum(sign),
        ),
        Entry(op, "decimals", of_decimals, _native_decimals(sign)),
    )
)

_ARITHMETIC = (
    *_SUMS,
    Entry("Divide", "floats", of_floats, lambda call: _undivided(call, between("/")(call))),
    Entry("Divide", "decimals", of_decimals, _divided_decimals),
    Entry("IntegralDivide", "whole numbers", of_ints, _whole_quotient),
    Entry("IntegralDivide", "decimals", of_decimals, _whole_quotient),
    Entry("Remainder", "whole numbers", of_ints, _remainder_of_ints),
    Entry("Remainder", "floats", of_floats, lambda call: _undivided(call, between("%")(call))),
    Entry("Remainder", "decimals", of_decimals, _remainder_of_decimals),
    Entry(
        "Pmod",
        "whole numbers",
        of_ints,
        _pmod,
        guards=(RowGuard("a negative divisor", lambda call: f"{call.args[1]} < 0"),),
    ),
    Entry("UnaryMinus", "whole numbers", of_ints, lambda call: f"(-{call.args[0]})"),
    Entry("UnaryMinus", "other numbers", anything, lambda call: f"(-{call.args[0]})", _NEGATED),
    Entry("Abs", "whole numbers", of_ints, same("abs")),
    Entry("Abs", "other numbers", anything, same("abs"), _NEGATED),
    Entry("Sqrt", "doubles", anything, same("sqrt")),
    Entry("Round", "whole numbers", first_int, _unchanged, _ROUNDED),
    Entry(
        "Round",
        "decimals",
        first_decimal,
        lambda call: cast(f"round({call.args[0]}, {_places(call.expression)})", call.type),
        _ROUNDED,
    ),
    Entry("Round", "doubles", of_first("double"), _rounded_double, _OTHER_PLACES),
    *(
        entry
        for op in ("Floor", "Ceil")
        for entry in (
            Entry(op, "whole numbers", of_ints, lambda call: cast(call.args[0], call.type)),
            Entry(op, "decimals", of_decimals, lambda call: cast(spelled(call, call.expression.op), call.type)),
        )
    ),
    Entry("BitwiseAnd", "whole numbers", of_ints, between("&")),
    Entry("BitwiseOr", "whole numbers", of_ints, between("|")),
    Entry("BitwiseXor", "whole numbers", of_ints, same("xor")),
    Entry(
        "ShiftRight",
        "whole numbers",
        of_ints,
        between(">>"),
        (Refusal("another number of bits", lambda each: not 0 <= (whole_constant(each.args[1]) or 0) < _BITS),),
    ),
)

# --- texts ------------------------------------------------------------------------------------------------------------

_NOT_ASCII = (RowGuard("not ASCII", lambda call: f"strlen({call.args[0]}) <> length({call.args[0]})"),)
"""A guard of functions for which the two engines have other tables of Unicode."""


def _substring(call: DuckCall) -> str:
    """Return a part of a text; a position of 0 is that of the first character."""
    text, position, length = call.args
    begin = f"(CASE WHEN {position} = 0 THEN 1 ELSE {position} END)"
    return f"substring({text}, {begin}, {length})"


def _is_tangled(pattern: str) -> bool:
    """Return whether matching a pattern may take longer than in proportion to a text: DuckDB tries again from each
    letter for each `%`, but in patterns without `_`, and interrupts nothing within a text.
    """
    return "_" in pattern and pattern.rstrip("%").count("%") > 1


_PATTERN = (
    Refusal("a pattern that is no constant", lambda each: constant(each.args[1]) is None),
    Refusal("a pattern with an escape", lambda each: "\\" in (constant(each.args[1]) or "")),
    Refusal("another escape", lambda each: each.info != ("\\",)),
    Refusal("a pattern of several parts", lambda each: _is_tangled(constant(each.args[1]) or "")),
    # Spark takes such a letter for two, which nothing is equal to.
    Refusal("a pattern beyond 16 bits", lambda each: any(ord(one) > _SHORT for one in constant(each.args[1]) or "")),
)
_NEGATIVE_LENGTH = (RowGuard("a negative length", lambda call: f"{call.args[2]} < 0"),)

_TEXTS = (
    Entry("Upper", "texts", _of_text, same("upper"), guards=_NOT_ASCII),
    Entry("Lower", "texts", _of_text, same("lower"), guards=_NOT_ASCII),
    Entry("Md5", "texts", _of_text, same("md5")),
    Entry("Sha256", "texts", _of_text, same("sha256")),
    Entry("Length", "texts", _of_text, lambda call: cast(spelled(call, "length"), call.type)),
    Entry("OctetLength", "texts", _of_text, lambda call: cast(spelled(call, "strlen"), call.type)),
    Entry("Substring", "texts", of_first("string"), _substring, guards=_NEGATIVE_LENGTH),
    Entry("Concat", "texts", _of_text, between("||")),
    Entry("ConcatWs", "texts", _of_text, same("concat_ws")),
    Entry("StringTrim", "texts", _of_text, lambda call: f"trim({call.args[0]}, ' ')"),
    Entry("StringTrimLeft", "texts", _of_text, lambda call: f"ltrim({call.args[0]}, ' ')"),
    Entry("StringTrimRight", "texts", _of_text, lambda call: f"rtrim({call.args[0]}, ' ')"),
    Entry("StartsWith", "texts", _of_text, same("starts_with")),
    Entry("EndsWith", "texts", _of_text, same("ends_with")),
    Entry("Contains", "texts", _of_text, same("contains")),
    Entry("StringInstr", "texts", _of_text, lambda call: cast(spelled(call, "instr"), call.type)),
    Entry("Like", "texts", _of_text, between("LIKE"), _PATTERN),
)

# --- dates and times --------------------------------------------------------------------------------------------------

_TIME_UNITS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    "QUARTER": "quarter",
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    "WEEK": "week",
}
_MOMENT_UNITS = {
    **_TIME_UNITS,
    **dict.fromkeys(("DAY", "DD"), "day"),
    **{each.upper(): each for each in ("hour", "minute", "second", "millisecond", "microsecond")},
}
_PATTERN_PARTS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_PATTERN_TOKENS = re.compile(r"yyyy|MM|dd|HH|mm|ss|[-/:. ]")


def _unit(each: Expr, place: int) -> str:
    return (constant(each.args[place]) or "").upper()


def _truncated(call: DuckCall) -> str:
    place = 1 if call.expression.op == "TruncDate" else 0
    found = f"date_trunc('{_MOMENT_UNITS.get(_unit(call.expression, place), 'day')}', {call.args[1 - place]})"
    return cast(found, call.type)


def _format(each: Expr) -> str | None:
    """Return DuckDB's form of a pattern of dates, or None if it has other letters."""
    pattern = constant(each.args[1]) or ""
    tokens = _PATTERN_TOKENS.findall(pattern)
    if not pattern or "".join(tokens) != pattern:
        return None
    return "".join(_PATTERN_PARTS.get(token, token) for token in tokens)


def _part(function: str) -> Callable[[DuckCall], str]:
    return lambda call: cast(spelled(call, function), call.type)


def _later(unit: str) -> Callable[[DuckCall], str]:
    """Return the text of a time that is so many units later, which are a property and no argument."""
    return lambda call: f"({call.args[0]} + to_{unit}({call.expression.info[0]}))"


_FOUR_DIGITS = (RowGuard("a year without four digits", lambda call: f"year({call.args[0]}) NOT BETWEEN 1000 AND 9999"),)

_DATES = (
    *(
        Entry(op, "times", of_types(*TIMES), _part(function))
        for op, function in (
            ("Year", "year"),
            ("Month", "month"),
            ("DayOfMonth", "day"),
            ("Quarter", "quarter"),
            ("WeekOfYear", "weekofyear"),
            ("DayOfYear", "dayofyear"),
            ("YearOfWeek", "isoyear"),
            ("Hour", "hour"),
            ("Minute", "minute"),
            ("Second", "second"),
        )
    ),
    Entry("DayOfWeek", "times", of_types(*TIMES), lambda call: cast(f"(dayofweek({call.args[0]}) + 1)", call.type)),
    Entry("WeekDay", "times", of_types(*TIMES), lambda call: cast(f"(isodow({call.args[0]}) - 1)", call.type)),
    Entry("LastDay", "dates", of_types("date"), same("last_day")),
    Entry("DateAdd", "dates", of_first("date"), lambda call: "({} + CAST({} AS INTEGER))".format(*call.args)),
    Entry("DateSub", "dates", of_first("date"), lambda call: "({} - CAST({} AS INTEGER))".format(*call.args)),
    Entry("DateDiff", "dates", of_types("date"), lambda call: cast(between("-")(call), call.type)),
    Entry(
        "AddMonths",
        "dates",
        of_first("date"),
        lambda call: "CAST({} + to_months(CAST({} AS INTEGER)) AS DATE)".format(*call.args),
    ),
    *(
        Entry(op, "times of day", of_types(*MOMENTS), _later(unit))
        for op, unit in (("AddMicroseconds", "microseconds"), ("AddCalendarMonths", "months"))
    ),
    Entry(
        "TruncDate",
        "dates",
        of_first("date"),
        _truncated,
        (Refusal("another unit", lambda each: _unit(each, 1) not in _TIME_UNITS),),
    ),
    Entry(
        "TruncTimestamp",
        "times of day",
        lambda each: each.args[1].type in MOMENTS,
        _truncated,
        (Refusal("another unit", lambda each: _unit(each, 0) not in _MOMENT_UNITS),),
    ),
    Entry(
        "DateFormatClass",
        "times of day",
        of_first(*MOMENTS),
        lambda call: f"strftime({call.args[0]}, '{_format(call.expression) or ''}')",
        (Refusal("another pattern", lambda each: _format(each) is None),),
        _FOUR_DIGITS,
    ),
)

# --- arrays -----------------------------------------------------------------------------------------------------------

_COMPARED_MAX = 256
"""Elements of an array that are compared with each other; DuckDB interrupts nothing within an array."""


def _outside(call: DuckCall) -> str:
    """Return what is at a place where there is no element: an error, or null where Spark is lenient."""
    return raised("no element at this place") if call.ansi else "NULL"


def _item(call: DuckCall) -> str:
    """Return the element at a place from 0 on. Spark takes its last 32 bits, by which one below 0 is beyond the end."""
    array, place = call.args[0], f"({cast(call.args[1], 'long')} & {2**32 - 1})"
    return f"(CASE WHEN {place} >= len({array}) THEN {_outside(call)} ELSE list_extract({array}, {place} + 1) END)"


def _element_at(call: DuckCall) -> str:
    """Return the element at a place from 1 on, or from the end. The least one has no absolute value, and raises."""
    array, place = call.args
    none = f"WHEN {place} = 0 AND {array} IS NOT NULL THEN {raised('an element at 0')}"
    outside = f"WHEN abs({place}) > len({array}) THEN {_outside(call)}"
    return f"(CASE {none} {outside} ELSE list_extract({array}, {place}) END)"


def _contained(call: DuckCall) -> str:
    """Return whether an element is equal to a value; null if none is, but an element or the value is null."""
    array, value = call.args
    absent = f"WHEN {value} IS NOT NULL AND list_count({array}) = len({array}) THEN FALSE"
    return f"(CASE WHEN list_contains({array}, {value}) THEN TRUE {absent} END)"


def _sorted(call: DuckCall) -> str:
    order = "'ASC', 'NULLS FIRST'" if call.expression.info[0] else "'DESC', 'NULLS LAST'"
    return f"list_sort({call.args[0]}, {order})"


def _distinct(call: DuckCall) -> str:
    """Return the elements that no equal one stands before. The array is bound to a name, and so computed once."""
    few = "list_filter(every, lambda each, place: list_position(every, each) = place)"
    return f"list_extract(list_transform([{call.args[0]}], lambda every: {few}), 1)"


def _joined(array: str, delimiter: str) -> str:
    """Return the elements that are not null as one text, or null if there are none."""
    return f"array_to_string({array}, {delimiter})"


def _with_arrays(call: DuckCall) -> str:
    """Return texts, and those of arrays, as one text."""
    delimiter, *parts = call.args
    kinds = (each.type for each in call.expression.args[1:])
    few = (
        part if kind == "string" else f"(CASE WHEN list_count({part}) > 0 THEN {_joined(part, delimiter)} END)"
        for part, kind in zip(parts, kinds, strict=True)
    )
    return f"concat_ws({delimiter}, {', '.join(few)})"


_ARRAYS = (
    Entry("CreateArray", "", anything, lambda call: cast(f"[{', '.join(call.args)}]", call.type), of_arrays=True),
    Entry("Size", "", anything, lambda call: cast(spelled(call, "len"), call.type), of_arrays=True),
    Entry("GetArrayItem", "", anything, _item, of_arrays=True),
    Entry("ElementAt", "", anything, _element_at, of_arrays=True),
    Entry("ArrayContains", "", anything, _contained, of_arrays=True),
    Entry("ArrayMin", "", anything, same("list_min"), of_arrays=True),
    Entry("ArrayMax", "", anything, same("list_max"), of_arrays=True),
    Entry("SortArray", "", anything, _sorted, of_arrays=True),
    Entry(
        "ArrayDistinct",
        "",
        anything,
        _distinct,
        guards=(RowGuard("many elements", lambda call: f"len({call.args[0]}) > {_COMPARED_MAX}"),),
        of_arrays=True,
    ),
    Entry(
        "ArrayJoin",
        "",
        of_first("array<string>"),
        lambda call: f"(CASE WHEN {call.args[0]} IS NOT NULL THEN coalesce({_joined(*call.args)}, '') END)",
        delimited(1),
        of_arrays=True,
    ),
    Entry("ConcatWs", "texts and arrays", of_first("string"), _with_arrays, delimited(0), of_arrays=True),
)

# --- casts ------------------------------------------------------------------------------------------------------------

_EXACT_DIGITS = 15
"""Digits of a decimal of which every value is a double, and which both engines round alike."""

_INTS = frozenset(DIGITS)
_DECIMALS = frozenset({"decimal"})
_TEXT, _DATE, _BOOLEAN = frozenset({"string"}), frozenset({"date"}), frozenset({"boolean"})


def _is_one(kind: str, kinds: frozenset[str]) -> bool:
    return kind in kinds or ("decimal" in kinds and decimal_of(kind) is not None)


def _from(source: frozenset[str], target: frozenset[str]) -> Callable[[Expr], bool]:
    return lambda each: _is_one(each.args[0].type, source) and _is_one(each.type, target)


def _plain(call: DuckCall) -> str:
    return cast(call.args[0], call.type)


def _whole_part(call: DuckCall) -> str:
    """Return the whole part; DuckDB alone would round."""
    return cast(f"trunc({call.args[0]})", call.type)


def _digits_of_source(each: Expr) -> tuple[int, int]:
    return decimal_of(each.args[0].type) or (0, 0)


def _unlike(pattern: str) -> Callable[[DuckCall], str]:
    return lambda call: f"NOT regexp_full_match({call.args[0]}, '{pattern}')"


_YEARS = (RowGuard("a year without four digits", lambda call: f"year({call.args[0]}) NOT BETWEEN 1 AND 9999"),)
_PLAIN_WHOLE = (RowGuard("a text of other than plain digits", _unlike("-?[0-9]{1,18}")),)
_PLAIN_DIGITS = (RowGuard("a text of other than plain digits", _unlike("-?[0-9]{1,18}(\\.[0-9]{1,18})?")),)
_PLAIN_DATE = (RowGuard("a text of another form", _unlike("[0-9]{4}-[0-9]{2}-[0-9]{2}")),)

_CASTS = (
    Entry("Cast", "whole numbers", _from(_INTS, _INTS), _plain),
    Entry("Cast", "whole numbers as floats", _from(_INTS, FLOATS), _plain),
    Entry("Cast", "whole numbers as texts", _from(_INTS, _TEXT), _plain),
    Entry("Cast", "whole numbers as decimals", _from(_INTS, _DECIMALS), _plain),
    Entry("Cast", "decimals", _from(_DECIMALS, _DECIMALS), _plain),
    Entry(
        "Cast",
        "decimals as doubles",
        _from(_DECIMALS, frozenset({"double"})),
        _plain,
        (Refusal("more than 15 digits", lambda each: _digits_of_source(each)[0] > _EXACT_DIGITS),),
    ),
    Entry("Cast", "decimals as whole numbers", _from(_DECIMALS, _INTS), _whole_part),
    Entry(
        "Cast",
        "decimals as texts",
        _from(_DECIMALS, _TEXT),
        _plain,
        (Refusal("no whole digits", lambda each: len({*_digits_of_source(each)}) == 1),),
    ),
    Entry("Cast", "floats as doubles", _from(FLOATS, frozenset({"double"})), _plain),
    Entry("Cast", "floats as whole numbers", _from(FLOATS, _INTS), _whole_part),
    Entry("Cast", "dates as texts", _from(_DATE, _TEXT), _plain, guards=_YEARS),
    Entry("Cast", "dates as times of day", _from(_DATE, MOMENTS), _plain),
    Entry("Cast", "times of day as dates", _from(MOMENTS, _DATE), _plain),
    Entry("Cast", "times of day", _from(MOMENTS, MOMENTS), _unchanged),
    Entry("Cast", "times of day as texts", _from(MOMENTS, _TEXT), _plain, guards=_YEARS),
    Entry("Cast", "texts as dates", _from(_TEXT, _DATE), _plain, guards=_PLAIN_DATE),
    Entry("Cast", "texts as whole numbers", _from(_TEXT, _INTS), _plain, guards=_PLAIN_WHOLE),
    Entry("Cast", "texts as decimals", _from(_TEXT, _DECIMALS), _plain, guards=_PLAIN_DIGITS),
    Entry("Cast", "booleans as texts", _from(_BOOLEAN, _TEXT), _plain),
    Entry("Cast", "booleans as whole numbers", _from(_BOOLEAN, _INTS), _plain),
    Entry("Cast", "whole numbers as booleans", _from(_INTS, _BOOLEAN), lambda call: f"({call.args[0]} <> 0)"),
)

SCALARS = (*_LOGIC, *_ARITHMETIC, *_TEXTS, *_DATES, *_ARRAYS, *_CASTS)
