"""`iscp-admin` against a real server whose services are faked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from iscp.adapters.grpc.admin.admin_server import AdminServer
from iscp.adapters.grpc.admin.operator_server import OperatorServer
from iscp.cli.admin.main import cli
from iscp.core.api_requests import JobName, RegisterRequest
from tests.fakes.admin import FakeAdmin
from tests.fakes.operators import FakeOperator

Run = Callable[..., Result]


@pytest.fixture
def service() -> FakeAdmin:
    """With the jobs `a` and `b` on /t, and `c` on /u."""
    admin = FakeAdmin()
    spec = '{"iteration": {"consumer": {"kind": "replica", "target": "/copy", "key": ["id"]}}}'
    for table, name in (("/t", "a"), ("/t", "b"), ("/u", "c")):
        admin.register([RegisterRequest(JobName(table, name), spec)])
    return admin


@pytest.fixture
def operator() -> FakeOperator:
    return FakeOperator()


@pytest.fixture
def endpoint(service: FakeAdmin, operator: FakeOperator) -> Iterator[str]:
    server = AdminServer(service, "127.0.0.1:0", services=[OperatorServer(operator)])
    server.start()
    yield server.address
    server.stop(grace_s=0)


@pytest.fixture
def run(endpoint: str) -> Run:
    def run(*arguments: str, **how: object) -> Result:
        return CliRunner().invoke(cli, ["--endpoint", endpoint, *arguments], **how)  # type: ignore[arg-type]

    return run
