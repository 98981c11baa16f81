"""Several real nodes, with real etcd and gRPC and no engine: who runs what, whatever happens to them."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from benchmarks.bare_cluster import BareCluster, BareNode, until
from benchmarks.bare_node import CLOCKS
from benchmarks.dispatch import depose
from iscp.client.admin_client import Client
from iscp.model.access.security_config import SecurityConfig
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.ids import WIRE_FORMAT
from iscp.system.child_process import tail
from iscp.system.http_exchange import free_port
from tests.selection import in_full

SHARDS = 40
ASK_PAUSE_S = 0.02
"""Between the questions of each caller: a change of the owner takes as long as many of them."""
TTL_S, MARGIN_S = 3.0, 0.5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareCluster]:
    root = tmp_path_factory.mktemp("nodes")
    made = BareCluster(root, 3, SHARDS, TTL_S, MARGIN_S, environ={CLOCKS: str(root)})
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def nodes(cluster: BareCluster) -> BareCluster:
    """Three of them, all of whose shards run where they belong; tests leave three nodes behind, and no overrides."""
    until("all runs where it belongs", cluster.settled)
    for node in cluster.members:
        node.noted()
    return cluster


def held(cluster: BareCluster) -> dict[str, int]:
    return {node.name: node.count("shards") for node in cluster.members}


def at(node: BareNode) -> Client:
    return Client(node.config.address, timeout_s=30.0)


def told(cluster: BareCluster) -> list[tuple[int, int]]:
    """Of each event that is known, the term and the number in it."""
    with at(cluster.members[0]) as client:
        return [(each.owner_rev, each.number) for each in client.operator.events()]


def test_any_node_answers_and_operators_say_where_shards_are(nodes: BareCluster) -> None:
    for node in nodes.members:
        with at(node) as client:
            view = client.cluster()
            assert {each.node_id: each.shards for each in view.nodes} == held(nodes)
            assert {each.state for each in view.nodes} == {"ready"}
            assert all(0 <= each.lease_age_s <= TTL_S for each in view.nodes)
            assert all(shard.node_id == shard.target for shard in client.operator.placement())
            assert [event.what for event in client.operator.events()][:1] == ["term"]
            for other in nodes.members:
                (page,) = client.operator.node_logs(other.name, tail=5)
                assert {json.loads(line.text)["node"] for line in page.lines} == {other.name}
            assert {each.node_id for each in client.operator.job_logs("/lake/1", "copy")} == set(held(nodes))
    owner = nodes.owner()
    other = next(node for node in nodes.members if node is not owner)
    with at(other) as client:
        before = held(nodes)[other.name]
        assert client.operator.drain(other.name) >= before - SHARDS
        until("it is drained", lambda: held(nodes)[other.name] == 0 and sum(held(nodes).values()) == SHARDS)
        assert client.operator.drain(other.name) == 0
        assert client.operator.move("/lake/1", owner.name) in (0, 1)
        with pytest.raises(InvalidRequest, match="is cordoned or drained"):
            client.operator.move("/lake/1", other.name)
        assert client.operator.uncordon(other.name)
        until("it has its share again", lambda: held(nodes)[other.name] == before)
        assert client.operator.pin("/lake/1", other.name) == 1
        until("the shard is where it is pinned", lambda: client.operator.placement("/lake/1")[0].node_id == other.name)
        depose(nodes)  # what operators said outlives the owner
        assert client.operator.placement("/lake/1")[0].pinned == other.name
        assert client.operator.rebalance(dry_run=True) == []
        assert client.operator.unpin("/lake/1") == 1
        client.operator.rebalance()


def test_a_change_of_the_owner_is_not_felt_by_the_caller(nodes: BareCluster) -> None:
    ended, answers, faults = threading.Event(), list[int](), list[Exception]()

    def ask(node: BareNode) -> None:
        with at(node) as client:
            while not ended.wait(ASK_PAUSE_S):
                try:
                    answers.append(client.count())
                except Exception as error:  # noqa: BLE001  (it is the test's to judge)
                    faults.append(error)

    threads = [threading.Thread(target=ask, args=(node,)) for node in nodes.members]
    for thread in threads:
        thread.start()
    terms = set[int]()
    for _ in range(3):
        term = nodes.owner().count("owner_rev")
        terms.add(term)
        depose(nodes)
        until("another owner has everyone's Sync", lambda term=term: nodes.owner().count("owner_rev") > term)  # type: ignore[misc]
        until("all runs", lambda: nodes.owner().count("owner_running") == SHARDS)
    ended.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert set(answers) == {SHARDS}
    until("former owners' events are there", lambda: terms <= {owner_rev for owner_rev, _ in told(nodes)})
    assert told(nodes) == sorted(set(told(nodes)))
    for node in nodes.members:
        assert not [sign for _, sign, _ in node.noted() if sign == "-"], "a change of the owner moves nothing"


@pytest.mark.further  # each time: a frozen node in test_cluster.py
def test_a_frozen_node_is_replaced_and_gives_up_what_it_had_when_it_wakes(nodes: BareCluster) -> None:
    """It may not go on with what runs elsewhere by now, though nobody could notify it (bug 4)."""
    victim = next(node for node in nodes.members if node is not nodes.owner())
    rest = [node for node in nodes.members if node is not victim]
    assert victim.child is not None
    epoch = victim.told().epoch  # type: ignore[union-attr]
    victim.child.send_signal(signal.SIGSTOP)
    until("the others have all", lambda: sum(node.count("shards") for node in rest) == SHARDS)
    victim.noted()
    victim.child.send_signal(signal.SIGCONT)
    until("it is back", lambda: nodes.settled())
    signs = [sign for _, sign, _ in victim.noted()]
    assert signs[0] == "-"
    assert "+" not in signs[: signs.count("-")], "it gives up everything before it takes anything in"
    assert victim.told().epoch == epoch + 1  # type: ignore[union-attr]


def test_etcd_restarts_and_nothing_moves(nodes: BareCluster) -> None:
    nodes.restart_etcd()
    with at(nodes.members[0]) as client:
        until("an owner answers", lambda: client.cluster().owner)
        until("all runs", lambda: sum(held(nodes).values()) == SHARDS)
    assert [note for node in nodes.members for note in node.noted()] == []


def test_clocks_that_are_set_wrong_move_nothing_and_keep_the_order_of_registrations(nodes: BareCluster) -> None:
    """Owners whose clocks are days apart: leases, terms and job ids do not go by them."""
    clocks = [nodes.root / f"{node.name}.clock" for node in nodes.members]
    made, step_s = list[str](), 86_400.0
    for _ in range(4):
        owner, step_s = nodes.owner(), -step_s
        for node, clock in zip(nodes.members, clocks, strict=True):
            clock.write_text(str(step_s if node is owner else -step_s))
        with at(nodes.members[0]) as client:
            job = client.register("/lake/new", "copy", target=f"/targets/new-{len(made)}", key=["id"])
            made.append(job.job_id)
            assert client.unregister("/lake/new", "copy")
        term = owner.count("owner_rev")
        depose(nodes)
        until("another owner has everyone's Sync", lambda term=term: nodes.owner().count("owner_rev") > term)  # type: ignore[misc]
        until("all runs", lambda: nodes.owner().count("owner_running") == SHARDS)
    assert made == sorted(set(made))
    moved = {shard for node in nodes.members for _, sign, shard in node.noted() if sign == "-"}
    assert moved <= {"lake-new"}
    for clock in clocks:
        clock.unlink()


# --- what does not fit -----------------------------------------------------------------------------------------------


def refused(cluster: BareCluster, node: BareNode) -> str:
    """Start it, and wait for its end; what it said. Nothing of the cluster has changed by it."""
    before = held(cluster)
    try:
        node.start()
        assert node.child is not None
        assert node.child.wait(60.0) == 1
    finally:
        node.kill()
    with at(cluster.members[0]) as client:
        assert {each.node_id for each in client.cluster().nodes} == {each.name for each in cluster.members}
    assert held(cluster) == before
    return tail(node.log)


class Misfit(NamedTuple):
    """A node that is refused: its name, how it differs, and what it says."""

    name: str
    words: tuple[str, ...]
    changed: Callable[[BareCluster], dict[str, object]] = lambda cluster: {}
    environ: Mapping[str, str] = MappingProxyType({})


MISFITS = {
    "taken": Misfit("n1", ("a live node is registered as 'n1'", "Give each node a name of its own")),
    "newer": Misfit(
        "n8",
        (f"speaks wire format {WIRE_FORMAT}, and this node {WIRE_FORMAT + 2}", "Upgrade the nodes"),
        environ={"BARE_NODE_WIRE_FORMAT": str(WIRE_FORMAT + 2)},
    ),
    "other": Misfit(
        "n5", ("belongs to the cluster 'default', not to 'other'",), changed=lambda cluster: {"cluster": "other"}
    ),
    "unreachable": Misfit(
        "n6", ("is not reached at",), changed=lambda cluster: {"advertise": f"127.0.0.1:{free_port()}"}
    ),
    "guarded": Misfit(
        "n9",
        ("lets everybody in, and this node knows its callers", "stop all first"),
        changed=lambda cluster: {"security": SecurityConfig(authentication=True, insecure=True)},
    ),
    "stranger": Misfit(
        "n7", ("leads to n0",), changed=lambda cluster: {"advertise": cluster.members[0].config.address}
    ),
}


@pytest.mark.parametrize("why", in_full(MISFITS))
@pytest.mark.slow
def test_a_node_that_does_not_fit_is_refused_with_words(nodes: BareCluster, tmp_path: Path, why: str) -> None:
    misfit = MISFITS[why]
    config = nodes.config(misfit.name, **misfit.changed(nodes))
    said = refused(nodes, BareNode(config, tmp_path, dict(misfit.environ)))
    for words in misfit.words:
        assert words in said


@pytest.mark.further  # each time: test_upgrades.py
@pytest.mark.parametrize("upgraded", in_full([1, 3]))
def test_nodes_one_wire_format_apart_work_together(nodes: BareCluster, upgraded: int) -> None:
    """A cluster is upgraded node by node, the owner first, whose events outlive it."""
    owner = nodes.owner()
    term = owner.count("owner_rev")
    order = sorted(enumerate(nodes.members), key=lambda each: each[1] is not owner)
    for number, old in order[:upgraded]:
        with at(nodes.members[number - 1]) as client:
            (before,) = client.operator.node_logs(old.name, tail=1)
        assert old.child is not None
        old.child.terminate()
        assert old.child.wait(30.0) == 0
        new = nodes.members[number] = replace(old, environ={"BARE_NODE_WIRE_FORMAT": str(WIRE_FORMAT + 1)}, child=None)
        new.start()
        until("all nodes have their share", nodes.settled)
        with at(nodes.members[number - 1]) as client:
            (after,) = client.operator.node_logs(old.name, after={old.name: before.place})
        assert after.restarted
        assert json.loads(after.lines[0].text)["node"] == old.name
    with at(nodes.members[0]) as client:
        assert client.count() == SHARDS
        assert all(shard.node_id == shard.target for shard in client.operator.placement())
    assert (term, 1) in told(nodes)
