"""For all tests: examples may take as long as the machine is busy; what has to be fast says so itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

if "ISCP_ETCD" not in os.environ and shutil.which("go"):  # once for all processes of a run, which inherit it
    from tests.containers.go_programs import current_etcd

    if (built := current_etcd()) is not None:
        os.environ["ISCP_ETCD"] = str(built)

os.environ.setdefault("ISCP_ETCD__ACCEPT_FAULTY_RELEASE", "true")  # that of PyPI is one: nodes inherit it

settings.register_profile("iscp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("iscp")


SEEN = pytest.StashKey[Counter[str]]()
"""Cases of each slow test that were collected and run each time."""


STARTS_ETCD = ("tests/integration/", "tests/e2e/")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which etcd it was that tests started."""
    reports = (each for outcome in ("passed", "failed") for each in terminalreporter.stats.get(outcome, ()))
    if any(each.nodeid.startswith(STARTS_ETCD) for each in reports):
        from iscp.etcd.server import find_etcd

        binary = find_etcd()
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        terminalreporter.write_line(f"{said.splitlines()[0]}, {binary}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-m "not full"` leaves out further cases too; those of a slow test that it excepts by `but` are not slow."""
    if item.get_closest_marker("further"):
        item.add_marker("full")
    slow = item.get_closest_marker("slow")
    if slow is None or item.get_closest_marker("full"):
        return
    seen, test = item.config.stash.setdefault(SEEN, Counter()), item.nodeid.partition("[")[0]
    if seen[test] < slow.kwargs.get("but", 0):
        item.own_markers.remove(slow)
    seen[test] += 1


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Tests of texts that cannot be encoded log them too, and a report with one ends the process that sends it."""
    report = yield
    return _encodable(report)


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_encodable(key): _encodable(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(map(_encodable, value))
    return value
