"""`iscp-admin node`, `shard`, `ring`, `rebalance` and `events` against a real server with a faked service.

`iscp-admin context`, and commands that reach the endpoint of the current context over gRPC.

`iscp-admin version` against a real server with a faked service, and without one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from iscp import __version__
from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli
from iscp.model.api.api_requests import EventView
from iscp.model.values.errors import NotAuthorized
from iscp.server.admin.admin_server import AdminServer, OperatorServer
from tests.fakes.admin import FakeAdmin
from tests.fakes.operators import FakeOperator

Run = Callable[..., Result]


@pytest.fixture
def operator() -> FakeOperator:
    return FakeOperator()


@pytest.fixture
def run(operator: FakeOperator) -> Iterator[Run]:
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=[OperatorServer(operator)])
    server.start()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["--endpoint", server.address, *arguments])

    yield run
    server.stop(grace_s=0)


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def answer(result: Result) -> Any:
    return json.loads(ok(result))


def test_the_nodes_are_listed(run: Run) -> None:
    assert answer(run("node", "list", "-o", "json")) == answer(run("status", "-o", "json"))["nodes"]
    assert "LEASE" in ok(run("node", "list"))


def test_a_node_is_cordoned_and_uncordoned_as_often_as_one_likes(run: Run, operator: FakeOperator) -> None:
    assert ok(run("node", "cordon", "n-2")) == "n-2 is cordoned\n"
    assert ok(run("node", "cordon", "n-2")) == "n-2 was cordoned already\n"
    assert operator.closed == {"n-2"}
    assert answer(run("node", "uncordon", "n-2", "-o", "json")) == {"node": "n-2", "changed": True}
    assert answer(run("node", "uncordon", "n-2", "-o", "json")) == {"node": "n-2", "changed": False}


def test_a_drain_says_what_is_left_or_waits_until_nothing_is(run: Run, operator: FakeOperator) -> None:
    assert ok(run("node", "drain", "n-2")) == "n-2 gives up 2 shards\n"
    assert ok(run("node", "drain", "n-2", "--wait")) == "n-2 is drained\n"
    operator.held = 9
    late = run("node", "drain", "n-2", "--wait", "--timeout", "0s")
    assert late.exit_code == 3
    assert "still holds 8 shards" in late.stderr


def test_a_node_that_nobody_knows_is_refused_with_those_there_are(run: Run) -> None:
    for arguments in (("node", "cordon", "n-9"), ("shard", "move", "/t", "n-9"), ("shard", "pin", "/t", "n-9")):
        refused = run(*arguments)
        assert refused.exit_code == 1
        assert "there is no node 'n-9'" in refused.stderr
        assert "remedy: The nodes are" in refused.stderr


def test_a_table_is_split_and_merged(run: Run, operator: FakeOperator) -> None:
    assert ok(run("shard", "split", "/t")) == "/t is in 2 ranges now\n"
    assert json.loads(ok(run("shard", "split", "/t", "--range", "3", "-o", "json"))) == {"table": "/t", "ranges": 2}
    assert ok(run("shard", "merge", "/t")) == "/t is whole now\n"
    ok(run("shard", "merge", "/t", "--range", "2"))
    asked = [each[:3] for each in operator.reshards]
    assert asked == [(False, "/t", 0), (False, "/t", 3), (True, "/t", 0), (True, "/t", 2)]
    assert len({each[3] for each in operator.reshards}) == 4


def test_a_shard_is_moved_pinned_and_brought_home(run: Run) -> None:
    assert ok(run("shard", "move", "/t", "n-2")) == "1 shards move to n-2\n"
    assert ok(run("shard", "move", "/t", "n-2")) == "/t is on n-2 already\n"
    (would,) = answer(run("rebalance", "--dry-run", "-o", "json"))
    assert (would["node_id"], would["target"]) == ("n-2", "n-1")
    assert "1 shards would move" in ok(run("rebalance", "--dry-run"))
    assert "1 shards move" in ok(run("rebalance"))
    assert answer(run("rebalance", "-o", "json")) == []
    assert ok(run("shard", "pin", "/t", "n-2")) == "/t is pinned to n-2\n"
    assert ok(run("shard", "pin", "/t", "n-2")) == "/t was pinned to n-2 already\n"
    assert ok(run("shard", "unpin", "/t")) == "/t is not pinned any more\n"
    assert ok(run("shard", "unpin", "/t")) == "/t was not pinned\n"


def test_the_ring_and_the_list_show_the_same_shards(run: Run) -> None:
    assert answer(run("ring", "-o", "json")) == answer(run("shard", "list", "/t", "-o", "json"))
    assert "PREFERRED" in ok(run("ring", "/t"))
    assert "PREFERRED" not in ok(run("shard", "list"))


def event(owner_rev: int, number: int) -> EventView:
    shard = "t-1" if number == 1 else "t-1/2"
    return EventView(owner_rev, number, 1_700_000_000.0, "dispatch", "n-1", shard, "new", "/lake/orders")


def test_events_are_shown_in_order_with_why(run: Run, operator: FakeOperator) -> None:
    operator.terms = [[event(3, 1), event(3, 2)]]
    lines = [line.split()[2:] for line in ok(run("events")).splitlines()]
    assert lines == [
        ["3.1", "dispatch", "n-1", "/lake/orders", "new"],
        ["3.2", "dispatch", "n-1", "/lake/orders", "range", "2", "new"],
    ]
    assert [json.loads(line)["number"] for line in ok(run("events", "-o", "json")).splitlines()] == [1, 2]


@pytest.fixture
def in_context(tmp_path: Path) -> Run:
    def in_context(*arguments: str, **environ: str) -> Result:
        given = {"XDG_CONFIG_HOME": str(tmp_path), "ISCP_ENDPOINT": None, **environ}
        return CliRunner().invoke(cli, arguments, env=given)

    return in_context


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = AdminServer(FakeAdmin(), "127.0.0.1:0")
    server.start()
    yield server.address
    server.stop(grace_s=0)


def test_commands_go_to_the_current_context(in_context: Run, endpoint: str) -> None:
    assert "is the current one" in in_context("context", "set", "lake", "--endpoint", endpoint).stdout
    assert in_context("job", "count").stdout == "0\n"
    assert "current" not in in_context("context", "set", "away", "--endpoint", "127.0.0.1:1").stdout
    assert in_context("job", "count", "--context", "lake").stdout == "0\n"
    assert "127.0.0.1:1" in in_context("context", "use", "away").stdout
    assert in_context("context", "show", "-o", "jsonpath=.endpoint").stdout == "127.0.0.1:1\n"
    assert in_context("--context", "lake", "job", "count").stdout == "0\n"
    assert in_context("job", "count", "--endpoint", endpoint).stdout == "0\n"
    assert in_context("job", "count", ISCP_ENDPOINT=endpoint).stdout == "0\n"


def test_contexts_are_listed_shown_changed_and_deleted(in_context: Run) -> None:
    in_context("context", "set", "b", "--endpoint", "h:1")
    in_context("context", "set", "a", "--endpoint", "h:2")
    in_context("context", "set", "a", "--endpoint", "h:3")
    rows = json.loads(in_context("context", "list", "-o", "json").stdout)
    assert [(each["name"], each["current"], each["endpoint"]) for each in rows] == [
        ("a", False, "h:3"),
        ("b", True, "h:1"),
    ]
    assert in_context("context", "list").stdout.splitlines()[2].split() == ["*", "b", "h:1"]
    shown = json.loads(in_context("context", "show", "a", "-o", "json").stdout)
    assert (shown["name"], shown["source"], shown["endpoint"]) == ("a", "context", "h:3")
    assert "no context is current" in in_context("context", "delete", "b").stdout
    assert in_context("context", "show", "-o", "jsonpath=.source").stdout == "default\n"
    assert in_context("context", "show", "-o", "jsonpath=.source", ISCP_ENDPOINT="h:9").stdout == "ISCP_ENDPOINT\n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("context", "use", "none"), 1, "Known are a"),
        (("context", "delete", "none"), 1, "there is no context 'none'"),
        (("context", "set", "b"), 1, "context.b.endpoint"),
        (("context", "set", "a b", "--endpoint", "h:1"), 1, "is no name for a context"),
        (("context", "set", "b", "--endpoint", "h"), 2, "is not HOST:PORT"),
        (("context", "set", "b", "--endpoint", "h:1", "--ca-file", "/no/file"), 2, "--ca-file"),
        (("job", "count", "--context", "none"), 1, "there is no context 'none'"),
    ],
)
def test_what_is_wrong_is_refused_and_the_file_stays(
    in_context: Run, words: tuple[str, ...], status: int, said: str
) -> None:
    in_context("context", "set", "a", "--endpoint", "h:1")
    before = in_context("context", "list").stdout
    refused = in_context(*words)
    assert refused.exit_code == status
    assert said in refused.stderr
    assert in_context("context", "list").stdout == before


def test_without_a_context_the_remedy_says_how_to_make_one(in_context: Run) -> None:
    assert "See `iscp-admin context set`" in in_context("context", "use", "lake").stderr


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
