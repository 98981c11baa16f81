"""A machine with Kubernetes, and the chart's release on it; both last for all tests, which follow each other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.further_runs import UNAVAILABLE
from tests.kubernetes.changing_tables import ChangingTables
from tests.kubernetes.machine import Machine
from tests.kubernetes.policies import Policies
from tests.kubernetes.release import IMAGE, NEXT_IMAGE, Release

LAKE = Path("/srv/lake")
"""Where the tests and the pods see it alike."""
TABLES = 12
PAUSE_S = 0.1
REPORT = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    assert "KUBERNETES_WORK" in os.environ, "scripts/test-kubernetes runs these"
    programs, work = (Path(os.environ[name]) for name in ("KUBERNETES_PROGRAMS", "KUBERNETES_WORK"))
    made = Machine(programs, work / "machine")
    try:
        try:
            made.start(sorted((work / "images").iterdir()))
        except (AssertionError, subprocess.CalledProcessError) as error:
            # Nothing of the project's own has run yet.
            pytest.exit(f"this machine does not become one of Kubernetes: {error}", returncode=UNAVAILABLE)
        made.tag(f"localhost/iscp:{IMAGE}", f"localhost/iscp:{NEXT_IMAGE}")
        yield made
        if request.session.testsfailed:
            made.keep_state()
    finally:
        made.stop()


@pytest.fixture(scope="session", autouse=True)
def policies(machine: Machine) -> Iterator[None]:
    """From the first pod on."""
    held = Policies(machine)
    held.start()
    yield
    held.stop()


@pytest.fixture(scope="session")
def release(machine: Machine) -> Release:
    made = Release(machine, LAKE)
    made.prepare()
    return made


@pytest.fixture(scope="session")
def tables(release: Release) -> ChangingTables:
    return ChangingTables(release.lake, "source", TABLES, PAUSE_S)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """What a test has measured: shown at the end."""
    lines: list[str] = []
    yield lines
    request.config.stash.setdefault(REPORT, []).extend(f"{request.node.name}: {line}" for line in lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(REPORT, []):
        terminalreporter.write_line(line)
