"""Which columns are the same as before: identified by physical names, nested fields too.

Totals of a bag of values follow changes of it, or say that they cannot.

What is said of the tables that a sink is made of is read back as it was written, and refused where it cannot be.

The next time that a handler answers: one to come is waited for, anything else is refused with a remedy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.watermark import (
    NO_TOTALS,
    SOURCES_MAX,
    AggregateKind,
    QueryTotals,
    SourceMark,
    Total,
    TotalChange,
    Watermark,
    changed_total,
    collated_columns,
    column_ids,
    doubled_names,
    exact_totals,
    lost_fields,
    merged_total,
    other_columns,
    parse_sources,
    parse_totals,
    sources_document,
    totals_document,
    void_fields,
    wait_until_s,
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


KINDS = [each for each in AggregateKind if each not in (AggregateKind.MOMENTS, AggregateKind.EXACT)]
VALUES = st.lists(st.integers(-3, 3), max_size=8)
EXTREMES = {AggregateKind.MOST: max, AggregateKind.LEAST: min}


def total_of(kind: AggregateKind, values: Sequence[int]) -> Total:
    if kind not in EXTREMES:
        return Total(len(values), sum(values))
    return Total(len(values), 0, EXTREMES[kind](values) if values else None)


def change_between(kind: AggregateKind, old: Sequence[int], new: Sequence[int]) -> TotalChange:
    """Values of which there are more, or fewer, as a signed bag says it."""
    weights = Counter(new)
    weights.subtract(old)
    count = sum(weights.values())
    if kind not in EXTREMES:
        return TotalChange(count, sum(value * weight for value, weight in weights.items()))
    beyond = EXTREMES[kind]
    came = [value for value, weight in weights.items() if weight > 0]
    went = [value for value, weight in weights.items() if weight < 0]
    return TotalChange(count, 0, beyond(came) if came else None, beyond(went) if went else None)


@given(st.sampled_from(KINDS), VALUES, VALUES)
def test_what_follows_is_the_total_of_all_values(kind: AggregateKind, old: list[int], new: list[int]) -> None:
    found = changed_total(kind, total_of(kind, old), change_between(kind, old, new))
    if found is None:  # only where the extreme that there was has gone, at least once, and is not exceeded
        beyond = EXTREMES[kind]
        assert Counter(old)[beyond(old)] > Counter(new)[beyond(old)]
        assert beyond([*new, beyond(old)]) == beyond(old)
    else:
        assert found == total_of(kind, new)


@given(st.sampled_from(list(EXTREMES)), VALUES, VALUES)
def test_an_extreme_follows_what_comes(kind: AggregateKind, old: list[int], came: list[int]) -> None:
    new = [*old, *came]
    assert changed_total(kind, total_of(kind, old), change_between(kind, old, new)) == total_of(kind, new)


TOTALS = QueryTotals("shape", ((Total(3, -(10**40)), Total(0, 0, None)), (Total(1, 0, -5),)))


@pytest.mark.parametrize("totals", [TOTALS, NO_TOTALS])
def test_they_come_back_from_json_digit_by_digit(totals: QueryTotals) -> None:
    assert parse_totals(json.loads(json.dumps(totals_document(totals)))) == totals


WRONG: tuple[object, ...] = (
    None,
    [],
    ["shape"],
    ["shape", 1],
    ["shape", [1]],
    ["shape", [[[1, 2.5, None]]]],
    ["shape", [[[-1, 0, 0]]]],
    ["shape", [[[1, True, 0]]]],
    ["shape", [[[1, 2, 3, 4]]]],
    [1, []],
    {"a": 1, "b": 2},
)


@pytest.mark.parametrize("document", WRONG)
def test_others_are_refused(document: object) -> None:
    with pytest.raises(ValueError, match="totals is"):
        parse_totals(document)


def test_a_consumer_that_gives_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="no QueryTotals"):
        exact_totals(((1, 2),))


@given(st.sampled_from(KINDS), st.lists(VALUES, max_size=4))
def test_totals_of_parts_are_merged(kind: AggregateKind, parts: list[list[int]]) -> None:
    every = [each for part in parts for each in part]
    assert merged_total(kind, [total_of(kind, part) for part in parts]) == total_of(kind, every)


MARKS = {"/a": SourceMark("a-1", Watermark(3, 1.5)), "/b": SourceMark("b-1", Watermark(0, 2.0, 1, 4))}


def test_marks_are_read_back_as_they_were_written() -> None:
    assert parse_sources(json.loads(json.dumps(sources_document(MARKS)))) == MARKS
    assert parse_sources({}) == {}


@pytest.mark.parametrize(
    "document",
    [
        *(None, [], {"/a": []}, {"/a": {}}, {"/a": ["a", "3"]}, {"/a": [1, 3, 1.0]}, {"/a": ["a", 3, 1.0, 5, 4]}),
        *({"/a": ["a", 3, 1.0, 1, 4, 9]}, {str(number): ["a", 1, 1.0] for number in range(SOURCES_MAX + 1)}),
    ],
)
def test_marks_that_cannot_be_are_refused(document: object) -> None:
    with pytest.raises(ValueError, match=r"sources|watermark"):
        parse_sources(document)


NOW_S = 1_000.0


@pytest.mark.parametrize("next_at_s", [1_000.5, 1_001, 5_000.0])
def test_a_time_to_come_is_waited_for(next_at_s: float) -> None:
    assert wait_until_s(next_at_s, NOW_S) == next_at_s - NOW_S


@pytest.mark.parametrize("next_at_s", [None, True, "soon", nan, inf, -inf, 0, 999.0, NOW_S])
def test_any_other_is_refused_with_what_to_answer(next_at_s: object) -> None:
    with pytest.raises(PermanentError, match="next time") as refusal:
        wait_until_s(next_at_s, NOW_S)
    assert refusal.value.code is ErrorCode.CONSUMER_BROKEN
    assert refusal.value.remedy
