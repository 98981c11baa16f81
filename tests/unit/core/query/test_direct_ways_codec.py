"""What is written of a view's ways comes back as it was; what anybody else writes comes back as nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.query.direct_ways import NO_WAYS, DirectWays, GroupedRows, ResultColumn
from iscp.core.query.direct_ways_codec import (
    COLUMNS_MAX,
    COMPARED_MAX,
    JOINED_TABLES_MAX,
    WAYS_BYTES_MAX,
    WaysOrigin,
    ways_from_json,
    ways_to_json,
)
from iscp.core.query.group_query import GroupQuery, Output
from iscp.core.query.join_query import Column, Equality, JoinedTable, JoinQuery, RowCondition
from iscp.core.values.totals import AggregateKind
from tests.fakes.forged_ways import forged

TYPES = ("byte", "short", "integer", "long", "string", "date", "boolean", "decimal(9,3)", "timestamp", "double")
EQUAL = TYPES[:7]
BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
VERSIONS = {"iscp": "1.2.3", "spark": "4.1.0", "delta": "x"}


def schema_of(kinds: Mapping[str, str]) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


@st.composite
def joins(draw: st.DrawFn) -> tuple[JoinQuery, dict[str, dict[str, str]]]:
    """A join as plans have them, and the columns of its tables: each is joined to one before it by equal columns."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4))  # a table may be there twice
    kinds = {name: {f"{name}.{kind}": kind for kind in TYPES} for name in names}
    equalities, read = [], [set(draw(st.lists(st.sampled_from(sorted(kinds[name])), min_size=1))) for name in names]
    for place in range(1, len(names)):
        other, kind = draw(st.integers(0, place - 1)), draw(st.sampled_from(EQUAL))
        pair = Equality(*(Column(each, f"{names[each]}.{kind}") for each in (other, place)))
        equalities.append(pair if draw(st.booleans()) else Equality(*reversed(pair)))
        for end in pair:
            read[end.place].add(end.name)
    tables = tuple(
        JoinedTable(name, tuple(sorted(read[place])), tuple(draw(st.lists(conditions(kinds[name], read[place])))))
        for place, name in enumerate(names)
    )
    there = [Column(place, name) for place, each in enumerate(read) for name in sorted(each)]
    outputs = draw(st.lists(st.sampled_from(there), min_size=1, max_size=5))
    return JoinQuery(tables, tuple(equalities), tuple(outputs)), kinds


@st.composite
def conditions(draw: st.DrawFn, kinds: Mapping[str, str], read: set[str]) -> RowCondition:
    column = draw(st.sampled_from(sorted(read)))
    kind = kinds[column]
    if kind not in (*BITS, "string") or draw(st.booleans()):
        return RowCondition(column)
    value = NAMES if kind == "string" else st.integers(-(2 ** BITS[kind]), 2 ** BITS[kind] - 1)
    return RowCondition(column, draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), draw(value))


@st.composite
def ways(draw: st.DrawFn) -> tuple[DirectWays, WaysOrigin]:
    query, kinds = draw(joins())
    found = [kinds[query.tables[each.place].name][each.name] for each in query.outputs]
    joined = None if "double" in found else query
    names = [f"{place}{draw(NAMES)}" for place in range(len(found) + 3)]
    shown = tuple(ResultColumn(*each) for each in zip(names, found, strict=False))
    origin = WaysOrigin(
        draw(NAMES),
        {each: f"/{each}" for each in kinds},
        VERSIONS,
        {name: schema_of(each) for name, each in kinds.items()},
    )
    keys = [place for place, kind in enumerate(found) if kind in EQUAL]
    if not keys or draw(st.booleans()):
        return (DirectWays(shown, None, joined) if joined else NO_WAYS), origin
    key = draw(st.sampled_from(keys))
    outputs = [(Output(names[0], None, f"c{key}"), found[key]), (Output(names[1], AggregateKind.COUNT), "long")]
    scales = {}
    for place, kind in enumerate(found):
        if kind in BITS or kind.startswith("decimal"):
            average, scale = draw(st.booleans()), 3 if kind.startswith("decimal") else 0
            scales[f"c{place}"] = scale
            digits = (scale + 4 if average else scale) if scale else None
            result = ("decimal(13,7)" if average else "decimal(19,3)") if scale else ("double" if average else "long")
            kind_of = AggregateKind.AVERAGE if average else AggregateKind.SUM
            outputs.append((Output(names[2], kind_of, f"c{place}", digits), result))
            break
    grouped = GroupQuery((f"c{key}",), tuple(each for each, _ in outputs), scales)
    columns = tuple(ResultColumn(each.name, kind) for each, kind in outputs)
    return DirectWays(columns, GroupedRows(grouped, query)), origin


