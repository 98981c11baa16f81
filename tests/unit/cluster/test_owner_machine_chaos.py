"""Clusters under random faults: messages are dropped, duplicated and delayed, nodes and owners come and go.

The loopback checks the machines' invariants, and that no shard runs twice, after every step. These tests add what
must be true in the end: every wanted shard runs once, with the newest rows, and then nothing moves any more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from iscp.model.protocol.messages import NodeShardState
from iscp.model.values.ids import ShardId
from iscp.model.values.ring import Placement
from tests.fakes.loopback import TIMES, Loopback

NODES = ("n1", "n2", "n3")
SHARDS = ("a", "b", "c", "d")
PATIENT = replace(TIMES, sync_deadline_s=60.0, operation_deadline_s=60.0)
"""With a third of the messages lost, nodes that are well would be revoked now and then."""

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failing run is long; shrinking it takes minutes, so it is done by hand when it is needed."""

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("kill", "start", "lose_etcd", "regain", "elect", "depose", "want", "update", "unwant", "iterate"),
                *("leave", "cordon", "drain", "uncordon", "move", "pin", "unpin", "rebalance"),
                *("cut", "heal", "slow", "finish", "stall", "unstall", "run", "run", "run"),
            ]
        ),
        st.sampled_from(NODES),
        st.sampled_from(SHARDS),
        st.floats(0.0, 8.0),
    ),
    max_size=40,
)


class Trouble:
    """Carries out actions where they make sense."""

    def __init__(self, seed: int, drop: float) -> None:
        self.cluster = Loopback(random=Random(seed), drop=drop)
        self.cluster.start(*NODES)
        self.cluster.elect("n1")
        self.lost: set[str] = set()
        self.seq = 0

    def act(self, action: str, node_id: str, shard: str, seconds: float) -> None:
        getattr(self, action)(node_id, shard, seconds)

    def kill(self, node_id: str, _shard: str, _s: float) -> None:
        if node_id in self.cluster.nodes:
            self.cluster.kill(node_id)
            self.lost.discard(node_id)

    def start(self, node_id: str, _shard: str, _s: float) -> None:
        if node_id not in self.cluster.nodes:
            self.cluster.start(node_id)

    def lose_etcd(self, node_id: str, _shard: str, _s: float) -> None:
        if node_id in self.cluster.nodes and node_id not in self.lost:
            self.cluster.lose_etcd(node_id)
            self.lost.add(node_id)

    def regain(self, node_id: str, _shard: str, _s: float) -> None:
        node = self.cluster.nodes.get(node_id)
        if node is not None and not node.may_write:
            self.cluster.regain(node_id)
            self.lost.discard(node_id)

    def elect(self, node_id: str, _shard: str, _s: float) -> None:
        if node_id in self.cluster.members and node_id in self.cluster.nodes and node_id not in self.lost:
            self.cluster.elect(node_id)

    def depose(self, node_id: str, _shard: str, _s: float) -> None:
        self.cluster.depose(node_id)

    def leave(self, node_id: str, _shard: str, _s: float) -> None:
        if node_id in self.cluster.members and node_id in self.cluster.nodes:
            self.cluster.leave(node_id)

    def cordon(self, node_id: str, _shard: str, _s: float) -> None:
        now = self.cluster.overrides
        self.cluster.override(replace(now, cordoned=now.cordoned | {node_id}))

    def drain(self, node_id: str, _shard: str, _s: float) -> None:
        now = self.cluster.overrides
        self.cluster.override(replace(now, draining=now.draining | {node_id}))

    def uncordon(self, node_id: str, _shard: str, _s: float) -> None:
        now = self.cluster.overrides
        self.cluster.override(replace(now, cordoned=now.cordoned - {node_id}, draining=now.draining - {node_id}))

    def move(self, node_id: str, shard: str, _s: float) -> None:
        self.cluster.move(shard, node_id)

    def pin(self, node_id: str, shard: str, _s: float) -> None:
        now = self.cluster.overrides
        self.cluster.override(replace(now, pins={**now.pins, ShardId(shard): node_id}))

    def unpin(self, _node_id: str, shard: str, _s: float) -> None:
        now = self.cluster.overrides
        self.cluster.override(replace(now, pins={s: n for s, n in now.pins.items() if s != ShardId(shard)}))

    def rebalance(self, _node_id: str, _shard: str, _s: float) -> None:
        self.cluster.rebalance()

    def want(self, _node_id: str, shard: str, _s: float) -> None:
        self.cluster.want(shard)

    def update(self, _node_id: str, shard: str, seconds: float) -> None:
        self.cluster.want(shard, "j", "k", spec=f'{{"v": {seconds}}}')

    def unwant(self, _node_id: str, shard: str, _s: float) -> None:
        self.cluster.unwant(shard)

    def iterate(self, node_id: str, shard: str, _s: float) -> None:
        node = self.cluster.nodes.get(node_id)
        if node is not None and ShardId(shard) in node.engine.jobs:
            self.seq += 1
            self.cluster.iterate(node_id, shard, self.seq)

    def cut(self, node_id: str, _shard: str, _s: float) -> None:
        self.cluster.cut.add(node_id)

    def heal(self, node_id: str, _shard: str, _s: float) -> None:
        self.cluster.cut.discard(node_id)

    def slow(self, node_id: str, _shard: str, _s: float) -> None:
        if node_id in self.cluster.nodes:
            self.cluster.nodes[node_id].engine.slow = True

    def finish(self, node_id: str, _shard: str, _s: float) -> None:
        if node_id in self.cluster.nodes:
            self.cluster.finish(node_id)

    def stall(self, _node_id: str, _shard: str, _s: float) -> None:
        self.cluster.log_stalled = True

    def unstall(self, _node_id: str, _shard: str, _s: float) -> None:
        self.cluster.unstall()

    def run(self, _node_id: str, _shard: str, seconds: float) -> None:
        self.cluster.run(seconds)

    def calm(self) -> None:
        """All trouble ends: whoever is left is reachable, one of them leads, and time passes."""
        cluster = self.cluster
        cluster.drop = 0.0
        cluster.cut.clear()
        cluster.unstall()
        for node_id in NODES:
            self.start(node_id, "", 0.0)
            cluster.nodes[node_id].engine.slow = False
            cluster.finish(node_id)
        cluster.run(12)
        self._return_lost()
        for node_id in NODES:  # who was leaving has left by now, and comes back
            if cluster.nodes[node_id].record.leaving:
                cluster.kill(node_id)
                cluster.start(node_id)
        cluster.elect("n2")
        cluster.depose("n1")
        cluster.depose("n3")
        cluster.run(60)
        self._return_lost()
        cluster.run(30)
        cluster.rebalance()
        cluster.run(30)

    def _return_lost(self) -> None:
        for node_id in NODES:
            self.regain(node_id, "", 0.0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=PHASES)
