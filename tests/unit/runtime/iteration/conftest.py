"""A bench with the bounds that are set by default."""

from __future__ import annotations

import pytest

from tests.fakes.bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
