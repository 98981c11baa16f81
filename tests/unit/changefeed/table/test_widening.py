"""A feed is given the columns and fields that it lacks; of what it has nothing becomes another type."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from iscp.changefeed.table.widening import lost_names, widened
from iscp.core.values.errors import ErrorCode, PermanentError

Nest = Callable[[pa.DataType], pa.DataType]

NESTS: dict[str, Nest] = {
    "struct": lambda kind: kind,
    "struct within one": lambda kind: pa.struct([("inner", kind)]),
    "list": lambda kind: pa.list_(kind),
    "map": lambda kind: pa.map_(pa.string(), kind),
    "map's key": lambda kind: pa.map_(kind, pa.string()),
    "deep": lambda kind: pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(kind)))])),
}
PATHS = {
    "struct": "c.y",
    "struct within one": "c.inner.y",
    "list": "c.element.y",
    "map": "c.value.y",
    "map's key": "c.key.y",
    "deep": "c.element.m.value.element.y",
}


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct([*fields.items()])


def row(kind: pa.DataType, *more: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([("id", pa.int64()), ("c", kind), *more])


@pytest.mark.parametrize("nest", [*NESTS])
def test_fields_that_come_are_taken_behind_those_that_are_there(nest: str) -> None:
    within = NESTS[nest]
    held = row(within(struct(x=pa.int64(), y=pa.string())))
    given = row(within(struct(z=struct(u=pa.int32()), y=pa.string(), x=pa.int32())), ("d", pa.int8()))
    wider = widened(held, given, ["id"])
    assert wider == row(within(struct(x=pa.int64(), y=pa.string(), z=struct(u=pa.int32()))), ("d", pa.int8()))
    assert widened(wider, given, ["id"]) == wider
    assert widened(wider, held, ["id"]) == wider
    assert lost_names(held, given) == ()


@pytest.mark.parametrize("nest", [*NESTS])
def test_fields_that_go_are_named_and_stay_in_the_feed(nest: str) -> None:
    within = NESTS[nest]
    held, given = row(within(struct(x=pa.int64(), y=pa.string()))), row(within(struct(x=pa.int64())))
    assert lost_names(held, given) == (PATHS[nest],)
    assert widened(held, given, ["id"]) == held
    assert lost_names(held, pa.schema([held.field("id")])) == ("c",)


@pytest.mark.parametrize("nest", [*NESTS])
@pytest.mark.parametrize(
    "other",
    [struct(x=pa.string()), struct(X=pa.int64()), struct(x=pa.list_(pa.int64())), struct(x=pa.int64(), Y=pa.string())],
    ids=["another type", "another case", "a list", "another case of what stays"],
)
def test_what_is_another_type_is_refused(nest: str, other: pa.DataType) -> None:
    within = NESTS[nest]
    held = row(within(struct(x=pa.int64(), y=pa.string())))
    with pytest.raises(PermanentError, match=r"column c is of type .* now, the feed has") as refused:
        widened(held, row(within(other)), ["id"])
    assert refused.value.code is ErrorCode.SCHEMA_CHANGED
    assert refused.value.remedy


def test_a_key_has_no_more_fields_as_its_rows_would_be_other_ones() -> None:
    held, given = row(struct(x=pa.int64())), row(struct(x=pa.int64(), y=pa.int64()))
    with pytest.raises(PermanentError, match="column c is of type"):
        widened(held, given, ["c"])
    assert widened(held, row(struct(x=pa.int32())), ["c"]) == held
