"""`iscp demo` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from iscp.cli.shell.root_group import ExitStatus
from tests.e2e.harness import MARK, leftovers, wait_for
from tests.selection import in_full

DEMO = (sys.executable, "-P", "-m", "iscp.cli.iscp", "demo")


def replayed(tmp_path: Path, *options: str, timeout_s: float, **environ: str) -> dict[str, Any]:
    """What it prints at its end, after which none of its processes is left; `environ` goes to its nodes."""
    mark = uuid4().hex
    run = subprocess.run(
        [*DEMO, *options, "--json"],
        env=os.environ | {MARK: mark, "TMPDIR": str(tmp_path), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    result: dict[str, Any] = json.loads(line)
    assert result["verified"] is True
    assert leftovers(mark) == []
    return result


@pytest.mark.further  # each time: the tour in test_readme.py, and the start of a demo below
@pytest.mark.spark
def test_a_few_days_are_verified(tmp_path: Path) -> None:
    result = replayed(tmp_path, "--days", "3", timeout_s=200)
    tables = ["all_flights", "late_or_expected", "weather_log", "flights_feed", "delays_by_day", "busiest_routes"]
    assert [job["name"] for job in result["jobs"]] == [*tables, "manual_words", "manual_meaning"]
    for job in result["jobs"]:
        assert job["equal"] is True
        assert job["rows"] > 0
        assert job["iterations"] > 0
        assert job["lag_p95_s"] >= job["lag_p50_s"] >= 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.full
def test_it_ends_equal_though_nodes_are_killed_all_the_time(tmp_path: Path) -> None:
    result = replayed(tmp_path, "--days", "40", "--nodes", "3", "--chaos", timeout_s=400)
    assert any("owner" in kill for kill in result["kills"]), result["kills"]


@pytest.mark.spark
@pytest.mark.parametrize("phase", in_full(["starting", "replaying"]))
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, phase: str) -> None:
    mark = uuid4().hex
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        demo = subprocess.Popen(
            [*DEMO, "--days", "30", "--json"],
            env=os.environ | {MARK: mark, "TMPDIR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            # As a terminal starts it. Tests that a shell runs in the background inherit that it is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        wait_for(f"it is {phase}", lambda: phase in log.read_text() and len(leftovers(mark)) > 2)
        time.sleep(1.0)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(90) == ExitStatus.INTERRUPTED
    finally:
        demo.kill()
    wait_for("nothing is left behind", lambda: not leftovers(mark), timeout_s=10.0)
    assert list(tmp_path.iterdir()) == [log]
