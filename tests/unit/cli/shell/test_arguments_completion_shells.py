"""The real zsh and fish complete lines by the scripts that they are given. Needs both on the path."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.server.admin.admin_server import AdminServer
from tests.fakes.admin import FakeAdmin

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]

WAIT_S = 60.0
READY = "now-it-completes"
LINES = [
    ("iscp-admin job des", "describe"),
    ("iscp-admin job list --lat", "--late"),
    ("iscp-admin job status /lake/sales cop", "copy"),
    ("iscp doc", "doctor"),
]
"""Lines as far as they are typed, and what the last word becomes: a command, an option and the name of a job."""


def shell(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"this test needs {name}: install it, as by apt-get install {name}"
    return found


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """With a cluster of one job, and without the user's own configuration."""
    admin = FakeAdmin()
    spec = '{"iteration": {"consumer": {"kind": "replica", "target": "/copy"}}}'
    admin.register([RegisterRequest(JobName("/lake/sales", "copy", "acme"), spec)])
    server = AdminServer(admin, "127.0.0.1:0")
    server.start()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    yield {**os.environ, **home, "PATH": path, "TERM": "dumb", "ISCP_ENDPOINT": server.address}
    server.stop(grace_s=0)


@pytest.mark.parametrize(("typed", "completed"), LINES)
def test_fish(environ: dict[str, str], typed: str, completed: str) -> None:
    script = f"iscp-admin completion fish | source; iscp completion fish | source; complete -C {typed!r}"
    done = subprocess.run([shell("fish"), "-c", script], env=environ, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [completed]


class Terminal:
    """An interactive zsh, of which all that it shows is kept."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        command = [shell("zsh"), "-f", "-i"]
        self._shell = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)
        self._shown = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        """Until it is shown behind all that was waited for before."""
        end_s = time.monotonic() + WAIT_S
        while text not in self._shown:
            readable, _, _ = select.select([self._ours], [], [], max(0.0, end_s - time.monotonic()))
            assert readable, f"{text!r} is not shown: {self._shown!r}"
            self._shown += os.read(self._ours, 65_536).decode(errors="replace")
        self._shown = self._shown.split(text, 1)[1]

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait(WAIT_S)
        os.close(self._ours)


@pytest.fixture
def zsh(environ: dict[str, str]) -> Iterator[Terminal]:
    terminal = Terminal(environ)
    terminal.type("autoload -Uz compinit && compinit -u -D\n")
    terminal.type('eval "$(iscp-admin completion zsh)"; eval "$(iscp completion zsh)"\n')
    terminal.type(f"print {READY[:3]}''{READY[3:]}\n")  # not what is echoed as it is typed
    terminal.wait_for(READY)
    yield terminal
    terminal.close()


@pytest.mark.parametrize(("typed", "completed"), LINES)
def test_zsh(zsh: Terminal, typed: str, completed: str) -> None:
    zsh.type(f"{typed}\t")
    word = typed.rsplit(" ", 1)[1]
    # The terminal shows what is typed and then the rest of the word, which a Tab adds.
    zsh.wait_for(typed)
    zsh.wait_for(completed.removeprefix(word))
