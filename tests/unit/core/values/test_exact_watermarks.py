"""What is said of the tables that a sink is made of is read back as it was written, and refused where it cannot be."""

from __future__ import annotations

import json

import pytest

from iscp.core.values.exact_watermarks import SOURCES_MAX, parse_sources, sources_document
from iscp.core.values.watermark import SourceMark, Watermark

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
