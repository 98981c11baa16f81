"""Names in SQL, and the bounds of users' SQL: the names that iscp adds, the names of fields within structs, the
functions that may be called and the sizes that they may make, the length and nesting of a text, and its dependence on
the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import floor, inf
from typing import Any

from iscp.model.values.errors import InvalidRequest

# --- names that iscp adds ---------------------------------------------------------------------------------------------
# Names of columns and tables beside those of users, and names as SQL takes them.

OP = "_iscp_op"
"""The column with a net change's operation (see the port Changes)."""

WEIGHT = "_iscp_weight"
"""The column that says how many of a row came (below 0: went)."""

RESERVED_PREFIX = "_iscp_"
"""The prefix of all columns that rows are given while they are worked on."""

CHANGE_MARKS = ("_change_type", "_commit_version", "_commit_timestamp")
"""The columns that Delta's change data feed has beside those of a table."""

KEY_HASH = "_key_hash"
"""The column with the hash of the key, in rows of a job whose table may be split (see ShardedConsumer)."""

DEAD_LETTER_SUFFIX = "_dead_letter"
"""The suffix, after a target's name, of the table in which rows that share a key are stored."""

VIEW_STATE_SUFFIX = "_view_state_2"
"""The suffix, after a view's name, of the table in which more is stored of the view than its rows.

Its number is that of what is stored, and how. Where that becomes another, so does the table: a node of the release
before leaves this one as it is, finds that its own is of earlier versions than the view, and writes that again; and the
other way round.
"""

VIEW_STATE_SUFFIXES = ("_view_state", VIEW_STATE_SUFFIX)
"""The suffixes of this and of earlier releases."""


def reserved_names(columns: Iterable[str], *more: str) -> tuple[str, ...]:
    """Return the columns that no table may have which is read, and those called as one of `more`."""
    taken = {*CHANGE_MARKS, *more}
    return tuple(name for name in columns if name.lower() in taken or name.lower().startswith(RESERVED_PREFIX))


def quoted(name: str) -> str:
    """Return `name` as one identifier: dots, blanks and backticks in it count for nothing."""
    return "`" + name.replace("`", "``") + "`"


# --- names of fields within structs -----------------------------------------------------------------------------------
# SQL writes each part of the path in backticks, joined by dots. So a table's columns and the fields within them are
# found by one name each. A column that is itself called as the path of a field is has that name alone.

_PATH = re.compile(r"`(?:[^`]|``)*`(?:\.`(?:[^`]|``)*`)+", re.DOTALL)
_PART = re.compile(r"`((?:[^`]|``)*)`", re.DOTALL)


def path_name(path: Sequence[str]) -> str:
    """Return the name of a field at a path of two names or more, the column's first."""
    return ".".join(map(quoted, path))


def path_of(name: str) -> tuple[str, ...]:
    """Return the path that is written in a name, or the name as the one part of it."""
    if not _PATH.fullmatch(name):
        return (name,)
    return tuple(part.replace("``", "`") for part in _PART.findall(name))


