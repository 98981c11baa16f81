"""The vocabulary of expressions: each operation with its arguments, its properties, and the rule of its result's type.

The rules are Spark's (ANSI, with its loss of scale where 38 digits do not suffice). So the type of an expression that
was stored somewhere follows from those of the columns, and nobody's word is taken for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from iscp.algebra.algebra import Expr, Info

OTHER = "other"
"""The type of values that only Spark has: other arrays, structs, intervals, collated texts, CHAR(n)."""

VOID = "void"
"""The type of a null that nothing was made of."""

DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
"""The whole numbers, with the most digits of each."""

FLOATS = frozenset({"float", "double"})
MOMENTS = frozenset({"timestamp", "timestamp_ntz"})
TIMES = MOMENTS | {"date"}
PLAIN_TYPES = frozenset({*DIGITS, *FLOATS, *TIMES, "string", "boolean", "binary", VOID, OTHER})

DECIMAL_DIGITS_MAX = 38
"""Digits of a decimal, in Spark and in DuckDB; of a result with more, Spark gives up scale."""

_LEAST_SCALE = 6
"""The scale that Spark leaves to a result with too many digits."""

ANSI, LEGACY, TRY = "ANSI", "LEGACY", "TRY"
MODES = (ANSI, LEGACY, TRY)
"""The meaning of an overflow: an error, a wrapped value, or null."""

_ARRAY = re.compile(r"array<([a-z]+|decimal\(\d{1,2},\d{1,2}\))>")
_ELEMENTS = frozenset({*DIGITS, "string", "boolean"})

_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")


class UntypedError(ValueError):
    """An expression that no rule gives a type."""


@lru_cache(maxsize=1024)
def decimal_of(kind: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type, or None for another type."""
    found = _DECIMAL.fullmatch(kind)
    if found is None:
        return None
    precision, scale = int(found[1]), int(found[2])
    return (precision, scale) if 0 < precision <= DECIMAL_DIGITS_MAX and scale <= precision else None


@lru_cache(maxsize=1024)
def element_of(kind: str) -> str | None:
    """Return the type of the elements of an array, which may be null and whose equality is that of their bits; None for
    another type.
    """
    found = _ARRAY.fullmatch(kind)
    return found[1] if found and (found[1] in _ELEMENTS or decimal_of(found[1])) else None


def is_type(kind: str) -> bool:
    """Return whether it is the name of a type, as columns have it."""
    return kind in PLAIN_TYPES or decimal_of(kind) is not None or element_of(kind) is not None


def type_of_delta(kind: object) -> str:
    """Return the name of a type as the schema of a table has it; of a nested one that is not known it is `OTHER`."""
    match kind:
        case str():
            return kind
        case {"type": "array", "elementType": str(element), "containsNull": True}:
            return name if element_of(name := f"array<{element}>") else OTHER
        case _:
            return OTHER


def type_for_delta(kind: str) -> object:
    """Return the type as the schema of a table has it."""
    element = element_of(kind)
    return kind if element is None else {"type": "array", "elementType": element, "containsNull": True}


def bounded(precision: int, scale: int) -> str:
    """Return the decimal type with these digits, of which those above 38 are cut off."""
    return f"decimal({min(precision, DECIMAL_DIGITS_MAX)},{min(scale, DECIMAL_DIGITS_MAX)})"


def adjusted(precision: int, scale: int) -> str:
    """Return the decimal type of a result of so many digits: above 38, scale goes before whole digits."""
    if precision <= DECIMAL_DIGITS_MAX:
        return f"decimal({precision},{scale})"
    kept = max(DECIMAL_DIGITS_MAX - (precision - scale), min(scale, _LEAST_SCALE))
    return f"decimal({DECIMAL_DIGITS_MAX},{kept})"


Result = Callable[[Sequence[Expr], str], str]
"""A rule: the type of a result, of the arguments and of the type that it is said to have. Raises UntypedError."""


@dataclass(frozen=True, slots=True)
class OperationRule:
    """An operation: how many arguments it takes at `least` and at `most`, which properties, and the `result`'s type."""

    least: int
    most: int
    result: Result
    properties: tuple[Callable[[Info], bool], ...] = ()


def is_mode(value: Info) -> bool:
    return value in MODES


