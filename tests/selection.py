"""Which cases of a parametrization run each time; the others run with `scripts/test --full` alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def in_full(values: Iterable[Any], but: int | Collection[object] = 1, unpack: bool = False) -> list[Any]:
    """All `values` as cases of a parametrization, of which only those in `but` (or the first so many) run each time.

    For cases that go through the same code: one shows that it is right, and the others that it is for each kind.
    `unpack` is for cases that are tuples of values, one for each of several names.
    """
    cases = list(values)
    kept = cases[:but] if isinstance(but, int) else list(but)
    assert kept, "a behaviour of which no case runs each time"
    assert all(each in cases for each in kept), f"{kept} are not all among {cases}"
    return [
        case if case in kept else pytest.param(*(case if unpack else (case,)), marks=pytest.mark.further)
        for case in cases
    ]
