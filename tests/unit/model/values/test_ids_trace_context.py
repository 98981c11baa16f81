"""Contexts of traces come from callers and from tables: only what the standard allows is one."""

from __future__ import annotations

import pytest

from iscp.model.values.ids import is_sampled, trace_of
from tests.fakes.tracing import traceparent


@pytest.mark.parametrize(
    "text",
    [
        "",
        None,
        7,
        b"00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01",
        traceparent(1).upper().replace("1", "A"),
        traceparent(1) + "\n",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "0" * 16 + "-01",
        "01" + traceparent(1)[2:],
        traceparent(1)[:-1],
        traceparent(1) + "-" + "x" * 100_000,
    ],
)
def test_anything_else_is_no_context(text: object) -> None:
    assert trace_of(text) == ""


def test_a_context_is_itself_and_says_whether_it_is_recorded() -> None:
    assert trace_of(traceparent(7)) == traceparent(7)
    assert is_sampled(traceparent(7))
    assert not is_sampled(traceparent(7, sampled=False))
    assert not is_sampled("")
