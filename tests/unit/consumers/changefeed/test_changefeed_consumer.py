"""The schema that a changefeed derives from a source's columns."""

from __future__ import annotations

import pyarrow as pa

from iscp.consumers.changefeed.changefeed_consumer import _row_schema


def test_nothing_in_a_row_has_to_be_there_as_a_struct_that_is_null_has_no_fields() -> None:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    source = pa.schema(
        [
            pa.field("s", inner, nullable=False),
            pa.field("l", pa.list_(pa.field("element", inner, nullable=False))),
            pa.field("m", pa.map_(pa.string(), pa.field("value", inner, nullable=False))),
            ("_key_hash", pa.int64()),
            ("_change_type", pa.string()),
        ]
    )
    row = _row_schema(source)
    assert row.names == ["s", "l", "m"]
    assert row.field("s").nullable
    inside = [row.field("s").type, row.field("l").type.value_type, row.field("m").type.item_type]
    assert all(kind.field("a").nullable for kind in inside)
    assert row.field("l").type.value_field.nullable
    assert row.field("m").type.item_field.nullable
