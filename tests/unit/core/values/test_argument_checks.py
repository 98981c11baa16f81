"""Timeouts that users give: any number up to a bound is accepted, all else refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iscp.core.values.argument_checks import require_seconds
from iscp.core.values.errors import InvalidRequest


@pytest.mark.parametrize("given", [0, 2.5, np.int64(30), np.float32(2.5), np.float64(1)])
def test_numbers_of_every_kind_are_seconds(given: Any) -> None:
    assert require_seconds(given, "timeout_s") == given


@pytest.mark.parametrize("given", [10**400, -(10**400), float("nan"), float("inf"), "3", None, True, 1j])
def test_what_no_clock_can_be_set_to_is_refused_by_its_name(given: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        require_seconds(given, "timeout_s")
    assert refused.value.field == "timeout_s"
