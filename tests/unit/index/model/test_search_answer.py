"""Answers have a form in JSON, whatever values rows have."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from iscp.index.model.bm25 import Explanation
from iscp.index.model.search_answer import Hit, SearchAnswer, json_value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((None, None), (True, True), (3, 3), (1.5, 1.5), ("é", "é"), (Decimal("1E+3"), "1000")),
        *((date(2026, 1, 2), "2026-01-02"), (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00")),
        *((b"\xff", "/w=="), (bytearray(b"a"), "YQ=="), ([1, b"a"], [1, "YQ=="]), ((0.5,), [0.5]), (1j, "1j")),
        *((float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity")),
    ],
)
def test_values_have_a_form_in_json(value: Any, shown: Any) -> None:
    assert json_value(value) == shown
    json.dumps(json_value(value), allow_nan=False)


def test_an_answer_is_shown_with_its_version() -> None:
    plain = Hit({"id": 1}, 2.5)
    full = Hit({"id": b"a"}, 1.0, {"at": date(2026, 1, 2)}, {"body": ("<em>x</em>",)}, Explanation(1.0, "score"))
    answer = SearchAnswer((plain, full), 7, 1.5, 12, 3.25, 2, ("dat",))
    assert json.loads(json.dumps(answer.to_dict())) == {
        "hits": [
            {"key": {"id": 1}, "score": 2.5, "columns": {}, "highlights": {}},
            {
                "key": {"id": "YQ=="},
                "score": 1.0,
                "columns": {"at": "2026-01-02"},
                "highlights": {"body": ["<em>x</em>"]},
                "explanation": {"value": 1.0, "description": "score", "details": []},
            },
        ],
        "version": 7,
        "version_at_s": 1.5,
        "index_version": 12,
        "took_ms": 3.25,
        "total": 2,
        "cut": ["dat"],
    }
