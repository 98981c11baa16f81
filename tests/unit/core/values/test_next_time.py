"""The next time that a handler answers: one to come is waited for, anything else is refused with a remedy."""

from __future__ import annotations

from math import inf, nan

import pytest

from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.next_time import wait_until_s

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
