"""Rows that hold by a condition of a job, decided by DuckDB: only where Spark decides the same for certain.

A condition is read into the algebra here, without Spark, if it is made of columns, of constants of a column's own kind,
of comparisons of these, of few functions of texts and days, and of what AND, OR and NOT make of them. The grammar is
strict and small (`_Parser`): what it does not know it refuses. The text is made and computed as that of views is
(`iscp.algebra.duck_text`). All else (other functions, arithmetic, times, casts, whatever may be spelled in two
ways), and whatever raises, is for Spark to decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import NoReturn

import pyarrow as pa

from iscp.algebra.algebra import Expr, Filter, Project, Rel, Table, TypedColumn
from iscp.algebra.duck_engine import DUCK_ENGINE, NotComputedError
from iscp.algebra.duck_text import leaf_name, translate
from iscp.algebra.result_types import ANSI, DECIMAL_DIGITS_MAX, DIGITS, decimal_of

CONDITIONS_READ_MAX = 4096
"""Conditions that are cached as they were read; others are read again."""

CONDITION_CHARS_MAX = 16 * 1024
"""Characters of a condition that is read here; a longer one is Spark's."""

NESTED_MAX = 40
"""Brackets and NOTs within each other that are read here."""

VALUES_MAX = 100
"""Values after IN that are compared one by one; Spark has sets for more."""

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<text>'[^'\\]*'|"[^"\\]*")
    |`(?P<quoted>[^`]+)`
    |(?P<number>[0-9]+(?:\.[0-9]+)?)(?![\w.])
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign><=>|<>|!=|==|<=|>=|[=<>(),-])
    )""",
    re.VERBOSE | re.ASCII,
)
_WORDS = frozenset(
    {
        *("and", "or", "not", "is", "in", "between", "like", "null", "true", "false"),
        # Words that begin or end something else to Spark, where they are not quoted.
        *("case", "when", "then", "else", "end", "exists", "select", "from", "interval", "timestamp", "escape"),
        *("rlike", "regexp", "ilike", "collate", "div", "any", "some", "all", "distinct", "both", "leading"),
        *("trailing", "current_date", "current_timestamp", "current_time", "current_user", "session_user", "user"),
    }
)
_COMPARISONS = {
    "=": "EqualTo",
    "==": "EqualTo",
    "<>": "EqualTo",
    "!=": "EqualTo",
    "<=>": "EqualNullSafe",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
}
"""The algebra's name for each comparison; for those of `_CONTRARY` that of its contrary."""

_CONTRARY = ("<>", "!=")
_MIRRORED = {
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}
_MATCHES = {"startswith": "StartsWith", "endswith": "EndsWith", "contains": "Contains"}
_FUNCTIONS = {
    "lower": ("Lower", "string", "string"),
    "upper": ("Upper", "string", "string"),
    "trim": ("StringTrim", "string", "string"),
    "length": ("Length", "string", "integer"),
    "char_length": ("Length", "string", "integer"),
    "year": ("Year", "date", "integer"),
    "month": ("Month", "date", "integer"),
    "day": ("DayOfMonth", "date", "integer"),
    "dayofmonth": ("DayOfMonth", "date", "integer"),
}
"""The algebra's name for each function of one value, with the types of the value and the result."""

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?(?:[0-9]{1,15}|(?=[0-9.]{3,16}$)[0-9]+\.[0-9]+)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_FLOAT_WHOLE_MAX, _DOUBLE_WHOLE_MAX = 2**24, 2**53
_DECIMAL_WHOLE_MAX = 20
_EPOCH = date(1970, 1, 1).toordinal()
_PLACE = "\1place"


class _NotPlainError(Exception):
    """Spark has to decide."""


def is_plain(where: str) -> bool:
    """Return whether a condition is of the kind that `passing_rows` decides, if its columns' types are."""
    return _parsed(where) is not None


def columns_named(where: str) -> tuple[str, ...] | None:
    """Return the columns that a condition names, each once; None if it is not of the kind that is read here."""
    condition = _parsed(where)
    return None if condition is None else tuple(dict.fromkeys(_columns_of(condition)))


def _columns_of(part: _Node) -> Iterator[str]:
    if part.op == "column":
        yield part.text
    for each in part.args:
        yield from _columns_of(each)


def passing_rows(rows: pa.Table, where: str) -> pa.Table | None:
    """Return the rows for which `where` is true, in their order; None: Spark has to decide.

    No text in `rows` may have a collation, or a length that it is padded to.
    """
    kinds = tuple((each.name, kind) for each in rows.schema if (kind := _kind_of(each.type)) is not None)
    found = _read(where, kinds)
    if found is None or _PLACE in map(str.lower, rows.column_names):
        return None
    columns, text, leaf = found
    if not len(rows):
        return rows
    with DUCK_ENGINE.cursor() as cursor:
        places = pa.array(range(len(rows)), pa.int64())
        try:
            cursor.define(leaf, rows.select([*columns]).append_column(_PLACE, places))
            passing = cursor.rows(text, pa.schema([(_PLACE, pa.int64())]))
        except NotComputedError:
            return None
    return rows.take(passing[_PLACE].sort())


@lru_cache(maxsize=CONDITIONS_READ_MAX)
def _read(where: str, kinds: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], str, str] | None:
    """Return the columns that a condition reads, the statement for the places of the rows that pass, and the name of
    their rows in it; None: Spark has to decide. `kinds` are the types of columns by their names.
    """
    condition = _parsed(where)
    if condition is None:
        return None
    columns = [TypedColumn(number, name, kind) for number, (name, kind) in enumerate(kinds)]
    by_name = {each.name.lower(): each for each in columns}
    if len(by_name) < len(columns):
        return None
    try:
        passes = _ConditionTyping(by_name).condition(condition)
    except _NotPlainError:
        return None
    read = [each for each in columns if each.id in passes.references]
    place = TypedColumn(len(columns), _PLACE, "long")
    table = Table((), (*read, place), "rows")
    passing: Rel = Project((Filter((table,), passes),), (place.value,))
    text = translate(passing).text
    return None if text is None else (tuple(each.name for each in read), text, leaf_name(table))


def _kind_of(kind: pa.DataType) -> str | None:
    """Return the algebra's name of a type of which values are compared here, or None."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return {
        pa.int8(): "byte",
        pa.int16(): "short",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.string(): "string",
        pa.large_string(): "string",
        pa.date32(): "date",
        pa.bool_(): "boolean",
    }.get(kind)


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of a condition: `op` is a word of the parser's, `args` the parts within, and `text` what it names."""

    op: str
    args: tuple[_Node, ...] = ()
    text: str = ""


@lru_cache(maxsize=CONDITIONS_READ_MAX)
def _parsed(where: str) -> _Node | None:
    try:
        return _Parser(_tokens(where)).whole()
    except _NotPlainError:
        return None


def _tokens(where: str) -> list[tuple[str, str]]:
    """Return the tokens with their kinds. Raises _NotPlainError."""
    if len(where) > CONDITION_CHARS_MAX:
        _refuse()
    found, at, text = [], 0, where.rstrip(" \t\r\n")
    while at < len(text):
        token = _TOKEN.match(text, at) or _refuse()
        found.append((str(token.lastgroup), str(token[str(token.lastgroup)])))
        at = token.end()
    return found


def _refuse() -> NoReturn:
    raise _NotPlainError


class _Parser:
    """Reads tokens by Spark's precedence: OR, AND, NOT, and then comparisons. Raises _NotPlainError."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens, self._at, self._depth = [*tokens, ("end", "")], 0, 0

    def whole(self) -> _Node:
        found = self._read_any()
        return found if self._tokens[self._at][0] == "end" else _refuse()

    def _read_any(self) -> _Node:
        parts = [self._read_all()]
        while self._take_if("or"):
            parts.append(self._read_all())
        return parts[0] if len(parts) == 1 else _Node("Or", tuple(parts))

    def _read_all(self) -> _Node:
        parts = [self._read_negated()]
        while self._take_if("and"):
            parts.append(self._read_negated())
        return parts[0] if len(parts) == 1 else _Node("And", tuple(parts))

    def _read_negated(self) -> _Node:
        self._depth += 1
        if self._depth > NESTED_MAX:
            _refuse()
        if self._take_if("not"):
            found = _Node("Not", (self._read_negated(),))
        elif self._take_if("("):
            found = self._read_any()
            self._need(")")
        else:
            found = self._read_predicate()
        self._depth -= 1
        return found

    def _read_predicate(self) -> _Node:
        kind, word = self._tokens[self._at]
        if kind == "word" and word.lower() in _MATCHES and self._tokens[self._at + 1][1] == "(":
            return self._read_match()
        if (constant := self._find_constant()) is not None:
            mirrored = self._read_sign() or _refuse()
            name = _COMPARISONS[mirrored]
            return _either(
                _Node(_MIRRORED.get(name, name), (self._read_value(), constant)), negated=mirrored in _CONTRARY
            )
        value = self._read_value()
        if (sign := self._read_sign()) is not None:
            return _either(_Node(_COMPARISONS[sign], (value, self._read_constant())), negated=sign in _CONTRARY)
        if self._take_if("is"):
            negated = self._take_if("not")
            self._need("null")
            return _either(_Node("IsNull", (value,)), negated=negated)
        negated = self._take_if("not")
        if self._take_if("in"):
            return _either(self._read_among(value), negated=negated)
        if self._take_if("between"):
            at_least = _Node("GreaterThanOrEqual", (value, self._read_constant()))
            self._need("and")
            most = _Node("LessThanOrEqual", (value, self._read_constant()))
            return _either(_Node("And", (at_least, most)), negated=negated)
        if self._take_if("like"):
            return _either(_Node("Like", (value, self._read_constant())), negated=negated)
        return _refuse() if negated else _Node("flag", (value,))

    def _read_sign(self) -> str | None:
        """Return the comparison that comes next, or None if none does."""
        kind, sign = self._tokens[self._at]
        return self._take()[1] if kind == "sign" and sign in _COMPARISONS else None

    def _read_match(self) -> _Node:
        name = _MATCHES[self._take()[1].lower()]
        self._need("(")
        value = self._read_value()
        self._need(",")
        pattern = self._read_constant()
        self._need(")")
        return _Node(name, (value, pattern))

    def _read_among(self, value: _Node) -> _Node:
        self._need("(")
        values = [self._read_constant()]
        while self._take_if(","):
            values.append(self._read_constant())
        self._need(")")
        return _Node("In", (value, *values)) if len(values) <= VALUES_MAX else _refuse()

    def _read_value(self) -> _Node:
        """Return a column, or a function of one."""
        kind, word = self._take()
        if kind == "quoted":
            return _Node("column", text=word)
        if kind != "word" or word.lower() in _WORDS:
            _refuse()
        if not self._take_if("("):
            return _Node("column", text=word)
        if word.lower() not in _FUNCTIONS:
            _refuse()
        inner = self._read_value()
        self._need(")")
        return _Node("function", (inner,), word.lower())

    def _read_constant(self) -> _Node:
        return self._find_constant() or _refuse()

    def _find_constant(self) -> _Node | None:
        """Return the constant that comes next, or None if none does."""
        (kind, word), following = self._tokens[self._at], self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        if kind == "sign" and word == "-" and following[0] == "number":
            self._at += 2
            return _Node("number", text=f"-{following[1]}")
        if kind == "word" and word.lower() == "date" and following[0] == "text":
            self._at += 2
            return _Node("date", text=following[1][1:-1])
        if kind in ("number", "text"):
            self._at += 1
            return _Node(kind, text=word if kind == "number" else word[1:-1])
        if kind == "word" and word.lower() in ("true", "false"):
            self._at += 1
            return _Node("truth", text=word.lower())
        return None

    def _take(self) -> tuple[str, str]:
        found = self._tokens[self._at]
        if found[0] == "end":
            _refuse()
        self._at += 1
        return found

    def _take_if(self, word: str) -> bool:
        """Return whether this word or sign comes next, and go on behind it."""
        kind, text = self._tokens[self._at]
        there = kind in ("word", "sign") and text.lower() == word
        self._at += there
        return there

    def _need(self, word: str) -> None:
        if not self._take_if(word):
            _refuse()


def _either(node: _Node, *, negated: bool) -> _Node:
    return _Node("Not", (node,)) if negated else node


class _ConditionTyping:
    """Makes a condition over columns, by their names in small letters, an expression of the algebra.

    Raises _NotPlainError where Spark would compare otherwise than in the column's own type.
    """

    def __init__(self, columns: Mapping[str, TypedColumn]) -> None:
        self._columns = columns

    def condition(self, node: _Node) -> Expr:
        if node.op in ("And", "Or", "Not"):
            return _boolean(node.op, *map(self.condition, node.args))
        value = self._value(node.args[0])
        match node.op:
            case "IsNull":
                return _boolean("IsNull", value)
            case "flag":
                return value if value.type == "boolean" else _refuse()
            case "In":
                if value.type == "date":  # with dates it compares texts
                    _refuse()
                compared = [_compared(value, "EqualTo", each) for each in node.args[1:]]
                return compared[0] if len(compared) == 1 else _boolean("Or", *compared)
            case "Like" | "StartsWith" | "EndsWith" | "Contains":
                if value.type != "string" or node.args[1].op != "text":
                    _refuse()
                pattern = _constant("string", node.args[1].text)
                return Expr(node.op, (value, pattern), "boolean", ("\\",) if node.op == "Like" else ())
        return _compared(value, node.op, node.args[1])

    def _value(self, node: _Node) -> Expr:
        if node.op == "column":
            found = self._columns.get(node.text.lower())
            return found.value if found is not None else _refuse()
        name, takes, gives = _FUNCTIONS[node.text]
        value = self._value(node.args[0])
        return Expr(name, (value,), gives) if value.type == takes else _refuse()


def _compared(value: Expr, name: str, other: _Node) -> Expr:
    """Return a comparison with a constant, with all digits of both sides: where they are too many Spark rounds."""
    kind = value.type
    if decimal_of(kind):
        value, constant = _decimals(value, Decimal(_text(other, "number", _NUMBER)))
    elif (read := _CONSTANTS.get(kind)) is None or (kind == "boolean" and name != "EqualTo"):
        _refuse()
    else:
        constant = read(other)
        value = value if constant.type == kind else _cast(value, constant.type)
    return _boolean(name, value, constant)


def _text(node: _Node, op: str, spelling: re.Pattern[str]) -> str:
    return node.text if node.op == op and spelling.fullmatch(node.text) else _refuse()


def _double(node: _Node, whole_max: int, *, fractions: bool) -> Expr:
    """Return the number, if both kinds of numbers have it exactly: Spark may widen floats or not."""
    text = _text(node, "number", _NUMBER)
    if "." in text:
        return _constant("double", repr(float(text))) if fractions else _refuse()
    return _constant("double", repr(float(text))) if abs(int(text)) <= whole_max else _refuse()


def _day(node: _Node) -> Expr:
    """Return the days since 1970-01-01."""
    text = _text(node, "date" if node.op == "date" else "text", _DATE)
    try:
        return _constant("date", str(date.fromisoformat(text).toordinal() - _EPOCH))
    except ValueError as error:  # a day that is none
        raise _NotPlainError from error


_CONSTANTS: Mapping[str, Callable[[_Node], Expr]] = {
    **dict.fromkeys(DIGITS, lambda node: _constant("long", str(int(_text(node, "number", _WHOLE))))),
    "float": lambda node: _double(node, _FLOAT_WHOLE_MAX, fractions=False),
    "double": lambda node: _double(node, _DOUBLE_WHOLE_MAX, fractions=True),
    "string": lambda node: _constant("string", node.text) if node.op == "text" else _refuse(),
    "date": _day,
    "boolean": lambda node: _constant("boolean", node.text) if node.op == "truth" else _refuse(),
}
"""How a constant is read that is compared with a value of a type."""


def _boolean(name: str, *args: Expr) -> Expr:
    return Expr(name, args, "boolean")


def _constant(kind: str, text: str) -> Expr:
    return Expr("Literal", (), kind, (text,))


def _cast(value: Expr, kind: str) -> Expr:
    return Expr("Cast", (value,), kind, (ANSI,))


def _decimals(value: Expr, number: Decimal) -> tuple[Expr, Expr]:
    """Return both sides of a comparison with as many digits as both need."""
    precision, own = decimal_of(value.type) or (0, 0)
    scale = max(own, -int(number.as_tuple().exponent))
    whole = max(precision - own, _DECIMAL_WHOLE_MAX)
    if whole + scale > DECIMAL_DIGITS_MAX:
        _refuse()
    kind = f"decimal({whole + scale},{scale})"
    return (value if value.type == kind else _cast(value, kind)), _constant(kind, f"{number:f}")
