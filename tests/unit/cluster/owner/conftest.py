"""An owner in memory that nobody has elected yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.owner import OwnerWorld


@pytest.fixture
def world() -> Iterator[OwnerWorld]:
    made = OwnerWorld()
    yield made
    made.close()
