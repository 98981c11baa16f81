"""What .ci/run runs after scripts/test, where this machine can: `python -m tests.further_runs SECONDS_THAT_ARE_LEFT`.

Containers by a dockerd of their own where the suite has found no socket, and Kubernetes where chart, image or their
tests differ from what has passed on this machine. Only tests that fail make it fail: what cannot be run here is said.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.containers.engine import find_engine

ROOT = Path(__file__).parents[1]
CONTAINERS = ("scripts/test-containers",)
KUBERNETES = ("scripts/test-kubernetes",)

UNAVAILABLE = 75
"""The exit status of both where the machine cannot run them, and nothing is wrong with what is tested."""

CONTAINERS_S = 900.0
"""Two minutes, and the build of what runs in them."""

KUBERNETES_S = 2_100.0
"""Image and tests take 15 to 20 minutes on two cores."""

BUILD_S = 1_500.0
"""Kubernetes, where it was not built here yet: a quarter of an hour of processor time."""

STOP_WAIT_S = 60.0
"""How long a run that has no time left may take to remove what it has made; then it is killed."""


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Facts:
    """As `scripts/test-kubernetes --facts` says them.

    `lacks`: what this machine does; `built`: Kubernetes, into the cache; `passed`: chart and image as they are now.
    """

    lacks: str
    built: bool
    passed: bool

    @classmethod
    def parse(cls, text: str) -> Facts:
        """Of lines `name=value`. Raises KeyError."""
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return cls(found["lacks"], found["built"] == "true", found["passed"] == "true")


def reason_against_kubernetes(facts: Facts, left_s: float) -> str:
    """Why it is not to be run; empty: it is."""
    if facts.passed:
        return "chart and image are those that have passed here"
    if facts.lacks:
        return facts.lacks
    needed_s = KUBERNETES_S + (0.0 if facts.built else BUILD_S)
    return "" if left_s >= needed_s else f"{left_s:.0f} s are left, and it may take {needed_s:.0f} s"


def reason_against_containers(engine: str | None, left_s: float) -> str:
    if engine is not None:
        return f"the suite ran them at {engine}"
    return "" if left_s >= CONTAINERS_S else f"{left_s:.0f} s are left, and it may take {CONTAINERS_S:.0f} s"


def run(command: Sequence[str], timeout_s: float) -> int | None:
    """Its exit status; None: it was stopped, with all that it had started, since its time was over."""
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return None


def outcome_of(status: int | None) -> tuple[Outcome, str]:
    """What an exit status says, and in words."""
    match status:
        case 0:
            return Outcome.PASSED, "passed"
        case None:
            return Outcome.NOT_RUN, "not finished within its time"
        case int() if status == UNAVAILABLE:
            return Outcome.NOT_RUN, "this machine cannot run it: see above"
    return Outcome.FAILED, f"failed with status {status}"


def attempt(
    left_s: Callable[[], float], limit_s: float, attempt_run: Callable[[float], int | None]
) -> tuple[Outcome, str]:
    """Once; and once more where tests failed and there is time: on a machine under load one may fail for want of time.

    What failed once and could not be repeated is not held to be a failure.
    """
    outcome, words = outcome_of(attempt_run(left_s()))
    if outcome is not Outcome.FAILED:
        return outcome, words
    if left_s() < limit_s:
        return Outcome.NOT_RUN, f"{words}, and there is no time to repeat it: run it by hand"
    again, said = outcome_of(attempt_run(left_s()))
    return (
        (again, f"{said}, repeated after a failure")
        if again is not Outcome.NOT_RUN
        else (again, f"{words}, then {said}")
    )


def main() -> None:
    end_s = time.monotonic() + float(sys.argv[1])

    def left_s() -> float:
        return end_s - time.monotonic()

    outcomes: list[Outcome] = []

    def further(name: str, reason: str, command: Sequence[str], limit_s: float) -> None:
        print(f"\n== {name}", flush=True)  # noqa: T201
        outcome, words = (
            (Outcome.NOT_RUN, reason) if reason else attempt(left_s, limit_s, lambda most_s: run(command, most_s))
        )
        outcomes.append(outcome)
        said = words if outcome is not Outcome.NOT_RUN else f"not run: {words}"
        print(f"{name}: {said}", flush=True)  # noqa: T201

    engine, _ = find_engine(os.environ, Path.home())
    further("containers", reason_against_containers(engine, left_s()), CONTAINERS, CONTAINERS_S)
    said = subprocess.run([*KUBERNETES, "--facts"], cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        reason = reason_against_kubernetes(Facts.parse(said.stdout), left_s())
    except KeyError:
        reason = f"what there is cannot be said: {said.stderr.strip()}"
    further("Kubernetes", reason, KUBERNETES, KUBERNETES_S)
    sys.exit(Outcome.FAILED in outcomes)


if __name__ == "__main__":
    main()