def is_flag(value: Info) -> bool:
    return isinstance(value, bool)


def is_text(value: Info) -> bool:
    return isinstance(value, str)


def is_whole(value: Info) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_bound(value: Info) -> bool:
    """Return whether it bounds a frame: rows or values from the current one, or None for all."""
    return value is None or is_whole(value)


def result_type(expression: Expr) -> str:
    """Return the type that the rules give an expression whose arguments have theirs. Raises UntypedError."""
    rule = OPERATIONS.get(expression.op)
    if rule is None:
        raise UntypedError(f"{expression.op} is no operation")
    if not rule.least <= len(expression.args) <= rule.most:
        raise UntypedError(f"{expression.op} has {len(expression.args)} arguments")
    checks = zip(rule.properties, expression.info, strict=False)
    if len(rule.properties) != len(expression.info) or not all(fits(each) for fits, each in checks):
        raise UntypedError(f"{expression.op} has other properties")
    if expression.op == "ScalarSubquery":
        if expression.plan is None or len(expression.plan.columns) != 1:
            raise UntypedError("ScalarSubquery has no plan of one column")
        return expression.plan.columns[0].type
    if expression.plan is not None:
        raise UntypedError(f"{expression.op} has a plan")
    return rule.result(expression.args, expression.type)


# --- rules ------------------------------------------------------------------------------------------------------------


def _said(_: Sequence[Expr], said: str) -> str:
    if not is_type(said):
        raise UntypedError(f"{said[:40]} is no type")
    return said


def _field(args: Sequence[Expr], said: str) -> str:
    if args[0].type != OTHER:
        raise UntypedError(f"{args[0].type} has no fields")
    return _said(args, said)


def _first(args: Sequence[Expr], _: str) -> str:
    return args[0].type


def _same(args: Sequence[Expr], _: str) -> str:
    kinds = {each.type for each in args}
    if len(kinds) > 1:
        raise UntypedError("the arguments have several types")
    return args[0].type


def _fixed(kind: str, *takes: str) -> Result:
    """Return the rule of a result that has always this type; `takes` are the types of arguments, if only some do."""

    def result(args: Sequence[Expr], _: str) -> str:
        if takes and not all(each.type in takes for each in args):
            raise UntypedError("an argument has another type")
        return kind

    return result


def _compared(args: Sequence[Expr], said: str) -> str:
    _same(args, said)
    return "boolean"


def _branches(args: Sequence[Expr], said: str) -> str:
    """Return the type of CASE: conditions and values by turns, and the ELSE last."""
    pairs = len(args) // 2
    if any(args[2 * place].type != "boolean" for place in range(pairs)):
        raise UntypedError("a condition is no boolean")
    return _same([*(args[2 * place + 1] for place in range(pairs)), *args[2 * pairs :]], said)


def _arithmetic(digits: Callable[[int, int, int, int], str]) -> Result:
    def result(args: Sequence[Expr], said: str) -> str:
        left, right = (decimal_of(each.type) for each in args)
        if left and right:
            return digits(*left, *right)
        kind = _same(args, said)
        if kind not in DIGITS and kind not in FLOATS:
            raise UntypedError(f"no arithmetic of {kind}")
        return kind

    return result


def _sum_digits(p1: int, s1: int, p2: int, s2: int) -> str:
    scale = max(s1, s2)
    return adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)


def _product_digits(p1: int, s1: int, p2: int, s2: int) -> str:
    return adjusted(p1 + p2 + 1, s1 + s2)


def _quotient_digits(p1: int, s1: int, p2: int, s2: int) -> str:
    scale = max(_LEAST_SCALE, s1 + p2 + 1)
    return adjusted(p1 - s1 + s2 + scale, scale)


def _remainder_digits(p1: int, s1: int, p2: int, s2: int) -> str:
    scale = max(s1, s2)
    return adjusted(min(p1 - s1, p2 - s2) + scale, scale)


def _number(args: Sequence[Expr], _: str) -> str:
    kind = args[0].type
    if kind not in DIGITS and kind not in FLOATS and not decimal_of(kind):
        raise UntypedError(f"{kind} is no number")
    return kind


