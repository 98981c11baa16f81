"""Queries, changes of their tables, and what follows: by `iscp.views` and a plain SparkSession alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import golden_queries

pytestmark = pytest.mark.spark

PATHS = sorted((Path(__file__).parents[2] / "fixtures" / "views").glob("*.sql"))


@pytest.fixture(scope="module")
def carried_out() -> dict[str, Any]:
    command = [sys.executable, "-m", golden_queries.__name__, *map(str, PATHS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("path", PATHS, ids=lambda each: each.stem)
def test_a_change_of_tables_changes_the_result_as_the_file_says(path: Path, carried_out: dict[str, Any]) -> None:
    wanted, found = golden_queries.sections(path.read_text(encoding="utf-8")), carried_out["found"][path.stem]
    assert found["plan"] == wanted["plan"]
    assert found["changes"] == wanted["changes"] == found["recomputed"]


def test_no_part_of_a_node_is_needed(carried_out: dict[str, Any]) -> None:
    assert carried_out["of_nodes"] == []
