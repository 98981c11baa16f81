"""What is said of the tables that a sink is made of is read back as it was written, and refused where it cannot be.

The next time that a handler answers: one to come is waited for, anything else is refused with a remedy.
"""

from __future__ import annotations

import json
from math import inf, nan

import pytest

from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.watermark import (
    SOURCES_MAX,
    SourceMark,
    Watermark,
    parse_sources,
    sources_document,
    wait_until_s,
)

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
