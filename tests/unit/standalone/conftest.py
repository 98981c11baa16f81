"""Runs in memory."""

from __future__ import annotations

import pytest

from tests.fakes.local_runs import Local


@pytest.fixture
def local() -> Local:
    return Local()
