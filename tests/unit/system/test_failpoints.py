"""A failpoint acts in the process that reaches it, at the time it was set for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from iscp.model.values.errors import ConfigurationError, EngineError
from iscp.system.failpoints import EnvironmentFailpoints

PROGRAM = """
from iscp.system.failpoints import EnvironmentFailpoints
points = EnvironmentFailpoints()
for n in range(1, 4):
    print(n, flush=True)
    points.reach("commit.before")
print("alive", flush=True)
"""


def run(setting: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ISCP_FAILPOINTS": setting}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("setting", "status", "output"),
    [
        ("", 0, ["1", "2", "3", "alive"]),
        ("other=kill", 0, ["1", "2", "3", "alive"]),
        ("commit.before=kill", -signal.SIGKILL, ["1"]),
        ("commit.before=kill:3", -signal.SIGKILL, ["1", "2", "3"]),
        ("other=raise, commit.before=exit:2", 1, ["1", "2"]),
    ],
)
def test_a_process_dies_at_the_failpoint_that_was_set(setting: str, status: int, output: list[str]) -> None:
    ended = run(setting)
    assert (ended.returncode, ended.stdout.split()) == (status, output), ended.stderr


def test_raise_and_sleep() -> None:
    points = EnvironmentFailpoints({"ISCP_FAILPOINTS": "a=raise:2,b=sleep:0.05"})
    points.reach("a")
    with pytest.raises(EngineError, match="failpoint a"):
        points.reach("a")
    points.reach("a")
    began_s = time.monotonic()
    points.reach("b")
    assert time.monotonic() - began_s >= 0.05


def test_every_failpoint_that_is_reached_is_noted_in_its_order() -> None:
    ended = run("*=note,commit.before=exit:2")
    assert (ended.returncode, ended.stdout.split()) == (1, ["1", "2"])
    assert ended.stderr.splitlines() == ["failpoint commit.before"], "what ends the process comes before the note"


def test_the_name_of_all_counts_each_name_by_itself() -> None:
    points = EnvironmentFailpoints({"ISCP_FAILPOINTS": "*=raise:2"})
    points.reach("a")
    points.reach("b")
    with pytest.raises(EngineError, match="failpoint b"):
        points.reach("b")


@pytest.mark.parametrize("setting", ["a", "a=", "a=stop", "a=kill:x", "=kill", "a=sleep", "a=sleep:x", "a=kill:1:2"])
def test_a_wrong_setting_is_refused(setting: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        EnvironmentFailpoints({"ISCP_FAILPOINTS": setting})
    assert refused.value.field == "ISCP_FAILPOINTS"