def fields_by_name(fields: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the columns of a schema (Delta's JSON) and the fields of structs, each with its name and with the metadata
    of all that it lies within.
    """
    columns = {each["name"]: each for each in fields}
    nested = (found for name, each in columns.items() for found in _nested(each, (name,)))
    return {**{each["name"]: each for each in nested}, **columns}


def _nested(field: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    kind = field["type"]
    for each in kind["fields"] if isinstance(kind, Mapping) and kind["type"] == "struct" else ():
        below = (*path, each["name"])
        metadata = {**(field.get("metadata") or {}), **(each.get("metadata") or {})}
        found = {**each, "metadata": metadata}
        yield {**found, "name": path_name(below)}
        yield from _nested(found, below)


# --- functions that users' SQL may call -------------------------------------------------------------------------------
# These are the functions that Spark brings along, but for those that reach beyond the rows.

_JAVA = "calls Java"
_FILE_OF_ROW = "says in which file a row lies, which is another one after each cleaning"
_DESCRIPTOR = "reads a file with a descriptor"
_SKETCH = "takes as much memory as its arguments say"

_REFUSED = {
    **dict.fromkeys(("java_method", "reflect", "try_reflect"), _JAVA),
    **dict.fromkeys(("input_file_name", "input_file_block_start", "input_file_block_length"), _FILE_OF_ROW),
    **dict.fromkeys(("from_protobuf", "to_protobuf"), _DESCRIPTOR),
    "count_min_sketch": _SKETCH,
}

_TABLE_FUNCTIONS = frozenset(
    {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack", "json_tuple"}
    | {"variant_explode", "variant_explode_outer", "range"}
)
"""Functions that make rows of what they are handed, and read nothing."""

OPTIONS_AT = {"from_xml": 2, "schema_of_xml": 1, "from_avro": 2, "schema_of_avro": 1}
"""Functions whose options may name a file to be read, and the place of these options among their arguments, from 0."""

_READING_OPTIONS = frozenset({"rowvalidationxsdpath", "avroschemaurl"})


@dataclass(frozen=True, slots=True)
class SqlFault:
    """A reason to refuse SQL, in words that follow its subject, and the remedy."""

    message: str
    remedy: str


def function_fault(parts: Sequence[str], exists: Callable[[str], bool]) -> SqlFault | None:
    """Return why a function that makes a value may not be called, or None if it may.

    `parts` are those of its name, as `("catalog", "schema", "f")`. `exists` says whether the engine brings it along.
    """
    name = parts[-1].lower()
    if reason := _REFUSED.get(name):
        return SqlFault(f"calls {name}(), which {reason}", "Leave it out: only the rows' own values may be used")
    if len(parts) > 1:
        return SqlFault(f"calls {'.'.join(parts)}(), a function of a catalog", "Use functions that Spark has built in")
    if not exists(name):
        return SqlFault(f"calls {name}(), which Spark does not have built in", "Correct its name")
    return None


def options_fault(name: str, keys: Collection[str] | None) -> SqlFault | None:
    """Return why a function in OPTIONS_AT may not have options with these `keys`, or None if it may.

    `keys` is None where not all of them are texts in a `map(…)`.
    """
    if keys is None:
        return SqlFault(f"calls {name}() with options that are computed", "Write them as in map('mode', 'FAILFAST')")
    if reading := sorted(each for each in keys if each.lower() in _READING_OPTIONS):
        return SqlFault(f"calls {name}() with {reading[0]}, by which it reads a file", "Leave out that option")
    return None


def table_function_fault(parts: Sequence[str]) -> SqlFault | None:
    """Return why a function that makes rows may not be called, or None if it may."""
    if len(parts) == 1 and parts[0].lower() in _TABLE_FUNCTIONS:
        return None
    return SqlFault(
        f"reads rows of {'.'.join(parts)}()", f"Read tables that are named, or {', '.join(sorted(_TABLE_FUNCTIONS))}"
    )


# --- sizes that functions make ----------------------------------------------------------------------------------------
# Some functions make as much as a number says: a text of so many characters, an array of so many elements. An engine
# computes a constant while it plans a query, so that one such number ends a process before anything has run.

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


# --- the length and the nesting of SQL --------------------------------------------------------------------------------
# Both are bounded by one pass over the text, before anybody parses it: parsers go down by some calls for each level,
# and end where their stack does.

SQL_CHARACTERS_MAX = 200_000
"""Characters of a view's query or of a filter; a longer one is refused."""

SQL_NESTING_MAX = 40
"""Levels of parentheses, brackets and braces in users' SQL; what is nested more deeply is refused."""

_OUTSIDE = re.compile(
    r"""
    (?<!\w)[rR](?:'[^']*+'?|"[^"]*+"?)         # a text without escapes
    |'(?:[^'\\]|\\.)*+'?|"(?:[^"\\]|\\.)*+"?  # a text; one that does not end goes on to the end
    |`[^`]*+`?
    |--(?:\\\n|[^\n])*+
    |/\*
    |[(\[{)\]}]
    """,
    re.VERBOSE | re.DOTALL,
)
_IN_COMMENT = re.compile(r"/\*|\*/")


def refuse_unbounded(sql: str, field: str) -> None:
    """Raise InvalidRequest (`field`) for SQL that is too long, or nested too deeply."""
    if len(sql) > SQL_CHARACTERS_MAX:
        raise InvalidRequest(
            f"has {len(sql)} characters, more than {SQL_CHARACTERS_MAX}", field=field, remedy="Make it shorter"
        )
    if nesting_of(sql) > SQL_NESTING_MAX:
        raise too_deep(field)


def too_deep(field: str) -> InvalidRequest:
    return InvalidRequest(
        f"is nested more than {SQL_NESTING_MAX} levels deep",
        field=field,
        remedy="Write parts of it as queries in WITH, or as views of their own",
    )


def nesting_of(sql: str) -> int:
    """Return the most levels that are open at a time, as Spark reads texts and comments."""
    depth = deepest = at = 0
    while (found := _OUTSIDE.search(sql, at)) is not None:
        mark, at = found[0], found.end()
        if mark == "/*":
            at = _end_of_comment(sql, at)
        elif mark in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in ")]}":
            depth = max(0, depth - 1)
    return deepest


def _end_of_comment(sql: str, at: int) -> int:
    """Return the end of a comment; comments may lie within each other."""
    depth = 1
    while depth and (found := _IN_COMMENT.search(sql, at)) is not None:
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return len(sql) if depth else at


# --- dependence on the time -------------------------------------------------------------------------------------------
# The ways in which rows of a query depend on the time, and when such a query is refreshed though no table has changed.

TIME_REFRESH_S = 60.0
"""How long the rows of a query that goes by the time of day stay as they are while no table changes; a view with a
shorter interval is refreshed at that."""

_DAY_S = 86_400.0


class TimeDependence(StrEnum):
    """A dependence on the time. DATE: rows change by the date alone, which is that of UTC. MOMENT: they may change at
    any time.
    """

    DATE = "date"
    MOMENT = "moment"


def finest(found: Iterable[TimeDependence | None]) -> TimeDependence | None:
    """Return the dependence of several parts of a query together, or None if none of them depends on the time."""
    among = {*found}
    return next((each for each in (TimeDependence.MOMENT, TimeDependence.DATE) if each in among), None)


def exact_instant_s(now_s: float) -> float:
    """Return the instant at which a refresh takes its query: to the millisecond, as it is written and read again."""
    return floor(now_s * 1000) / 1000


def next_refresh_at_s(dependence: TimeDependence, as_of_s: float, now_s: float, interval_s: float | None) -> float:
    """Return when rows may be others than at `as_of_s`. `interval_s` is the view's interval, if it has one.

    The pause of MOMENT counts from `now_s`, the end of the refresh: one that takes long does not follow on itself.
    """
    if dependence is TimeDependence.DATE:
        return (floor(as_of_s / _DAY_S) + 1) * _DAY_S
    return now_s + min(TIME_REFRESH_S, interval_s or inf)
