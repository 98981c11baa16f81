"""What happens to a cluster in a soak: each fault is made, lasts, and is over; what it was is written down."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.soak.rig import ELDER, Rig, insist

BEYOND_LEASE_S = 6.0
"""Longer than the lease of three seconds and its grace: whoever is silent for so long is replaced."""

ETCD_AWAY_S = 4.0
DISK_FULL_S = 8.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was made; times are Unix seconds."""

    what: str
    whom: str
    begin_at_s: float
    end_at_s: float


def _victim(rig: Rig, chance: random.Random) -> str:
    """A node that may be killed: any but the elder."""
    return chance.choice([each for each in rig.members if each != ELDER])


def _kill(rig: Rig, node_id: str) -> None:
    rig.members[node_id].kill()
    rig.begin(node_id)
    rig.wait_ready(node_id)


def _kill_node(rig: Rig, chance: random.Random) -> str:
    victim = _victim(rig, chance)
    _kill(rig, victim)
    return victim


def _freeze_node(rig: Rig, chance: random.Random) -> str:
    victim = chance.choice(list(rig.members))
    _freeze(rig, victim)
    return victim


def _freeze(rig: Rig, node_id: str) -> None:
    rig.members[node_id].freeze()
    time.sleep(BEYOND_LEASE_S)
    rig.members[node_id].thaw()


def _strike_owner(rig: Rig, chance: random.Random) -> str:
    """Killed, or frozen if it is the elder."""
    owner: str = insist(rig.owner)
    if owner == ELDER:
        _freeze(rig, owner)
    else:
        _kill(rig, owner)
    return owner


def _kill_etcd(rig: Rig, chance: random.Random) -> str:
    rig.etcd.kill()
    time.sleep(ETCD_AWAY_S)
    rig.start_etcd()
    return "etcd"


def _freeze_etcd(rig: Rig, chance: random.Random) -> str:
    rig.etcd.freeze()
    time.sleep(ETCD_AWAY_S)
    rig.etcd.thaw()
    return "etcd"


def _cut_off(rig: Rig, chance: random.Random) -> str:
    victim = chance.choice(list(rig.members))
    rig.cut_off(victim)
    time.sleep(BEYOND_LEASE_S)
    rig.reconnect(victim)
    return victim


def _fail_writes(rig: Rig, chance: random.Random) -> str:
    victim = chance.choice(list(rig.members))
    rig.limit_files(rig.members[victim], 0)
    time.sleep(DISK_FULL_S)
    rig.limit_files(rig.members[victim], resource.RLIM_INFINITY)
    return victim


def _stop_node(rig: Rig, chance: random.Random) -> str:
    """In order, as when it is upgraded."""
    victim = _victim(rig, chance)
    status = rig.members[victim].stop()
    assert status == 0, f"{victim} ended with {status} when it was stopped"
    rig.begin(victim)
    rig.wait_ready(victim)
    return victim


FAULTS: Mapping[str, Callable[[Rig, random.Random], str]] = {
    "a node is killed": _kill_node,
    "a node is frozen": _freeze_node,
    "the owner is struck": _strike_owner,
    "etcd is killed": _kill_etcd,
    "a node is cut off": _cut_off,
    "a node's writes fail": _fail_writes,
    "etcd is frozen": _freeze_etcd,
    "a node is restarted": _stop_node,
}
"""Each of them returns whom it has struck, when it is over."""


def strike(rig: Rig, what: str, chance: random.Random) -> Fault:
    """Make the fault, and wait until it is over. A node that ends by itself fails the soak."""
    begin_at_s = time.time()
    whom = FAULTS[what](rig, chance)
    for node_id, member in rig.members.items():
        assert member.alive, f"{node_id} has ended by itself ({member.child.returncode}): see {member.log}"
    return Fault(what, whom, begin_at_s, time.time())


def order_of_faults(seed: int) -> Iterator[str]:
    """All kinds in an order that the seed gives, again and again, each time in another one."""
    chance = random.Random(seed)
    while True:
        yield from chance.sample(list(FAULTS), len(FAULTS))
