"""Fakes that tests of several rooms need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.bench import Bench
from tests.fakes.desk import Desk


@pytest.fixture
def bench() -> Bench:
    """Return a test bench for iterations, with the default bounds."""
    return Bench()


@pytest.fixture
def desk() -> Iterator[Desk]:
    """Yield the admin services of an owner that leads."""
    made = Desk()
    made.world.lead()
    yield made
    made.moved.close()
    made.world.close()
