"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Not started yet; at the end everything is stopped, and nothing may be left."""
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.stop()
