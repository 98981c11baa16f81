"""Which columns of a source are the very same ones, whatever they are called (Delta's column mapping).

A column is known by the physical name that Delta gave it when it was added: it stays when the column is renamed, and is
another one when a column is dropped and one of its name added. So are the fields within it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

ColumnIds = Mapping[str, str]
"""By a column's name in lower case what distinguishes it, and all that is within it, from others that have its name.
Columns that are not there are as their names say: those of a table without mapped names, and those from before it had
them."""

COLLATIONS = "__COLLATIONS"
"""Where a field's metadata says how its texts compare, and those within it."""
_PHYSICAL = "delta.columnMapping.physicalName"
_DIGEST_BYTES = 8
_PARTS = (("elementType", "element"), ("keyType", "key"), ("valueType", "value"))
"""Of arrays and maps, with what Delta calls them in paths."""


def column_ids(fields: Iterable[Mapping[str, Any]]) -> ColumnIds:
    """Of the fields of a schema in Delta's JSON."""
    return {field["name"].lower(): found for field in fields if (found := _column_id(field))}


def physical_name(field: Mapping[str, Any]) -> str:
    """What a field of a schema in Delta's JSON is called in files."""
    return str((field.get("metadata") or {}).get(_PHYSICAL, field["name"]))


def void_fields(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns of the type void, and the fields of that type within others, as paths (`s.y`)."""
    return tuple(path for field in fields for path in _void(field["type"], field["name"]))


def collated_columns(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns that are, or have within them, texts that compare in a way of their own."""
    return tuple(field["name"] for field in fields if (field.get("metadata") or {}).get(COLLATIONS))


def kept_collated(collated: Iterable[str], columns: Collection[str]) -> tuple[str, ...]:
    """Those of the `collated` columns that a job keeps which has named `columns`; it keeps all if it has named none."""
    kept = {name.lower() for name in columns}
    return tuple(name for name in collated if not kept or name.lower() in kept)


def doubled_names(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The first two columns, or fields of one that is nested, whose names are the same but for case, as paths; empty:
    there are none."""
    return _doubled(fields, "")


def lost_fields(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns, and the fields of nested ones as paths, of a schema `before` that are not there any more by name."""
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
    """Of a type the structs in it, but those within structs: the path to each, and its fields."""
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


def other_columns(held: ColumnIds, now: ColumnIds, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` under which there are other columns `now` than those `held`."""
    return tuple(name for name in names if held.get(name.lower()) != now.get(name.lower()))


def _column_id(field: Mapping[str, Any]) -> str:
    """Empty: all is as it is called."""
    named = list(_named(field, ""))
    if all(name.lower() == physical.lower() for _, name, physical in named):
        return ""
    _, _, physical = named[0]
    within = sorted((path, name.lower(), below) for path, name, below in named[1:])
    return hashlib.blake2b(repr((physical.lower(), within)).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _named(field: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Of a field and of those within it: the path to it, its name, and its physical one."""
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