def _rounded(args: Sequence[Expr], said: str) -> str:
    kind, places = _number(args, said), args[1]
    if (digits := decimal_of(kind)) is None:
        return kind
    if places.op != "Literal" or not isinstance(places.info[0], str) or not re.fullmatch(r"-?\d{1,4}", places.info[0]):
        raise UntypedError("places that are no constant")
    (precision, scale), kept = digits, int(places.info[0])
    whole = precision - scale + 1
    if kept < 0:
        return bounded(max(whole, 1 - kept), 0)
    return bounded(whole + min(scale, kept), min(scale, kept))


def _whole(args: Sequence[Expr], said: str) -> str:
    kind = _number(args, said)
    digits = decimal_of(kind)
    if digits is None:
        return "long"
    return bounded(digits[0] - digits[1] + 1, 0) if digits[1] else kind


def _sum(args: Sequence[Expr], said: str) -> str:
    kind = _number(args, said)
    if digits := decimal_of(kind):
        return bounded(digits[0] + 10, digits[1])
    return "long" if kind in DIGITS else "double"


def _average(args: Sequence[Expr], said: str) -> str:
    digits = decimal_of(_number(args, said))
    return bounded(digits[0] + 4, digits[1] + 4) if digits else "double"


def _aggregate(args: Sequence[Expr], _: str) -> str:
    if args[0].op not in AGGREGATES:
        raise UntypedError(f"{args[0].op} is no aggregate")
    if len(args) > 1 and args[1].type != "boolean":
        raise UntypedError("the filter is no boolean")
    return args[0].type


def _window(args: Sequence[Expr], _: str) -> str:
    if args[0].op not in RANKINGS and args[0].op != "AggregateExpression":
        raise UntypedError(f"{args[0].op} is no function of windows")
    return args[0].type


def _offset(args: Sequence[Expr], _: str) -> str:
    if args[1].type not in (VOID, args[0].type):
        raise UntypedError("the default has another type")
    return args[0].type


def _by_number(args: Sequence[Expr], _: str) -> str:
    """Return the type of the value in the row of a number."""
    if args[1].type != "integer":
        raise UntypedError(f"{args[1].type} is no number of rows")
    return args[0].type


def _array(args: Sequence[Expr], said: str) -> str:
    """Return the type of an array of these elements; one of none has the type that it is said to have."""
    kind = f"array<{_same(args, said)}>" if args else said
    if element_of(kind) is None:
        raise UntypedError(f"no array of {kind[:40]}")
    return kind


def _element(args: Sequence[Expr], _: str) -> str:
    """Return the type of the elements of the first argument."""
    element = element_of(args[0].type)
    if element is None:
        raise UntypedError(f"{args[0].type} has no elements")
    return element


def _of_array(kind: str) -> Result:
    """Return the rule of what is computed of one array and has always this type."""

    def result(args: Sequence[Expr], said: str) -> str:
        _element(args, said)
        return kind

    return result


def _list(args: Sequence[Expr], _: str) -> str:
    return _array(args[:1], "")


def _text(args: Sequence[Expr], _: str) -> str:
    if any(each.type != "string" for each in args[:2]):
        raise UntypedError("a value that is no text")
    return "string"


def _same_array(args: Sequence[Expr], said: str) -> str:
    _element(args, said)
    return args[0].type


def _item(args: Sequence[Expr], said: str) -> str:
    """Return the type of the element at a place."""
    if args[1].type not in DIGITS:
        raise UntypedError(f"{args[1].type} is no place")
    return _element(args, said)


def _among(args: Sequence[Expr], said: str) -> str:
    if _element(args, said) != args[1].type:
        raise UntypedError("the value has another type than the elements")
    return "boolean"


def _moment(args: Sequence[Expr], _: str) -> str:
    if args[0].type not in MOMENTS:
        raise UntypedError(f"{args[0].type} is no time of day")
    return args[0].type


_TEXT = ("string",)
_TEXTS = ("string", "array<string>")
_WHERE = OperationRule(2, 2, _compared)
_PART = OperationRule(1, 1, _fixed("integer", *TIMES))
_MATCH = OperationRule(2, 2, _fixed("boolean", *_TEXT))
_CHANGED = OperationRule(1, 1, _fixed("string", *_TEXT))
_DAYS = OperationRule(2, 2, _fixed("date", "date", "integer", "short", "byte"))
_BITS = OperationRule(2, 2, _same)
_MANY = 10_000
_MOMENTS = OperationRule(1, 1, _fixed("double", "double"), (is_flag,))
_EXACT = OperationRule(1, 1, _fixed("double", *DIGITS, *FLOATS))

