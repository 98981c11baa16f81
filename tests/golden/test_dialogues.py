"""Whole dialogues between owner and nodes, kept as text so that a change of the protocol can be read.

Rewritten by `ISCP_REGENERATE=1 pytest tests/golden`; look at the difference before committing it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path

import pytest

from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobReport, JobRow
from iscp.model.protocol.events import Decided, MembersChanged, ShardWanted
from iscp.model.protocol.messages import NodeShard
from iscp.model.values.ids import Leader, NodeRecord, ShardId, TableEpoch
from iscp.model.values.ring import Overrides
from tests.fakes.loopback import Loopback, job

HERE = Path(__file__).parent / "dialogues"
LEFT_OUT = {"version", "owner_id", "election_revision", "hold_s", "part", "parts", "seen", "wire_format", "leaving"}


def show(value: object) -> str:
    """One line for a value: what matters to the protocol."""
    match value:
        case ShardId():
            return str(value)
        case TableEpoch(owner_rev, counter):
            return f"{owner_rev}.{counter}"
        case NodeRecord():
            return f"{value.node_id}@{value.epoch}{' leaving' if value.leaving else ''}"
        case Decided(what, node_id, shard, why):
            return f"Decided {what} {node_id}{f' {shard}' if shard else ''}: {why}"
        case Leader():
            return value.node_id
        case JobRow():
            return f"{value.key.job_name}#{value.seq}"
        case JobReport():
            return f"{value.key.job_name}#{value.seq}={value.state}"
        case HistoryEntry():
            return f"{value.job_name}#{value.seq}"
        case NodeShard(shard, table_epoch, state):
            return f"{shard}:{state}:{show(table_epoch)}"
    return show_container(value)


def show_container(value: object) -> str:
    match value:
        case Enum():
            return str(value.value)
        case tuple():
            return f"[{' '.join(show(item) for item in value)}]"
        case dict():
            return f"[{' '.join(f'{show(key)}:{show(item)}' for key, item in value.items())}]"
    if is_dataclass(value):
        given = [(f.name, getattr(value, f.name)) for f in fields(value) if f.name not in LEFT_OUT]
        given = [(name, item) for name, item in given if item != Overrides()]
        parts = [show(item) if _says_its_kind(item) else f"{name}={show(item)}" for name, item in given]
        return " ".join([type(value).__name__, *parts])
    return " ".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _says_its_kind(value: object) -> bool:
    return is_dataclass(value) or isinstance(value, ShardId | TableEpoch)


def note(now_s: float, name: str, event: object, effects: list[object]) -> str | None:
    """A step as text; None for a tick without effect."""
    if not effects and type(event).__name__ == "Tick":
        return None
    return "\n".join([f"{now_s - 100:6.1f} {name:9} {show(event)}", *(f"{'':18}-> {show(item)}" for item in effects)])


def first_start(cluster: Loopback) -> None:
    """Two nodes; nothing is dispatched before both have synced and the members have settled."""
    cluster.start("n1", "n2")
    cluster.want("flights")
    cluster.want("planes", "full", "narrow")
    cluster.elect("n1")
    cluster.run(1)
    cluster.iterate(cluster.running()["flights"], "flights", 1)
    cluster.run(0.5)


def restart_within_ttl(cluster: Loopback) -> None:
    """A node comes back under a new epoch before its lease has ended; its shard waits for the grace, then goes on."""
    cluster.start("n1", "n2")
    cluster.elect("n1")
    cluster.want("flights")
    cluster.run(1)
    node_id = cluster.running()["flights"]
    assert node_id == "n2"
    cluster.kill(node_id)
    cluster.run(0.5)
    cluster.start(node_id)
    cluster.run(3)


def owner_change_in_flight(cluster: Loopback) -> None:
    """The owner is replaced while one shard is stopping and another's dispatch has not been confirmed."""
    cluster.start("n1", "n2")
    cluster.elect("n1")
    cluster.want("flights")
    cluster.run(1)
    cluster.nodes["n2"].engine.slow = True
    cluster.unwant("flights")
    cluster.cut.add("n2")
    cluster.want("orders")
    cluster.run(0.5)
    cluster.elect("n2")
    cluster.cut.clear()
    cluster.run(2)
    cluster.finish("n2")
    cluster.run(2)


