"""What is run after the suite is decided by facts alone, and only tests that fail make it fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.waiting import process_state, until
from tests.further_runs import (
    BUILD_S,
    CONTAINERS_S,
    KUBERNETES_S,
    UNAVAILABLE,
    Facts,
    Outcome,
    attempt,
    outcome_of,
    reason_against_containers,
    reason_against_kubernetes,
    run,
)

ROOT = Path(__file__).parents[2]
LONG_S = 10_000.0


@pytest.mark.parametrize(
    ("facts", "left_s", "reason"),
    [
        (Facts("", built=True, passed=False), KUBERNETES_S, ""),
        (Facts("", built=False, passed=False), KUBERNETES_S + BUILD_S, ""),
        (Facts("", built=False, passed=False), KUBERNETES_S, "s are left"),
        (Facts("", built=True, passed=False), KUBERNETES_S - 1, "s are left"),
        (Facts("", built=True, passed=True), LONG_S, "have passed here"),
        (Facts("needs root on Linux", built=False, passed=False), LONG_S, "needs root on Linux"),
        (Facts("needs root on Linux", built=False, passed=True), LONG_S, "have passed here"),
    ],
)
def test_kubernetes_runs_where_it_can_and_has_not_passed(facts: Facts, left_s: float, reason: str) -> None:
    found = reason_against_kubernetes(facts, left_s)
    assert reason in found
    assert bool(found) == bool(reason)


def test_containers_run_where_the_suite_found_no_socket() -> None:
    assert reason_against_containers(None, CONTAINERS_S) == ""
    assert "s are left" in reason_against_containers(None, CONTAINERS_S - 1)
    assert "unix:///run/docker.sock" in reason_against_containers("unix:///run/docker.sock", LONG_S)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (0, Outcome.PASSED),
        (1, Outcome.FAILED),
        (2, Outcome.FAILED),
        (-9, Outcome.FAILED),
        (UNAVAILABLE, Outcome.NOT_RUN),
        (None, Outcome.NOT_RUN),
    ],
)
def test_a_machine_that_cannot_is_no_failure(status: int | None, outcome: Outcome) -> None:
    assert outcome_of(status)[0] is outcome


@pytest.mark.parametrize(
    ("statuses", "left_s", "outcome", "runs"),
    [
        ([0], LONG_S, Outcome.PASSED, 1),
        ([1, 0], LONG_S, Outcome.PASSED, 2),
        ([1, 1], LONG_S, Outcome.FAILED, 2),
        ([1, None], LONG_S, Outcome.NOT_RUN, 2),
        ([1], 10.0, Outcome.NOT_RUN, 1),
        ([UNAVAILABLE], LONG_S, Outcome.NOT_RUN, 1),
    ],
)
def test_a_failure_counts_when_it_was_repeated(
    statuses: list[int | None], left_s: float, outcome: Outcome, runs: int
) -> None:
    given: list[float] = []

    def attempt_run(most_s: float) -> int | None:
        given.append(most_s)
        return statuses[len(given) - 1]

    found, words = attempt(lambda: left_s, 100.0, attempt_run)
    assert (found, given) == (outcome, [left_s] * runs)
    assert words


def test_what_takes_too_long_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    """A script's own cleaning up runs, and its children are gone."""
    trace, pid = tmp_path / "trace", tmp_path / "pid"
    script = f"trap 'echo cleaned >{trace}' EXIT; sleep 60 & echo $! >{pid}; wait"
    began_s = time.monotonic()
    assert run(["bash", "-c", script], 1.0) is None
    assert time.monotonic() - began_s < 30
    assert trace.read_text() == "cleaned\n"
    until(lambda: not runs(int(pid.read_text())))
    assert run([sys.executable, "-c", "raise SystemExit(3)"], 60.0) == 3


def runs(pid: int) -> bool:
    return process_state(pid) not in ("", "Z")


def facts_of(checkout: Path, cache: Path) -> Facts:
    command = [str(checkout / "scripts/test-kubernetes"), "--facts"]
    said = subprocess.run(
        command, env=os.environ | {"ISCP_CACHE": str(cache)}, capture_output=True, text=True, check=True
    )
    return Facts.parse(said.stdout)


def test_what_has_passed_is_known_until_chart_or_image_change(tmp_path: Path) -> None:
    """By what lies there, not by commits: of these a checkout of CI may have but the last one."""
    checkout, cache = tmp_path / "checkout", tmp_path / "cache"
    for name in ("deploy", "scripts", "tests/kubernetes"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "uv.lock", checkout)
    cache.mkdir()
    assert not facts_of(checkout, cache).built
    assert not facts_of(checkout, cache).passed
    script = (checkout / "scripts/test-kubernetes").read_text()
    recording = script[: script.index("\nfind_programs\n")] + '\nfingerprint >>"$cache/kubernetes-passed"\n'
    subprocess.run(
        ["bash", "-c", recording, str(checkout / "scripts/x")], env=os.environ | {"ISCP_CACHE": str(cache)}, check=True
    )
    assert facts_of(checkout, cache).passed
    chart = checkout / "deploy/helm/iscp/values.yaml"
    before = chart.read_text()
    chart.write_text(before + "# changed\n")
    assert not facts_of(checkout, cache).passed
    chart.write_text(before)
    assert facts_of(checkout, cache).passed