@given(seed=st.integers(0, 2**32), drop=st.sampled_from([0.0, 0.05, 0.3]), actions=ACTIONS)
def test_everything_wanted_runs_once_after_any_trouble(
    seed: int, drop: float, actions: list[tuple[str, str, str, float]]
) -> None:
    trouble = Trouble(seed, drop)
    for action in actions:
        trouble.act(*action)
    trouble.calm()
    cluster = trouble.cluster
    wanted = {str(shard) for shard in cluster.rows}
    engines = Counter(str(shard) for node in cluster.nodes.values() for shard in node.engine.jobs)
    assert engines == Counter(wanted)
    assert cluster.owner.settled
    for node in cluster.nodes.values():
        assert all(held.state is NodeShardState.RUNNING for held in node.worker.shards.values())
        for shard, jobs in node.engine.jobs.items():
            specs = {row.key: row.spec_json for row in jobs}
            assert specs == {row.key: row.spec_json for row in cluster.rows[shard]}
    before = cluster.running()
    placement = cluster.owner.term.placement if cluster.owner.term else Placement()
    assert before == {name: placement.target(ShardId(name)) for name in wanted}, "every shard is where it belongs"
    cluster.note = lambda now_s, name, event, effects: f"{name} {event} {effects}" if effects else None
    cluster.run(30)
    assert cluster.running() == before
    assert not cluster.transcript, "something goes on though nothing happens"


@settings(max_examples=40, deadline=None, phases=PHASES)
@given(seed=st.integers(0, 2**32), drop=st.sampled_from([0.0, 0.3]), stall=st.booleans())
@example(seed=252, drop=0.3, stall=False)  # so many messages are lost that it takes more than 8 s to run
def test_history_is_recorded_once_and_in_order_within_a_term(seed: int, drop: float, stall: bool) -> None:
    cluster = Loopback(PATIENT, Random(seed), drop)
    cluster.start("n1", "n2")
    cluster.elect("n1")
    cluster.want("a")
    cluster.run(30)
    node_id = cluster.running()["a"]
    for seq in range(1, 40):
        cluster.log_stalled = stall and 10 < seq < 20
        if not cluster.log_stalled:
            cluster.unstall()
        cluster.iterate(node_id, "a", seq)
        cluster.run(0.3)
    cluster.drop = 0.0
    cluster.run(40)  # the wire still changes the order, and only the next in order is taken
    assert [entry.seq for entry in cluster.history] == list(range(1, 40))
    assert cluster.rows[ShardId("a")][0].seq == 39


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_no_history_is_lost_over_changes_of_the_owner(drop: float) -> None:
    cluster = Loopback(PATIENT, Random(7), drop)
    cluster.start("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.want("a")
    cluster.run(8)
    node_id = cluster.running()["a"]
    for seq in range(1, 60):
        if seq % 10 == 0:
            cluster.elect(NODES[seq // 10 % 3])
        cluster.iterate(node_id, "a", seq)
        cluster.run(0.2)
    cluster.drop = 0.0
    cluster.run(40)  # the wire still changes the order, and only the next in order is taken
    assert {entry.seq for entry in cluster.history} == set(range(1, 60))
