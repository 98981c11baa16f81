"""What ranges agree on survives where it is written, and distinguishes builds by what they read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from iscp.core.build.build_terms import NO_TERMS, BuildTerms, parse_terms
from iscp.core.values.watermark import SourceMark, Watermark

MARKS = {"/t": SourceMark("t-1", Watermark(3, 5.0)), "/u": SourceMark("t-2", Watermark(7, 6.5))}
TERMS = BuildTerms(MARKS, 1234.5, "groups", passing=True)


@pytest.mark.parametrize("terms", [NO_TERMS, TERMS, BuildTerms(MARKS, way="rows")])
def test_they_come_back_from_what_is_written_among_whatever_else(terms: BuildTerms) -> None:
    written = json.dumps({"format": 1, "version": 3, **terms.document()})
    assert parse_terms(json.loads(written)) == terms


def test_a_pin_is_that_of_what_is_read_and_how() -> None:
    assert NO_TERMS.pin == ""
    assert TERMS.pin == replace(TERMS, sources=dict(reversed(MARKS.items())), as_of_s=9.0).pin
    others = [
        replace(TERMS, way="rows"),
        replace(TERMS, sources={**MARKS, "/u": SourceMark("t-2", Watermark(8, 7.5))}),
        replace(TERMS, sources={**MARKS, "/u": SourceMark("t-3", Watermark(7, 6.5))}),
        replace(TERMS, sources={**MARKS, "/u": SourceMark("t-2", Watermark(7, 6.6))}),
    ]
    assert len({TERMS.pin, *(each.pin for each in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    "wrong", [[], {"sources": []}, {"sources": {"/t": ["t-1", -7]}}, {"as_of_s": "now"}, {"way": 7}, None]
)
def test_what_cannot_be_meant_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"terms|sources|version|as_of_s|way"):
        parse_terms(wrong)
