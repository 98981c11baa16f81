"""README's tour and the notebook as they are written, once and again: all succeeds, and the copies follow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from iscp.adapters.system.clock import SystemClock
from iscp.cli.node.launch import start_up
from tests.e2e.harness import MARK, QUICK, read
from tests.notebook import run_notebook

ROOT = Path(__file__).parents[2]
TOUR = re.compile(r"^## Five minutes$(.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(sh|python)$(.*?)^```$", re.MULTILINE | re.DOTALL)
LAKE, ENDPOINT = "/tmp/lake", "127.0.0.1:7430"
COMMAND_WAIT_S = 90.0


def blocks() -> list[tuple[str, str]]:
    """(language, text) of the tour but for its first block, which sets up and starts the node."""
    tour = TOUR.search((ROOT / "README.md").read_text())
    assert tour is not None
    first, *others = BLOCK.findall(tour[1])
    assert "iscp up" in first[1]
    return others


def run(command: str, environ: dict[str, str]) -> None:
    """A line of the shell; what follows a feed without end is read until its first row."""
    with subprocess.Popen(["bash", "-c", f"exec {command}"], env=environ, stdout=subprocess.PIPE, text=True) as child:
        if "feed tail" in command:
            assert child.stdout is not None
            assert child.stdout.readline().strip(), command
            child.terminate()
        else:
            assert child.communicate(timeout=COMMAND_WAIT_S)[0].strip(), command
            assert child.returncode == 0, command


def make_quickstart(endpoint: str, lake: Path) -> None:
    """Runs the notebook's cells against the node; what it made is gone at its end."""
    lake.mkdir()
    made = run_notebook(ROOT / "examples/quickstart.ipynb", {"ENDPOINT": endpoint, "LAKE": str(lake)})
    assert made["copy_rows"] == [
        {"id": 1, "state": "paid", "total": 10.0},
        {"id": 2, "state": "open", "total": 20.0},
        {"id": 4, "state": "open", "total": 40.0},
    ]
    assert made["open_rows"] == [{"id": 2, "total": 20.0}, {"id": 4, "total": 40.0}]
    assert made["first"].rows["operation"].to_pylist() == ["insert"] * 3
    assert made["second"].rows["operation"].to_pylist() == ["update_preimage", "update_postimage"]
    assert [job.applied_version for job in made["jobs"]] == [made["newest"]] * 3
    assert "number" in str(made["refused"])
    assert made["missing"].code.name == "JOB_NOT_FOUND"
    assert made["dropped"] == [True] * 3
    assert not lake.exists()


@pytest.mark.spark
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_tour_and_the_notebook_can_be_made_as_they_are_written(tmp_path: Path, times: int) -> None:
    up = start_up(tmp_path / "iscp", SystemClock(), os.environ | QUICK | {MARK: uuid4().hex}, port=0)
    lake = tmp_path / "lake"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        for _ in range(times):
            session: dict[str, Any] = {}
            for language, text in blocks():
                here = text.replace(LAKE, str(lake)).replace(ENDPOINT, up.endpoint)
                if language == "python":
                    exec(here, session)
                    continue
                for command in here.strip().splitlines():
                    run(command, os.environ | {"PATH": path, "ISCP_ENDPOINT": up.endpoint})
            for copy in ("orders_copy", "orders_again"):
                assert sorted(read(str(lake / copy))["id"].to_pylist()) == [1, 2, 3, 4]
            assert sorted(read(str(lake / "open_orders"))["id"].to_pylist()) == [1, 2, 4]
            make_quickstart(up.endpoint, tmp_path / "quickstart")
    finally:
        up.stop()
