"""Rows get the columns of their target: missing ones are null, narrower types are widened."""

from __future__ import annotations

import json

import pyarrow as pa

from iscp.adapters.delta.sink.target_columns import Columns


def columns(**kinds: str) -> Columns:
    fields = [{"name": name, "type": kind, "nullable": False, "metadata": {"x": 1}} for name, kind in kinds.items()]
    return Columns(json.dumps({"type": "struct", "fields": fields}))


def schema(**kinds: str) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


def test_rows_that_fit_are_left_as_they_are() -> None:
    rows = pa.table({"B": ["x"], "a": pa.array([1], pa.int64())})
    assert columns(a="long", b="string").fitted(rows) is rows


def test_what_they_lack_is_null_and_what_is_narrower_is_widened() -> None:
    rows = pa.table({"A": pa.array([1], pa.int32())})
    fitted = columns(a="long", b="string", c="timestamp").fitted(rows)
    assert fitted.to_pylist() == [{"a": 1, "b": None, "c": None}]
    assert fitted.schema.field("a").type == pa.int64()


def test_what_a_table_takes_and_what_is_just_like_it() -> None:
    held = columns(a="long", b="string")
    assert held.match(schema(b="string", a="long"))
    for other in (schema(a="long"), schema(A="integer"), schema(b="string", a="long")):
        assert held.take(other)
    for other in (schema(a="long", c="string"), schema(a="string"), schema(a="double")):
        assert not held.take(other)
        assert not held.match(other)