AGGREGATES: Mapping[str, OperationRule] = {
    "Count": OperationRule(1, _MANY, _fixed("long")),
    "Sum": OperationRule(1, 1, _sum, (is_mode,)),
    "Average": OperationRule(1, 1, _average, (is_mode,)),
    "Min": OperationRule(1, 1, _first),
    "Max": OperationRule(1, 1, _first),
    "First": OperationRule(1, 1, _first, (is_flag,)),
    "Last": OperationRule(1, 1, _first, (is_flag,)),
    **dict.fromkeys(("MaxBy", "MinBy"), OperationRule(2, 2, _by_number)),
    # Of rows in the order of further arguments, which is one in which no two rows differ unseen.
    **dict.fromkeys(("FirstInOrder", "LastInOrder"), OperationRule(2, _MANY, _first)),
    "ListInOrder": OperationRule(2, _MANY, _list, (is_flag,)),  # of the values that are not null
    "TextInOrder": OperationRule(3, _MANY, _text, (is_flag,)),  # of texts that are not null, and what is between them
    "SingleValue": OperationRule(1, 1, _first),  # of the one row that the filter leaves of a group
    **dict.fromkeys(("StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"), _MOMENTS),
    # Those of iscp's own that decide something: exact sums, rounded once.
    **dict.fromkeys(("ExactSum", "ExactAverage", "ExactStddevSamp", "ExactStddevPop"), _EXACT),
    **dict.fromkeys(("ExactVarianceSamp", "ExactVariancePop"), _EXACT),
}
"""Functions of all rows of a group, or of a window's frame."""

RANKINGS: Mapping[str, OperationRule] = {
    **dict.fromkeys(("RowNumber", "Rank", "DenseRank"), OperationRule(0, 0, _fixed("integer"))),
    **dict.fromkeys(("PercentRank", "CumeDist"), OperationRule(0, 0, _fixed("double"))),
    "NTile": OperationRule(0, 0, _fixed("integer"), (is_whole,)),
    "NthValue": OperationRule(1, 1, _first, (is_whole, is_flag)),
    **dict.fromkeys(("Lag", "Lead"), OperationRule(2, 2, _offset, (is_whole, is_flag))),
}
"""Functions of a row's place in its window."""

