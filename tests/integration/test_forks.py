"""What programs import, in a fork of a process that has used it: it works, or refuses at once with the word fork."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from iscp.server.admin.admin_server import AdminServer
from tests.fakes.admin import FakeAdmin
from tests.fakes.forking_program import TIMEOUT_S

NOBODY = "127.0.0.1:1"
END_S = 240.0
SLACK = 5
"""Times its timeout that a client may take on a machine that others use too; one that hangs takes END_S."""


@pytest.fixture
def address() -> Iterator[str]:
    server = AdminServer(FakeAdmin(), "127.0.0.1:0")
    server.start()
    server.ready()
    yield server.address
    server.stop(0.0)


def forked(place: Path, subject: str, address: str) -> dict[str, str]:
    """What the program and its fork say; the fork ends by itself, or this fails."""
    command = [sys.executable, "-m", "tests.fakes.forking_program", str(place), subject, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=True)
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("subject", ["client", "new client"])
def test_a_client_works_with_a_server(tmp_path: Path, subject: str, address: str) -> None:
    found = forked(tmp_path, subject, address)
    assert (found["parent"], found["child"], found["parent again"]) == ("fine", "fine", "fine")


@pytest.mark.parametrize("subject", ["client", "new client"])
@pytest.mark.parametrize("run", range(3))
def test_a_client_gives_up_in_time_without_one(tmp_path: Path, subject: str, run: int) -> None:
    found = forked(tmp_path, subject, NOBODY)
    assert found["child"].startswith("Unavailable: endpoint: 127.0.0.1:1 does not answer")
    assert float(found["took"]) < SLACK * TIMEOUT_S


@pytest.mark.parametrize("subject", ["asyncio", "etcd", "changefeed", "search"])
def test_the_others_are_refused_at_once(tmp_path: Path, subject: str) -> None:
    found = forked(tmp_path, subject, NOBODY)
    assert found["child"].startswith("InvalidRequest: ")
    assert "forked from" in found["child"]
    assert float(found["took"]) < TIMEOUT_S
