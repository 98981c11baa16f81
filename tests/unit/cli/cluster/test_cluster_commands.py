"""`iscp-admin node`, `shard`, `ring`, `rebalance` and `events` against a real server with a faked service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.model.api.api_requests import EventView
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
