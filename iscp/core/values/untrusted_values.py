"""Check texts and numbers that others hand over (code of theirs, another node, a store) before they are believed.

Whatever the value is and does, these functions raise ValueError or nothing: an exception whose `__str__` raises, a text
of 100 MB, a number that only seems to be one. Texts are made fit to be stored: bounded, valid UTF-8, printable. Numbers
are never guessed: a wrong one is refused by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Real
from operator import attrgetter, index
from typing import Any, TypeVar
from unicodedata import category

from iscp.core.values.errors import ErrorCode, IscpError, PermanentError, TemporaryError

TEXT_CHARS_MAX = 4_000
"""Characters stored of an error's text: three quarters from its beginning, the rest from its end."""

NAME_CHARS_MAX = 4_000
"""Characters in a name from another node or a consumer; a longer one is refused, as a part of it would name something
else.
"""

SHOWN_CHARS_MAX = 200
"""Characters that an error shows of a wrong value; the rest is cut off."""

COUNT_MOST = 2**62
"""The greatest version, seq or count: it may still be added to without leaving 64 bits. A greater one is refused."""

AT_S_LEAST, AT_S_MOST = -62_135_596_800.0, 253_402_300_799.0
"""The first second of the year 1 and the last of 9999, beyond which calendars do not go."""

CODE_MOST = 2**31 - 1
"""The greatest error code; of an error with a greater one the code of its class counts."""

_GAP = " […] "
V = TypeVar("V")
Check = Callable[[Any, str], Any]
"""A function that returns a value, which was handed over under a name, fit to be stored. It raises ValueError."""

_NOT_PLAIN = re.compile("[^\n\t -~]")


