"""A feed's table of two shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.changefeed.table.feed_schema import create_feed_table
from tests.fakes.feed_program import SCHEMA


@pytest.fixture
def uri(tmp_path: Path) -> str:
    create_feed_table(str(tmp_path / "feed"), SCHEMA, 2)
    return str(tmp_path / "feed")
