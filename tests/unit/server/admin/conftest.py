"""The admin services of an owner that leads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.desk import Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    made.world.lead()
    yield made
    made.moved.close()
    made.world.close()
