"""`iscp-admin` against a real server with a faked service."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from iscp.adapters.grpc.admin.admin_server import AdminServer
from iscp.cli.admin.main import cli
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]


@pytest.fixture
def service() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def endpoint(service: FakeAdmin) -> Iterator[str]:
    server = AdminServer(service, "127.0.0.1:0")
    server.start()
    yield server.address
    server.stop(grace_s=0)


@pytest.fixture
def run(endpoint: str) -> Run:
    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, ["--endpoint", endpoint, *arguments], input=stdin)

    return run
