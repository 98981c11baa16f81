"""`iscp-admin view` against a real server with a faked service."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from iscp.adapters.grpc.admin.admin_server import AdminServer
from iscp.cli.admin.main import cli
from iscp.core.api_requests import JobFilter
from iscp.core.view_fields import ViewFields, view_of
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


@pytest.fixture
def kept(service: FakeAdmin) -> Callable[[], list[tuple[str, str, ViewFields]]]:
    """The table, the name and the fields of all views that are registered."""

    def kept() -> list[tuple[str, str, ViewFields]]:
        found = ((job.table, job.name, view_of(job.spec_json)) for job in service.list_jobs(JobFilter()))
        return [(table, name, view) for table, name, view in found if view is not None]

    return kept
