"""Functions of SQL that make as much as a number says: a text of so many characters, an array of so many elements.

An engine computes a constant while it plans a query, so that one such number ends a process before anything has run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iscp.core.sql.sql_functions import SqlFault

SIZE_MAX = 1_000_000
"""Characters, elements, digits or rows that one call of a function such as `repeat` or `sequence` in users' SQL may
make; more are refused where the number is written, and fail the iteration where a column has it."""

_SIZED = {"repeat": 1, "space": 0, "lpad": 1, "rpad": 1, "array_repeat": 1, "array_insert": 1}
"""Functions, each with the place of the argument, from 0, that is such a number."""

_FIXED = {"round": 1, "bround": 1, "ceil": 1, "ceiling": 1, "floor": 1, "format_number": 1, "stack": 0}
"""Functions whose number has to be written as one."""

_FORMATTING = ("format_string", "printf")
_WIDTH = re.compile(r"\d+")
_OF_NUMBERS = frozenset({"integer", "long", "short", "byte", "void"})


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal: a number or a text, or None for null and all else; `kind` is its type, as `integer` or `string`."""

    value: int | str | None
    kind: str


def size_fault(name: str, arguments: Sequence[Constant | None], *, computed: bool) -> SqlFault | None:
    """Return why the call of a function may make too much, or None; an argument is None where it is no literal.

    With `computed` numbers of `repeat`, `sequence` and their like may be computed, as they are bounded at that time.
    """
    if name in _FORMATTING:
        return _format_fault(name, arguments)
    if name == "sequence":
        return _sequence_fault(arguments, computed=computed)
    return _number_fault(name, arguments, _SIZED, computed=computed) or _number_fault(
        name, arguments, _FIXED, computed=False
    )


def _number_fault(
    name: str, arguments: Sequence[Constant | None], numbers: Mapping[str, int], *, computed: bool
) -> SqlFault | None:
    if name not in numbers or len(arguments) <= numbers[name]:
        return None
    given = arguments[numbers[name]]
    if given is None:
        return None if computed else _not_written(name)
    if isinstance(given.value, int):
        return None if abs(given.value) <= SIZE_MAX else _too_large(name, f"{given.value}")
    as_format = name == "format_number" and given.kind == "string"
    if given.kind in _OF_NUMBERS or as_format:
        return None
    return SqlFault(f"calls {name}() with a number that is of the type {given.kind}", "Write a whole number")


def _sequence_fault(arguments: Sequence[Constant | None], *, computed: bool) -> SqlFault | None:
    """Return why a sequence may be too long. Whole numbers alone say that; others count as computed."""
    values = [each.value for each in arguments if each is not None and each.kind in _OF_NUMBERS]
    if len(values) < len(arguments) or not 2 <= len(values) <= 3:
        return None if computed else _not_written("sequence")
    first, last, *rest = values
    step = rest[0] if rest else 1
    if not (isinstance(first, int) and isinstance(last, int) and isinstance(step, int)) or step == 0:
        return None
    count = abs(last - first) // abs(step) + 1
    return None if count <= SIZE_MAX else _too_large("sequence", f"{count} elements")


def _format_fault(name: str, arguments: Sequence[Constant | None]) -> SqlFault | None:
    """Return why a format may make too much: widths and precisions are numbers within it."""
    form = arguments[0] if arguments else None
    if form is None or not isinstance(form.value, str):
        return SqlFault(f"calls {name}() with a format that is computed", "Write the format as a text")
    largest = max(_WIDTH.findall(form.value), key=lambda digits: (len(digits.lstrip("0")), digits), default="0")
    too_long = len(largest.lstrip("0")) > len(str(SIZE_MAX))
    return _too_large(name, largest[:40]) if too_long or int(largest) > SIZE_MAX else None


def _not_written(name: str) -> SqlFault:
    return SqlFault(f"calls {name}() with a number that is computed", "Write the number")


def _too_large(name: str, given: str) -> SqlFault:
    return SqlFault(f"calls {name}() with {given}, more than {SIZE_MAX}", "Make less at a time")