OPERATIONS: Mapping[str, OperationRule] = {
    **AGGREGATES,
    **RANKINGS,
    "AggregateExpression": OperationRule(1, 2, _aggregate, (is_flag,)),
    "WindowExpression": OperationRule(1, 1, _window, (is_text, _is_bound, _is_bound)),
    "Opaque": OperationRule(0, _MANY, _said, (is_text, is_text)),
    "Column": OperationRule(0, 0, _said, (is_whole, is_text)),
    "Alias": OperationRule(1, 1, _first, (is_whole, is_text)),
    "Literal": OperationRule(0, 0, _said, (lambda value: value is None or is_text(value),)),
    "SortOrder": OperationRule(1, 1, _first, (is_flag, is_flag)),
    "ScalarSubquery": OperationRule(0, 0, _said),
    "StructField": OperationRule(1, 1, _field, (is_text,)),
    **dict.fromkeys(("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"), _WHERE),
    **dict.fromkeys(("GreaterThan", "GreaterThanOrEqual"), _WHERE),
    **dict.fromkeys(("And", "Or"), OperationRule(2, _MANY, _fixed("boolean", "boolean"))),
    "Not": OperationRule(1, 1, _fixed("boolean", "boolean")),
    "IsNull": OperationRule(1, 1, _fixed("boolean")),
    "IsNotNull": OperationRule(1, 1, _fixed("boolean")),
    "IsNegativeZero": OperationRule(1, 1, _fixed("boolean", *FLOATS)),  # what ties of doubles are broken by
    "IsNaN": OperationRule(1, 1, _fixed("boolean", *FLOATS)),
    "In": OperationRule(1, _MANY, _compared),
    **dict.fromkeys(("StartsWith", "EndsWith", "Contains"), _MATCH),
    "Like": OperationRule(2, 2, _fixed("boolean", *_TEXT), (is_text,)),
    "Coalesce": OperationRule(1, _MANY, _same),
    "Greatest": OperationRule(2, _MANY, _same),
    "Least": OperationRule(2, _MANY, _same),
    "If": OperationRule(3, 3, lambda args, said: _branches(args, said)),
    "CaseWhen": OperationRule(2, _MANY, _branches),
    **dict.fromkeys(("KnownFloatingPointNormalized", "NormalizeNaNAndZero"), OperationRule(1, 1, _first)),
    "Add": OperationRule(2, 2, _arithmetic(_sum_digits), (is_mode,)),
    "Subtract": OperationRule(2, 2, _arithmetic(_sum_digits), (is_mode,)),
    "Multiply": OperationRule(2, 2, _arithmetic(_product_digits), (is_mode,)),
    "Divide": OperationRule(2, 2, _arithmetic(_quotient_digits), (is_mode,)),
    "Remainder": OperationRule(2, 2, _arithmetic(_remainder_digits), (is_mode,)),
    "Pmod": OperationRule(2, 2, _arithmetic(_remainder_digits), (is_mode,)),
    "IntegralDivide": OperationRule(2, 2, _fixed("long"), (is_mode,)),
    "UnaryMinus": OperationRule(1, 1, _number, (is_mode,)),
    "Abs": OperationRule(1, 1, _number, (is_mode,)),
    "Sqrt": OperationRule(1, 1, _fixed("double", "double")),
    "Round": OperationRule(2, 2, _rounded),
    "Floor": OperationRule(1, 1, _whole),
    "Ceil": OperationRule(1, 1, _whole),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _BITS),
    "ShiftRight": OperationRule(2, 2, _first),
    "Cast": OperationRule(1, 1, _said, (is_mode,)),
    **dict.fromkeys(("Upper", "Lower", "StringTrim", "StringTrimLeft", "StringTrimRight"), _CHANGED),
    **dict.fromkeys(("Md5", "Sha256"), _CHANGED),  # of a text's bytes in UTF-8
    "Substring": OperationRule(3, 3, _fixed("string", "string", "integer")),
    "Concat": OperationRule(1, _MANY, _fixed("string", *_TEXT)),
    "ConcatWs": OperationRule(1, _MANY, _fixed("string", *_TEXTS)),
    "Length": OperationRule(1, 1, _fixed("integer", *_TEXT)),
    "OctetLength": OperationRule(1, 1, _fixed("integer", *_TEXT)),
    "StringInstr": OperationRule(2, 2, _fixed("integer", *_TEXT)),
    **dict.fromkeys(("Year", "Month", "DayOfMonth", "Quarter", "WeekOfYear", "DayOfYear"), _PART),
    **dict.fromkeys(("DayOfWeek", "WeekDay", "YearOfWeek", "Hour", "Minute", "Second"), _PART),
    "LastDay": OperationRule(1, 1, _fixed("date", "date")),
    **dict.fromkeys(("DateAdd", "DateSub", "AddMonths"), _DAYS),
    "DateDiff": OperationRule(2, 2, _fixed("integer", "date")),
    "TruncDate": OperationRule(2, 2, _fixed("date", "date", "string")),
    "TruncTimestamp": OperationRule(2, 2, lambda args, _: args[1].type),
    **dict.fromkeys(("AddMicroseconds", "AddCalendarMonths"), OperationRule(1, 1, _moment, (is_whole,))),
    "DateFormatClass": OperationRule(2, 2, _fixed("string", "string", *MOMENTS)),
    "CreateArray": OperationRule(0, _MANY, _array),
    "Size": OperationRule(1, 1, _of_array("integer")),  # null of null
    **dict.fromkeys(("GetArrayItem", "ElementAt"), OperationRule(2, 2, _item, (is_mode,))),
    "ArrayContains": OperationRule(2, 2, _among),
    **dict.fromkeys(("ArrayMin", "ArrayMax"), OperationRule(1, 1, _element)),
    "SortArray": OperationRule(1, 1, _same_array, (is_flag,)),
    "ArrayDistinct": OperationRule(1, 1, _same_array),
    "ArrayJoin": OperationRule(2, 2, _fixed("string", *_TEXTS)),
}
"""All operations; what else Catalyst has is `Opaque`."""
