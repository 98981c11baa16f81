"""README's tour as it is printed there, once and again: each command succeeds, and the copies follow the table."""

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


@pytest.mark.spark
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_tour_can_be_made_as_it_is_written(tmp_path: Path, times: int) -> None:
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
    finally:
        up.stop()
