"""Faults known from systems like this one, each by the number that the tests of the machines use too.

Those that one machine alone shows are in `tests/unit/cluster/test_owner_machine.py` and
`test_owner_machine_shards.py`: 1, 3, 5, 6 and 11.
"""

from __future__ import annotations

from dataclasses import replace

from iscp.model.protocol.events import ShardWanted
from iscp.model.values.ids import ShardId
from iscp.model.values.ring import Overrides
from tests.fakes.loopback import TIMES, Loopback
from tests.simulation.mutant_troubles import CROWD, OWNERS_CHANGE
from tests.simulation.simulation import simulate
from tests.simulation.sources import Kind
from tests.simulation.trouble import Fault, Trouble, Wish
from tests.simulation.world import World


def running(*node_ids: str, shard: str = "flights") -> Loopback:
    """These nodes, of which the first is the owner; the ring wants `flights` at n2."""
    cluster = Loopback()
    cluster.start(*node_ids)
    cluster.elect(node_ids[0])
    cluster.want(shard)
    cluster.run(6)
    return cluster


def test_two_owners_at_once_place_a_shard_once() -> None:
    """Bug 2: etcd stutters, or the election key is deleted, and the owner before does not know."""
    cluster = running("n1", "n2", "n3")
    cluster.elect("n3")
    cluster.want("airports")
    cluster.to_owner("n1", ShardWanted(ShardId("airports"), cluster.rows[ShardId("airports")]))
    cluster.run(20)  # no engine takes in what runs elsewhere: the loopback looks after each step
    assert set(cluster.running()) == {"flights", "airports"}
    assert set(cluster.members) == {"n1", "n2", "n3"}, "and the former one has nobody revoked"


def test_owners_that_follow_each_other_at_once_overlap_and_break_nothing() -> None:
    """Bug 2, at random: the key is deleted again and again."""
    overlaps = 0

    def look(world: World) -> None:
        nonlocal overlaps
        overlaps += sum(process.owner.loop.writer is not None for process in world.processes.values()) > 1

    for seed in range(5):
        world = simulate(seed, trouble=OWNERS_CHANGE, watched=look)
        assert world.log.term > 1
    assert overlaps, "two believed to be the owner"


def test_a_node_that_lost_its_session_commits_nothing_and_what_was_under_way_is_refused() -> None:
    """Bug 4: stopped for longer than its lease between the check of it and the commit, which lands late."""
    frozen = replace(CROWD, faults={Fault.PAUSE: 0.3}, zombie=0.5, version_rate=0.5, long_s=15.0)
    refused = sum(sink.refused for seed in range(6) for sink in simulate(seed, trouble=frozen).sinks)
    assert refused


def test_a_node_that_dies_in_the_middle_of_a_move_leaves_nothing_stuck() -> None:
    """Bug 5: at whichever end of the move, and with the owner too."""
    for victims in (("n2",), ("n3",), ("n1",), ("n1", "n2")):
        cluster = running("n1", "n2", "n3")
        cluster.nodes["n2"].engine.slow = True
        cluster.move("flights", "n3")
        cluster.run(0.1)
        for victim in victims:
            cluster.kill(victim)
        if "n1" in victims:
            cluster.elect("n3")
        for node in cluster.nodes.values():
            node.engine.slow = False
        if "n2" in cluster.nodes:
            cluster.finish("n2")
        cluster.run(3 * TIMES.lease_ttl_s)
        assert set(cluster.running()) == {"flights"}, victims


def test_a_job_beside_others_begins_with_nothing_and_skips_nothing() -> None:
    """Bug 7: what the others have applied is not taken for what the new one has."""
    asked = replace(Trouble(nodes=2, shards=2), wishes={Wish.REGISTER: 0.3}, version_rate=0.5)
    late = [sink for seed in range(4) for sink in simulate(seed, trouble=asked).sinks if sink.name.endswith(".k")]
    assert any(sink.commits[1].to > 0 for sink in late), "some table had moved on"
    for sink in late:
        assert [commit.kind for commit in sink.commits[:2]] == [Kind.CLAIM, Kind.SNAPSHOT]
        assert sink.commits[1].since == -1


def test_a_shard_that_moved_begins_with_the_last_checkpoint_of_where_it_was() -> None:
    """Bug 8: also where the log was late."""
    cluster = running("n1", "n2")
    cluster.log_stalled = True
    cluster.iterate("n2", "flights", 1)
    cluster.iterate("n2", "flights", 2)
    cluster.move("flights", "n1")
    cluster.run(1)
    assert cluster.running() == {}, "it is given up only when that is recorded"
    cluster.unstall()
    cluster.run(1)
    assert cluster.running() == {"flights": "n1"}
    assert cluster.nodes["n1"].engine.jobs[ShardId("flights")][0].seq == 2


def test_a_restart_within_the_ttl_leaves_no_ghost() -> None:
    """Bug 9: the former life's key and shards are waited out, and the new life gets them."""
    cluster = running("n1", "n2")
    cluster.kill("n2")
    cluster.run(0.5)
    cluster.start("n2")
    cluster.run(2 * TIMES.lease_ttl_s)
    assert cluster.running() == {"flights": "n2"}
    assert cluster.nodes["n2"].worker.shards.keys() == {ShardId("flights")}
    assert cluster.owner.settled


def test_the_drained_node_takes_everything_when_it_is_the_only_one_left() -> None:
    """Bug 12: it becomes the only owner, and refuses nothing."""
    cluster = running("n1", "n2")
    cluster.override(Overrides(draining=frozenset({"n2"})))
    cluster.run(3)
    assert cluster.running() == {"flights": "n1"}
    cluster.kill("n1")
    cluster.elect("n2")
    cluster.run(3 * TIMES.lease_ttl_s)
    assert cluster.running() == {"flights": "n2"}


def test_clocks_that_step_back_stall_nothing() -> None:
    """Bug 12: schedules and registrations go on."""
    stepped = replace(
        Trouble(nodes=2, shards=2), faults={Fault.STEP_CLOCK: 0.5}, wishes={Wish.REGISTER: 0.3, Wish.UNREGISTER: 0.2}
    )
    for seed in range(4):
        simulate(seed, trouble=stepped)
