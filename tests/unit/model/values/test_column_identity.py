"""Which columns are the same as before: identified by physical names, nested fields too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iscp.model.values.column_identity import (
    collated_columns,
    column_ids,
    doubled_names,
    lost_fields,
    other_columns,
    void_fields,
)

Nest = Callable[[dict[str, Any]], dict[str, Any]]

NEST: dict[str, Nest] = {
    "struct": lambda field: {"type": "struct", "fields": [field]},
    "array": lambda field: {"type": "array", "elementType": {"type": "struct", "fields": [field]}},
    "map": lambda field: {"type": "map", "keyType": "string", "valueType": {"type": "struct", "fields": [field]}},
}


def column(name: str, physical: str = "", kind: Any = "string") -> dict[str, Any]:
    metadata = {"delta.columnMapping.physicalName": physical} if physical else {}
    return {"name": name, "type": kind, "metadata": metadata}


def others(before: list[dict[str, Any]], after: list[dict[str, Any]], *names: str) -> tuple[str, ...]:
    return other_columns(column_ids(before), column_ids(after), names)


def test_a_column_that_was_dropped_and_added_again_is_another() -> None:
    assert others([column("id", "c1"), column("a", "c2")], [column("id", "c1"), column("a", "c3")], "id", "a") == ("a",)


def test_names_that_were_exchanged_are_others() -> None:
    before, after = [column("a", "c1"), column("b", "c2")], [column("b", "c1"), column("a", "c2")]
    assert others(before, after, "a", "b") == ("a", "b")


@pytest.mark.parametrize("nest", NEST.values(), ids=NEST.keys())
def test_a_field_within_another_counts(nest: Nest) -> None:
    before, same, after = (column("s", "c1", nest(column("x", physical))) for physical in ("c2", "c2", "c3"))
    assert others([before], [same], "s") == ()
    assert others([before], [after], "s") == ("s",)


def test_names_of_a_table_from_before_they_were_mapped_are_the_columns_own() -> None:
    """Delta takes the names that are there for the physical ones."""
    plain, mapped = column("a", kind=NEST["struct"](column("x"))), column("a", "a", NEST["struct"](column("x", "x")))
    assert column_ids([plain]) == column_ids([mapped]) == {}
    assert others([plain], [column("a", "col-1", NEST["struct"](column("x")))], "a") == ("a",)
    assert others([plain], [column("a", "a", NEST["struct"](column("x", "col-1")))], "a") == ("a",)


def test_comments_order_and_case_do_not_matter() -> None:
    fields = [column("A", "c1"), column("b", "c2")]
    shuffled = [
        {**column("b", "c2"), "metadata": {"comment": "x", "delta.columnMapping.physicalName": "c2"}},
        fields[0],
    ]
    assert column_ids(fields) == column_ids(shuffled)
    assert others(fields, [column("a", "c1"), column("B", "c2")], "A", "b") == ()


@pytest.mark.parametrize(("nest", "path"), [("struct", "s.v"), ("array", "s.element.v"), ("map", "s.value.v")])
def test_what_is_void_is_found_wherever_it_is(nest: str, path: str) -> None:
    fields = [column("id"), column("s", kind=NEST[nest](column("v", kind="void"))), column("w", kind="void")]
    assert void_fields(fields) == (path, "w")
    assert void_fields(fields[:1]) == ()


def test_columns_with_texts_of_a_collation_are_found() -> None:
    collated = {**column("a"), "metadata": {"__COLLATIONS": {"a.element": "icu.UNICODE"}}}
    assert collated_columns([column("id", "c1"), collated]) == ("a",)


def nested(kind: str, of: object) -> dict[str, object]:
    match kind:
        case "array":
            return {"type": "array", "elementType": of, "containsNull": True}
        case "map":
            return {"type": "map", "keyType": "string", "valueType": of, "valueContainsNull": True}
        case "keys":
            return {"type": "map", "keyType": of, "valueType": "string", "valueContainsNull": True}
    return {"type": "struct", "fields": of}


def test_names_that_differ_by_case_alone_are_found_wherever_they_are() -> None:
    def named(*names: str, kind: object = "long") -> list[dict[str, object]]:
        return [{"name": name, "type": kind} for name in names]

    struct = nested("struct", named("x", "y", "X"))
    assert doubled_names(named("a", "b", "A", "B")) == ("a", "A")
    assert doubled_names(named("a", "b", "a")) == ("a", "a")
    assert doubled_names(named("s", kind=struct)) == ("s.x", "s.X")
    assert doubled_names(named("s", kind=nested("array", nested("array", struct)))) == (
        "s.element.element.x",
        "s.element.element.X",
    )
    assert doubled_names(named("s", kind=nested("map", struct))) == ("s.value.x", "s.value.X")
    assert doubled_names(named("s", kind=nested("keys", struct))) == ("s.key.x", "s.key.X")
    assert doubled_names(named("s", kind=nested("struct", named("t", kind=struct)))) == ("s.t.x", "s.t.X")
    fine = nested("struct", named("x", "y"))
    assert doubled_names([*named("a", "b"), *named("s", "t", "x", kind=nested("array", fine))]) == ()


def test_what_is_gone_is_found_wherever_it_was_and_named_once() -> None:
    def named(**kinds: object) -> list[dict[str, object]]:
        return [{"name": name, "type": kind} for name, kind in kinds.items()]

    x, xy = (nested("struct", named(**dict.fromkeys(names, "long"))) for names in ("x", "xy"))
    before = named(
        a="long", s=xy, n=nested("array", nested("map", xy)), k=nested("keys", xy), t=nested("struct", named(s=xy))
    )
    after = named(
        A="string", S=x, n=nested("array", nested("map", x)), k=nested("keys", x), t=nested("struct", named(s=x))
    )
    assert lost_fields(before, after) == ("s.y", "n.element.value.y", "k.key.y", "t.s.y")
    assert lost_fields(after, before) == ()
    assert lost_fields(before, named(a="long", n="string")) == ("s", "n.element.value.x", "n.element.value.y", "k", "t")