@given(ways())
def test_ways_come_back_as_they_were(case: tuple[DirectWays, WaysOrigin]) -> None:
    found, origin = case
    content = ways_to_json(found, origin)
    assert content is not None
    assert ways_from_json(content, origin) == found
    assert ways_from_json(content, replace(origin, sql=origin.sql + " ")) is None
    assert ways_from_json(content, replace(origin, versions=VERSIONS | {"spark": "4.1.1"})) is None
    assert ways_from_json(content, replace(origin, tables={**origin.tables, "more": "/more"})) is None
    for name, schema in origin.schemas.items():
        assert ways_from_json(content, replace(origin, schemas={**origin.schemas, name: schema + " "})) is None


@given(ways(), st.data())
def test_no_damage_gives_other_ways(case: tuple[DirectWays, WaysOrigin], data: st.DataObject) -> None:
    found, origin = case
    content = ways_to_json(found, origin)
    assert content is not None
    at = data.draw(st.integers(0, len(content) - 1))
    assert ways_from_json(content[:at], origin) is None
    changed = content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
    assert ways_from_json(changed, origin) in (None, found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
JOIN = JoinQuery((JoinedTable("t", ("a",)),), (), (Column(0, "a"),))
GROUPS = GroupedRows(GroupQuery(("c0",), (Output("a", None, "c0"),), {}), JOIN)
WAYS = DirectWays((ResultColumn("a", "long"),), GROUPS, JOIN)
ORIGIN = WaysOrigin("select a from t", {"t": "/t"}, VERSIONS, {"t": schema_of({"a": "long"})})


def forge(change: Callable[[dict[str, Any]], object]) -> bytes:
    content = ways_to_json(WAYS, ORIGIN)
    assert content is not None
    return forged(content, change)


def test_a_file_that_is_forged_well_is_believed() -> None:
    assert ways_from_json(forge(lambda document: None), ORIGIN) == WAYS


PLACES = [
    *(("columns",), ("groups",), ("joins",), ("groups", "keys"), ("groups", "outputs"), ("groups", "scales")),
    *(("groups", "rows"), ("joins", "tables"), ("joins", "equalities"), ("joins", "outputs")),
    *(("columns", 0), ("groups", "outputs", 0), ("joins", "tables", 0), ("joins", "outputs", 0), ("columns", 0, 1)),
    *(("joins", "tables", 0, "conditions"), ("joins", "tables", 0, "columns"), ("joins", "outputs", 0, 0)),
]


@given(st.sampled_from(PLACES), JSON)
def test_whatever_stands_somewhere_raises_nothing(place: tuple[str | int, ...], value: Any) -> None:
    def put(document: Any) -> None:
        for each in place[:-1]:
            document = document[each]
        document[place[-1]] = value

    found = ways_from_json(forge(put), ORIGIN)
    assert found is None or {found.joined, found.grouped and found.grouped.rows} <= {None, JOIN}


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b'"x"', b"{}", b'{"digest": 1}', b"\xff\xfe", b"[" * 500_000, b"9" * 100_000]
)
def test_what_is_no_document_is_no_file(content: bytes) -> None:
    assert ways_from_json(content, ORIGIN) is None


def test_ways_beyond_the_bounds_are_neither_written_nor_read() -> None:
    assert ways_to_json(WAYS, replace(ORIGIN, sql="s" * WAYS_BYTES_MAX)) is None
    assert ways_to_json(WAYS, replace(ORIGIN, sql="\ud800")) is None
    assert ways_from_json(forge(lambda document: document.update(more="m" * WAYS_BYTES_MAX)), ORIGIN) is None
    table = JoinedTable("t", ("a",), (RowCondition("a", "=", 1),) * (COMPARED_MAX + 1))
    assert ways_to_json(replace(WAYS, joined=replace(JOIN, tables=(table,))), ORIGIN) is None
    pairs = tuple(Equality(Column(0, "a"), Column(each, "a")) for each in range(1, JOINED_TABLES_MAX + 1))
    many = JoinQuery((JoinedTable("t", ("a",)),) * (JOINED_TABLES_MAX + 1), pairs, JOIN.outputs)
    assert ways_to_json(replace(WAYS, joined=many), ORIGIN) is None
    wide = replace(JOIN, outputs=JOIN.outputs * (COLUMNS_MAX + 1))
    columns = tuple(ResultColumn(f"c{place}", "long") for place in range(COLUMNS_MAX + 1))
    assert ways_to_json(DirectWays(columns, None, wide), ORIGIN) is None
