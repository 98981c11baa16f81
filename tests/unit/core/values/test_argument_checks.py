"""What callers hand over: timeouts up to a bound, names that are like known ones, faults that are collected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iscp.core.values.argument_checks import Refusals, name_hint, require_seconds
from iscp.core.values.errors import InvalidRequest


@pytest.mark.parametrize("given", [0, 2.5, np.int64(30), np.float32(2.5), np.float64(1)])
def test_numbers_of_every_kind_are_seconds(given: Any) -> None:
    assert require_seconds(given, "timeout_s") == given


@pytest.mark.parametrize("given", [10**400, -(10**400), float("nan"), float("inf"), "3", None, True, 1j])
def test_what_no_clock_can_be_set_to_is_refused_by_its_name(given: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        require_seconds(given, "timeout_s")
    assert refused.value.field == "timeout_s"


def test_a_name_is_hinted_at_by_the_known_one_that_it_is_most_like() -> None:
    assert name_hint("targt", ["target", "table"]) == "Did you mean target?"
    assert name_hint("colour", ["target", "table"]) == ""
    assert name_hint("ISCP_LISTN", ["ISCP_LISTEN", "ISCP_X"], prefix="ISCP_") == "Did you mean ISCP_LISTEN?"
    assert name_hint("t" * 1_000_000, ["target"]) == ""


def test_what_is_refused_is_collected_and_raised_with_all_that_is_beside_it() -> None:
    inner, outer = Refusals(), Refusals()
    for name in "ab":
        with inner.collect():
            raise InvalidRequest("is missing", field=name, remedy="Add it")
    with outer.collect():
        inner.raise_all()
    outer.add(InvalidRequest("is wrong", field="c"))
    with pytest.raises(InvalidRequest) as refused:
        outer.raise_all()
    assert [each.field for each in (refused.value, *refused.value.others)] == ["a", "b", "c"]
    assert str(refused.value) == "a is missing. Add it\nb is missing. Add it\nc is wrong"
    Refusals().raise_all()