def drain(cluster: Loopback) -> None:
    """A shard loses its last job: Absent is said only when its last report is recorded."""
    cluster.start("n1")
    cluster.elect("n1")
    cluster.want("flights")
    cluster.run(1)
    cluster.nodes["n1"].engine.slow = True
    cluster.unwant("flights")
    cluster.log_stalled = True
    cluster.iterate("n1", "flights", 1)
    cluster.finish("n1")
    cluster.run(0.5)
    cluster.unstall()
    cluster.run(0.5)


def update_while_running(cluster: Loopback) -> None:
    """A table gets a second job while the first runs, then loses it."""
    cluster.start("n1")
    cluster.elect("n1")
    cluster.want("flights", "full")
    cluster.run(1)
    cluster.want("flights", "full", "narrow")
    cluster.run(1)
    cluster.want("flights", "full")
    cluster.run(1)


def stale_owner(cluster: Loopback) -> None:
    """A deposed owner that does not know it is obeyed by nobody, not even by a node that never heard of another."""
    cluster.start("n1", "n2")
    cluster.elect("n1")
    cluster.run(1)
    cluster.elect("n2")
    cluster.start("n3", tell=False)
    cluster.to_owner("n1", MembersChanged(tuple(sorted(cluster.members.values()))))
    cluster.to_owner("n1", ShardWanted(ShardId("flights"), (job("flights"),)))
    cluster.run(1)
    cluster.depose("n1")
    cluster.run(1)


def missed_sync_deadline(cluster: Loopback) -> None:
    """A node that may run anything does not answer: it is revoked, and its lease waited out."""
    cluster.start("n1", "n2")
    cluster.cut.add("n2")
    cluster.elect("n1")
    cluster.want("flights")
    cluster.run(12)


def lease_lost_and_regained(cluster: Loopback) -> None:
    """etcd is out of reach for longer than the lease: the work stops in time, and goes on under a new epoch."""
    cluster.start("n1")
    cluster.elect("n1")
    cluster.want("flights")
    cluster.run(1)
    cluster.lose_etcd("n1")
    cluster.run(6)
    cluster.regain("n1")
    cluster.run(3)


def a_node_joins(cluster: Loopback) -> None:
    """When the members have settled, what belongs to the newcomer moves to it, and nothing else moves."""
    cluster.start("n1")
    cluster.elect("n1")
    for table in ("flights", "orders", "planes"):
        cluster.want(table)
    cluster.run(6)
    cluster.start("n2")
    cluster.run(6)


def a_node_leaves(cluster: Loopback) -> None:
    """A node that stops in order hands over at once; its shard runs elsewhere before the node is gone."""
    cluster.start("n1", "n2")
    cluster.elect("n1")
    cluster.want("flights")
    cluster.run(6)
    cluster.leave("n2")
    cluster.run(0.1)


def drained_by_its_operator(cluster: Loopback) -> None:
    """A drained node gives its shard up and gets none; when the others are gone, it takes what there is after all."""
    cluster.start("n1", "n2")
    cluster.elect("n1")
    cluster.want("flights")
    cluster.run(6)
    cluster.override(Overrides(draining=frozenset({"n2"})))
    cluster.run(1)
    cluster.leave("n1")
    cluster.run(0.1)


def moved_and_pinned(cluster: Loopback) -> None:
    """A shard that was moved goes back to its preferred node with the next rebalance, unless it is pinned."""
    cluster.start("n1", "n2")
    cluster.elect("n1")
    cluster.want("flights")
    cluster.run(6)
    cluster.move("flights", "n1")
    cluster.run(1)
    cluster.rebalance()
    cluster.run(1)
    cluster.override(Overrides(pins={ShardId("flights"): "n1"}))
    cluster.run(1)
    cluster.rebalance()
    cluster.run(1)


SCENARIOS: tuple[Callable[[Loopback], None], ...] = (
    first_start,
    restart_within_ttl,
    owner_change_in_flight,
    drain,
    update_while_running,
    stale_owner,
    missed_sync_deadline,
    a_node_joins,
    a_node_leaves,
    drained_by_its_operator,
    moved_and_pinned,
    lease_lost_and_regained,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_dialogue(scenario: Callable[[Loopback], None]) -> None:
    cluster = Loopback()
    cluster.note = note
    scenario(cluster)
    text = "\n".join([f"# {scenario.__doc__}", *cluster.transcript, ""])
    path = HERE / f"{scenario.__name__}.txt"
    if os.environ.get("ISCP_REGENERATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
