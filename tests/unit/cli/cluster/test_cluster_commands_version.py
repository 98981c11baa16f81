"""`iscp-admin version` against a real server with a faked service, and without one."""

from __future__ import annotations

import json
from collections.abc import Callable

from click.testing import CliRunner, Result

from iscp import __version__
from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli
from iscp.model.values.errors import NotAuthorized
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]


def test_the_versions_of_client_and_nodes_are_shown(run: Run) -> None:
    row = {"client": __version__, "owner": "n1", "nodes": [{"id": "n1", "version": "0.1.0"}]}
    assert json.loads(run("version", "-o", "json").stdout) == row
    lines = [line.split() for line in run("version").stdout.splitlines()]
    assert lines == [["client", __version__], [], ["NODE", "VERSION"], ["n1", "*", "0.1.0"]]


def test_the_clients_own_is_shown_though_no_node_says_its(run: Run, service: FakeAdmin) -> None:
    for wide in ((), ("-o", "json")):
        service.failures = [NotAuthorized("this account may not", remedy="Name another")]
        told = run("version", *wide)
        assert told.exit_code == 1
        assert __version__ in told.stdout
        assert "this account may not" in told.stderr
    assert json.loads(told.stdout) == {"client": __version__}


def test_without_nodes_none_is_called() -> None:
    told = CliRunner().invoke(cli, ["--endpoint", "127.0.0.1:1", "version", "--client"])
    assert (told.exit_code, told.stdout) == (0, f"client {__version__}\n")
    assert json.loads(CliRunner().invoke(iscp, ["version", "--json"]).stdout) == {"client": __version__}
