"""Find which columns of a source are the very same ones, whatever they are called (Delta's column mapping).

A column is known by the physical name that Delta gave it when it was added: it stays when the column is renamed, and is
another one when a column is dropped and one of its name added. So are the fields within it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

ColumnIds = Mapping[str, str]
"""For a column, by its name in lower case, the id that distinguishes it, and all that is within it, from others of that
name.

Columns that are not there are as their names say: those of a table without mapped names, and those from before it had
them.
"""

COLLATIONS = "__COLLATIONS"
"""The place in a field's metadata that says how its texts compare, and those within it."""
_PHYSICAL = "delta.columnMapping.physicalName"
_DIGEST_BYTES = 8
_PARTS = (("elementType", "element"), ("keyType", "key"), ("valueType", "value"))
"""The parts of arrays and maps, with what Delta calls them in paths."""


def column_ids(fields: Iterable[Mapping[str, Any]]) -> ColumnIds:
    """Return the ids of the columns of a schema, given by its fields in Delta's JSON."""
    return {field["name"].lower(): found for field in fields if (found := _column_id(field))}


def physical_name(field: Mapping[str, Any]) -> str:
    """Return the name in files of a field of a schema in Delta's JSON."""
    return str((field.get("metadata") or {}).get(_PHYSICAL, field["name"]))


def void_fields(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the columns of the type void, and the fields of that type within others, as paths (`s.y`)."""
    return tuple(path for field in fields for path in _void(field["type"], field["name"]))


def collated_columns(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the columns that are, or have within them, texts that compare in a way of their own."""
    return tuple(field["name"] for field in fields if (field.get("metadata") or {}).get(COLLATIONS))


def chosen_collated(collated: Iterable[str], columns: Collection[str]) -> tuple[str, ...]:
    """Return the `collated` columns among the `columns` that a job has named, or all if it has named none."""
    chosen = {name.lower() for name in columns}
    return tuple(name for name in collated if not chosen or name.lower() in chosen)


def doubled_names(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the first two columns, or fields of one that is nested, whose names differ in case alone, as paths; empty:
    none do.
    """
    return _doubled(fields, "")


def lost_fields(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the columns of a schema `before`, and the fields of nested ones as paths, that are gone by name."""
    return tuple(_lost(before, now, ""))


def _lost(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]], path: str) -> Iterator[str]:
    there = {field["name"].lower(): field["type"] for field in now}
    for field in before:
        name, kind = f"{path}{field['name']}", there.get(field["name"].lower())
        if kind is None:
            yield name
            continue
        structs = dict(_nested(kind, name))
        for within, inner in _nested(field["type"], name):
            yield from _lost(inner, structs.get(within, ()), f"{within}.")


def _doubled(fields: Iterable[Mapping[str, Any]], path: str) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for field in fields:
        name = f"{path}{field['name']}"
        if first := seen.setdefault(name.lower(), ""):
            return first, name
        seen[name.lower()] = name
        for within, inner in _nested(field["type"], name):
            if found := _doubled(inner, f"{within}."):
                return found
    return ()


def _nested(kind: Any, path: str) -> Iterator[tuple[str, Iterable[Mapping[str, Any]]]]:
    """Yield the structs in a type, but those within structs: the path to each, and its fields."""
    if not isinstance(kind, Mapping):
        return
    if "fields" in kind:
        yield path, kind["fields"]
    for part, name in _PARTS:
        yield from _nested(kind.get(part), f"{path}.{name}")


def _void(kind: Any, path: str) -> Iterator[str]:
    if kind == "void":
        yield path
    if not isinstance(kind, Mapping):
        return
    for part, name in _PARTS:
        yield from _void(kind.get(part), f"{path}.{name}")
    for field in kind.get("fields", ()):
        yield from _void(field["type"], f"{path}.{field['name']}")


def other_columns(before: ColumnIds, now: ColumnIds, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of `names` under which there are other columns `now` than `before`."""
    return tuple(name for name in names if before.get(name.lower()) != now.get(name.lower()))


def _column_id(field: Mapping[str, Any]) -> str:
    """Return what distinguishes a column, or an empty text if all is as it is called."""
    named = list(_named(field, ""))
    if all(name.lower() == physical.lower() for _, name, physical in named):
        return ""
    _, _, physical = named[0]
    within = sorted((path, name.lower(), below) for path, name, below in named[1:])
    return hashlib.blake2b(repr((physical.lower(), within)).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _named(field: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Yield for a field, and for those within it, the path to it, its name, and its physical one."""
    name = field["name"]
    yield path, name, physical_name(field)
    yield from _within(field["type"], f"{path}/{name.lower()}")


def _within(kind: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if not isinstance(kind, Mapping):
        return
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            yield from _within(kind[part], f"{path}/{part}")
    for field in kind.get("fields", ()):
        yield from _named(field, path)