def printable(value: object, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return `value` as a text that can be stored and shown; one that is too long loses its middle."""
    if not isinstance(value, str):
        return shown(value)
    # The methods of str itself: those of a class derived from it may do anything.
    if str.__len__(value) > chars_max:
        head = chars_max * 3 // 4
        tail = chars_max - head - len(_GAP)
        value = str.__getitem__(value, slice(head)) + _GAP + str.__getitem__(value, slice(-tail, None))
    return escaped(str.__str__(value))


def escaped(text: str) -> str:
    """Return `text` with Python's escapes for what steers a terminal, cannot be seen, or has no form in UTF-8.

    That is what is no letter, sign or blank: controls but for newline and tab, marks of direction, joiners, lone
    surrogates, and what Unicode does not know.
    """
    return text if text.isprintable() else _NOT_PLAIN.sub(_escaped, text)


def escaped_json(text: str) -> str:
    """Return a JSON text with JSON's own escapes for what `escaped` escapes, so that it means the same."""
    return text if text.isprintable() else _NOT_PLAIN.sub(_escaped_in_json, text)


def is_shown(character: str) -> bool:
    """Return whether it is a character that is seen, or a blank of some width."""
    return character.isprintable() or category(character) == "Zs"


def one_line(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return `text` as a terminal shows it in one line: then no part of one fault can be taken for another fault."""
    return " ".join(printable(text, chars_max).split())


def _escaped(found: re.Match[str]) -> str:
    return found[0] if is_shown(found[0]) else found[0].encode("unicode_escape").decode("ascii")


def _escaped_in_json(found: re.Match[str]) -> str:
    return found[0] if is_shown(found[0]) else json.dumps(found[0])[1:-1]


def shown(value: object) -> str:
    """Return a wrong value as an error names it."""
    if isinstance(value, (str, bytes)):
        value = value[:SHOWN_CHARS_MAX] if type(value) in (str, bytes) else _class_name(value)
    try:
        return printable(str.__str__(repr(value)), SHOWN_CHARS_MAX)
    except BaseException:  # noqa: BLE001  (whatever foreign code raises when it is read)
        return f"a value of {_class_name(value)}"


def error_text(error: BaseException) -> str:
    """Return the text of an error, empty if it says nothing that can be had."""
    try:
        text = str.__str__(str(error))
    except BaseException:  # noqa: BLE001  (an error's own text is foreign code too)
        return "its text cannot be read"
    return printable(text)


def named_error(error: BaseException) -> str:
    """Return the error's class, and its text."""
    text, name = error_text(error), _class_name(error)
    return f"{name}: {text}" if text else name


def error_code(error: BaseException) -> ErrorCode:
    """Return the code of an error; if that is unknown the code of its class, and INTERNAL for all others."""
    if not isinstance(error, IscpError):
        return ErrorCode.INTERNAL
    try:
        return ErrorCode(exact_int(error.code, "code", 1, CODE_MOST))
    except BaseException:  # noqa: BLE001  (a class of somebody else's may have a `code` of its own making)
        known = (kind.code for kind in (PermanentError, TemporaryError) if isinstance(error, kind))
        return next(known, ErrorCode.INTERNAL)


def exact_int(value: object, name: str, least: int = 0, most: int = COUNT_MOST) -> int:
    """Return `value` as a plain int: an int, or what stands for one exactly, as numpy's integers. Raises ValueError."""
    if type(value) is not int:
        value = _converted(value, name, index, "a whole number")
        value = int.__index__(value)  # type: ignore[arg-type]
    if not least <= value <= most:
        raise ValueError(f"{name} is {shown(value)}, and not between {least} and {most}")
    return value


def exact_float(value: object, name: str, least: float = AT_S_LEAST, most: float = AT_S_MOST) -> float:
    """Return `value` as a plain float that is finite, from any real type but bool. Raises ValueError."""
    if type(value) is not float:
        if not isinstance(value, Real):
            raise _wrong(value, name, "a number")
        value = _converted(value, name, float, "a number")
        value = float.__float__(value)  # type: ignore[arg-type]
    if not (isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} is {shown(value)}, and not between {least:g} and {most:g}")
    return value


def exact_name(value: object, name: str) -> str:
    """Return a text that names something, as it is. Raises ValueError if it has no form in UTF-8, or is too long."""
    if not isinstance(value, str):
        raise _wrong(value, name, "a text")
    text = str.__str__(value)
    if len(text) > NAME_CHARS_MAX:
        raise ValueError(f"{name} has {len(text)} characters, more than {NAME_CHARS_MAX}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _wrong(text, name, "valid Unicode") from None
    return text


def exact_message(value: object, name: str) -> str:
    """Return a message to people, made fit to be stored. Raises ValueError if it is no text at all."""
    if not isinstance(value, str):
        raise _wrong(value, name, "a text")
    return printable(value)


def exact_version(value: object, name: str) -> int:
    """Return a version of a table, -1 where there is none."""
    return exact_int(value, name, -1)


def exact_code(value: object, name: str) -> int:
    """Return a code of an error, which a newer node may be the first to know; 0 where there is none."""
    return exact_int(value, name, 0, CODE_MOST)


def _converted(value: object, name: str, convert: Callable[[Any], object], wanted: str) -> object:
    if isinstance(value, bool):
        raise _wrong(value, name, wanted)
    try:
        return convert(value)
    except BaseException:  # noqa: BLE001  (whatever foreign code raises when its value is read)
        raise _wrong(value, name, wanted) from None


def _wrong(value: object, name: str, wanted: str) -> ValueError:
    return ValueError(f"{name} is {shown(value)}, which is not {wanted}")


def _class_name(value: object) -> str:
    # As type has it: a metaclass may have another idea of the name.
    return printable(type.__dict__["__name__"].__get__(type(value)), SHOWN_CHARS_MAX)


def exact_fields(kind: Callable[..., V], checks: Mapping[str, Check]) -> Callable[[V], V]:
    """Return a function that checks each field of a `kind`; `checks` are in the order of the fields."""
    values_of = attrgetter(*checks)

    def exact(value: V) -> V:
        values = zip(checks.items(), values_of(value), strict=True)
        return kind(*[check(each, name) for (name, check), each in values])

    return exact


def first_line(error: BaseException) -> str:
    """Return the first line of a library's fault; it is never empty, as an empty fault would pass for none."""
    return next((line for line in map(str.strip, str(error).splitlines()) if line), type(error).__name__)
