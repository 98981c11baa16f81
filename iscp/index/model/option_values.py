"""Read the options of an index, each of which is a text or a value of JSON, and say what is wrong by its path."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from iscp.core.values.argument_checks import name_hint
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import one_line, shown
from iscp.index.model.index_definition import TextColumn
from iscp.index.model.query import BOOST_LEAST, BOOST_MOST

OPTIONS_PATH = "spec.iteration.consumer.options"

OPTION_CHARS_MAX = 20_000
"""Characters of an option; a longer text is refused."""

NAMED_COLUMNS_MAX = 200
"""Columns that an option may name; one that names more is refused."""

COLUMN_NAME_CHARS_MAX = 255
"""Characters in the name of a column; a longer one is refused."""

_NAME_CHARS_SHOWN = 100
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?")
_TRUTH = {"true": True, "false": False}
E = TypeVar("E", bound=StrEnum)
N = TypeVar("N", int, float)


def fault(name: str, message: str, remedy: str) -> InvalidRequest:
    """Return the error of an option."""
    return InvalidRequest(message, field=f"{OPTIONS_PATH}.{one_line(name, _NAME_CHARS_SHOWN)}", remedy=remedy)


class OptionReader:
    """The options of a job, of which each reader takes one; `known` are those that the kind has."""

    def __init__(self, kind: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
        names = sorted(known)
        for name in options:
            if not isinstance(name, str) or name not in names:
                known_are = f"Its options are {', '.join(names)}"
                remedy = f"{name_hint(str(name), names)} {known_are}".lstrip()
                raise fault(str(name), f"is no option of the consumer {kind}", remedy)
        for name, value in options.items():
            if isinstance(value, str) and len(value) > OPTION_CHARS_MAX:
                raise fault(name, f"has {len(value)} characters, more than {OPTION_CHARS_MAX}", "Make it shorter")
        self._options = options

    def given(self, name: str) -> bool:
        return name in self._options

    def text(self, name: str) -> str:
        """Return a text that names something, empty if it is not given. Raises InvalidRequest."""
        if name not in self._options:
            return ""
        value = self._options[name]
        if not isinstance(value, str) or not value.strip():
            raise fault(name, f"is {shown(value)}, which names nothing", "Give a name, or leave it out")
        return _checked_name(name, value.strip())

    def truth(self, name: str, default: bool) -> bool:
        """Return true or false, from either or their words. Raises InvalidRequest."""
        value = self._options.get(name, default)
        known = _TRUTH.get(value.strip().lower()) if isinstance(value, str) else value
        if not isinstance(known, bool):
            raise fault(name, f"is {shown(value)}, which is neither true nor false", "Give true or false")
        return known

    def whole_number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number within bounds. Raises InvalidRequest."""
        value = self._options.get(name, default)
        if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)  # a number of JSON may have lost that it is whole
        if isinstance(value, bool) or not isinstance(value, int):
            raise fault(name, f"is {shown(value)}, which is no whole number", f"Give one from {least} to {most}")
        return _bounded(name, value, least, most)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Return a number within bounds. Raises InvalidRequest."""
        return number_of(name, self._options.get(name, default), least, most)

    def choice(self, name: str, default: E) -> E:
        """Return a member of an enum by its value, without regard to case. Raises InvalidRequest."""
        kind = type(default)
        return kind(self._chosen(name, default.value, [each.value for each in kind]))

    def word(self, name: str, choices: Iterable[str]) -> str:
        """Return one of the words, empty if it is not given. Raises InvalidRequest."""
        return self._chosen(name, "", list(choices)) if name in self._options else ""

    def _chosen(self, name: str, default: str, choices: list[str]) -> str:
        value = self._options.get(name, default)
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in choices:
            raise fault(name, f"is {shown(value)}, which is not known", f"Give one of {', '.join(choices)}")
        return word

    def names(self, name: str) -> tuple[str, ...]:
        """Return the columns that an option names: a text with commas, or a list of texts. Raises InvalidRequest."""
        value = self._options.get(name, [])
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list | tuple) or not all(isinstance(each, str) for each in listed):
            raise fault(name, f"is {shown(value)}, which is no list of columns", "Give names with commas between them")
        return _refuse_doubled(name, [_checked_name(name, each.strip()) for each in listed])

    def text_columns(self, name: str) -> tuple[TextColumn, ...]:
        """Return columns with their boosts: `title^2,body`, a list of such texts, or an object of boosts by name.

        Raises InvalidRequest.
        """
        value = self._options.get(name, [])
        if isinstance(value, Mapping):
            given = [(each if isinstance(each, str) else "", boost) for each, boost in value.items()]
        else:
            given = [_with_boost(each) for each in self._listed(name, value)]
        names = _refuse_doubled(name, [_checked_name(name, each) for each, _ in given])
        boosts = [number_of(name, boost, BOOST_LEAST, BOOST_MOST) for _, boost in given]
        return tuple(TextColumn(each, boost) for each, boost in zip(names, boosts, strict=True))

    def _listed(self, name: str, value: Any) -> list[str]:
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list | tuple) or not all(isinstance(each, str) for each in listed):
            raise fault(name, f"is {shown(value)}, which is no list of columns", "Give it as title^2,body")
        return [each.strip() for each in listed]


def _with_boost(text: str) -> tuple[str, Any]:
    column, mark, boost = text.rpartition("^")
    return (column.strip(), boost.strip()) if mark else (text, 1.0)


def number_of(name: str, value: Any, least: float, most: float) -> float:
    """Return a number within bounds, from one or its text. Raises InvalidRequest."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fault(name, f"has {shown(value)}, which is no number", f"Give one from {least:g} to {most:g}")
    return float(_bounded(name, value, least, most))


def _bounded(name: str, value: N, least: N, most: N) -> N:
    if not least <= value <= most:
        raise fault(name, f"has {shown(value)}, which is not between {least:g} and {most:g}", "Choose another number")
    return value


def _checked_name(name: str, column: str) -> str:
    if not column:
        raise fault(name, "has an empty name", "Give names with one comma between them")
    if len(column) > COLUMN_NAME_CHARS_MAX:
        raise fault(name, f"has a name of {len(column)} characters, more than {COLUMN_NAME_CHARS_MAX}", "Shorten it")
    if not column.isprintable():
        raise fault(name, f"has {shown(column)}, with a character that cannot be seen", "Leave it out")
    return column


def _refuse_doubled(name: str, columns: list[str]) -> tuple[str, ...]:
    if len(columns) > NAMED_COLUMNS_MAX:
        raise fault(name, f"names {len(columns)} columns, more than {NAMED_COLUMNS_MAX}", "Name fewer")
    if len({each.lower() for each in columns}) < len(columns):
        raise fault(name, "names a column twice, but for upper and lower case", "Name each column once")
    return tuple(columns)
