"""The head of an index comes back as it was written, and anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iscp.index.lance.index_columns import FORMAT, HEAD_BYTES_MAX, FieldTotals, IndexHead, parse_head
from iscp.model.values.errors import PermanentError

HEAD = IndexHead(
    "{}",
    ("id", "day"),
    {"iscp:/lake/x": "record"},
    version=7,
    version_at_s=1.5,
    rows=9,
    faults=1,
    vectors=8,
    totals=(FieldTotals(9, 90), FieldTotals()),
    count_files=("words-1.arrow",),
    fingerprint="hashed",
    column_ids={"id": "c1"},
)


def test_a_head_comes_back_as_it_was() -> None:
    assert parse_head(HEAD.to_json()) == HEAD


def test_an_emptied_head_has_the_definition_and_no_rows() -> None:
    empty = HEAD.emptied(1)
    assert (empty.definition, empty.key, empty.records) == (HEAD.definition, HEAD.key, HEAD.records)
    assert (empty.rows, empty.faults, empty.vectors, empty.totals, empty.count_files) == (0, 0, 0, (FieldTotals(),), ())


@pytest.mark.parametrize(
    "change",
    [
        {"format": FORMAT + 1},
        {"rows": -1},
        {"rows": "9"},
        {"rows": True},
        {"version": -2},
        {"version_at_s": "now"},
        {"key": [1]},
        {"records": {"a": 1}},
        {"totals": [{"rows": 1}]},
        {"count_files": "words"},
        {"definition": {}},
        {"more": 1},
    ],
)
def test_what_is_no_head_of_ours_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PermanentError, match="head cannot be read"):
        parse_head(json.dumps(json.loads(HEAD.to_json()) | change))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, " " * (HEAD_BYTES_MAX + 1)])
def test_texts_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(PermanentError):
        parse_head(text)
