"""A test bench for iterations, with the default bounds."""

from __future__ import annotations

import pytest

from tests.fakes.bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
