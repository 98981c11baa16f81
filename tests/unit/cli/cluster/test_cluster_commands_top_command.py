"""`iscp-admin top` against a real server with a faked service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from iscp.cli.cluster.cluster_commands import SLOTS, levels
from iscp.cli.iscp_admin import cli
from iscp.model.api.api_requests import ChangeVerb, JobChange, JobName, RegisterRequest
from iscp.model.values.errors import NotAuthorized
from iscp.server.admin.admin_server import AdminServer
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def run(admin: FakeAdmin) -> Iterator[Run]:
    server = AdminServer(admin, "127.0.0.1:0")
    server.start()
    yield lambda *arguments: CliRunner().invoke(cli, ["--endpoint", server.address, *arguments])
    server.stop(grace_s=0)


def register(admin: FakeAdmin, count: int) -> None:
    spec = {"iteration": {"consumer": {"kind": "replica", "target": "/lake/copy", "key": ["id"]}}, "target_lag": 60}
    admin.register([RegisterRequest(JobName(f"/t{number}", "copy", "a"), json.dumps(spec)) for number in range(count)])


def test_targets_and_nodes_are_shown_once_where_there_is_no_terminal(run: Run, admin: FakeAdmin) -> None:
    register(admin, 3)
    admin.change([JobChange(ChangeVerb.PAUSE, JobName("/t1", "copy", "a"))])
    shown = run("top", "--rows", "2")
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0] == "2 building, 1 paused"
    assert sum("/lake/copy" in line for line in lines) == 2
    assert any(line.startswith("n1 *") for line in lines)


def test_scripts_read_names_that_stay(run: Run, admin: FakeAdmin) -> None:
    register(admin, 1)
    answer = json.loads(run("top", "-o", "json").stdout)
    assert answer["counts"] == {"building": 1}
    (target,) = answer["targets"]
    assert (target["target"], target["lag_s"], target["target_lag_s"]) == ("/lake/copy", -1.0, 60.0)
    assert (target["table"], target["name"], target["account"]) == ("/t0", "copy", "a")
    (node,) = answer["nodes"]
    assert (node["id"], node["owner"], node["state"], len(node["busy"])) == ("n1", True, "running", SLOTS)


def test_who_may_not_see_the_cluster_sees_targets(run: Run, admin: FakeAdmin) -> None:
    register(admin, 1)

    def refuse(verb: str) -> None:
        if verb == "cluster":
            raise NotAuthorized("a viewer of an account may not call GetCluster")

    admin.before = refuse
    answer = json.loads(run("top", "--once", "-o", "json").stdout)
    assert (len(answer["targets"]), answer["nodes"]) == (1, [])


def test_counts_are_drawn_as_levels() -> None:
    assert levels([0, 1, 4, 8]) == " ▁▄█"
    assert levels([0, 1]) == " █"
    assert levels([0, 0]) == "  "
    assert levels([]) == ""
