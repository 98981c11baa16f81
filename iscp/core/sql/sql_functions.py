"""Decide which functions users' SQL may call: those that Spark brings along, but for those that reach beyond the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

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
