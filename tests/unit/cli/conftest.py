"""`iscp-admin` against a real server whose services are faked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.server.admin.admin_server import AdminServer, OperatorServer
from tests.fakes.admin import FakeAdmin
from tests.fakes.operators import FakeOperator

Run = Callable[..., Result]

SPEC = '{"iteration": {"consumer": {"kind": "replica", "target": "/copy", "key": ["id"]}}}'


@pytest.fixture
def service(request: pytest.FixtureRequest) -> FakeAdmin:
    """It has the jobs that the test's module names in JOBS, as (table, name)."""
    admin = FakeAdmin()
    for table, name in getattr(request.module, "JOBS", ()):
        admin.register([RegisterRequest(JobName(table, name), SPEC)])
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
    def run(*arguments: str, stdin: str | None = None, obj: object = None) -> Result:
        return CliRunner().invoke(cli, ["--endpoint", endpoint, *arguments], input=stdin, obj=obj)

    return run
