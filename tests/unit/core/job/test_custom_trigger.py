"""What a trigger of the user's own may answer: a start, or a later time, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from iscp.core.job.custom_trigger import ASK_AGAIN_S, NotBefore, StartNow, TriggerFacts, wait_of
from iscp.core.values.errors import ErrorCode, TemporaryError

FACTS = TriggerFacts("a", "t", "x", 3, 30.0, 5, 1_000.0, 900.0, 910.0, {})


@pytest.mark.parametrize(
    ("answer", "wait_s"),
    [(StartNow(), 0.0), (NotBefore(1_060), 60.0), (NotBefore(1_000.000_1), ASK_AGAIN_S), (NotBefore(1e300), 1e300)],
)
def test_a_start_or_a_later_time_is_taken(answer: object, wait_s: float) -> None:
    assert wait_of(answer, FACTS) == wait_s


@pytest.mark.parametrize(
    "answer",
    [
        *(None, True, 5.0, "now", StartNow, NotBefore),
        *(NotBefore(at_s) for at_s in (1_000.0, 999.0, -1, float("nan"), float("inf"))),
    ],
)
def test_anything_else_is_a_fault_that_shows_what_was_answered(answer: Any) -> None:
    with pytest.raises(TemporaryError, match="answered") as refused:
        wait_of(answer, FACTS)
    assert refused.value.code is ErrorCode.TRIGGER_FAILED


@pytest.mark.parametrize("at_s", [None, True, "1060", [1_060]])
def test_a_time_has_to_be_a_number(at_s: Any) -> None:
    with pytest.raises(TemporaryError, match="which is no time"):
        wait_of(NotBefore(at_s), FACTS)
