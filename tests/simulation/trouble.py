"""What goes wrong in one run, and how often: drawn from the seed, so that runs differ in kind (swarm testing).

A fault that is on in every run hides others: a cluster whose nodes are killed all the time never gets far. So each
kind is on in about half of the runs, at a rate of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

NODES_MAX = 4
SHARDS_MAX = 6
BUSY = 0.05
"""Runs in which the owner does not keep up, and nothing else is wrong."""


class Fault(StrEnum):
    """What befalls a node, etcd or the log at a moment, most of it for a while."""

    KILL = "kill"
    PAUSE = "pause"
    CUT = "cut"
    ONE_WAY = "one way"
    LOSE_ETCD = "lose etcd"
    DEAF_TO_ETCD = "deaf to etcd"
    RESTART_ETCD = "restart etcd"
    RESTORE_ETCD = "restore etcd from a backup"
    DELETE_ELECTION_KEY = "delete the election key"
    STEP_CLOCK = "step the clock"
    SUSPEND = "suspend the machine"
    STALL_LOG = "stall the log"
    LEAVE = "leave"


class Wish(StrEnum):
    """What operators and users request."""

    REGISTER = "register"
    UNREGISTER = "unregister"
    UPDATE = "update"
    PAUSE = "pause"
    RESUME = "resume"
    RESYNC = "resync"
    PIN = "pin"
    UNPIN = "unpin"
    CORDON = "cordon"
    DRAIN = "drain"
    UNCORDON = "uncordon"
    MOVE = "move"
    REBALANCE = "rebalance"
    SPLIT = "split"
    MERGE = "merge"
    SPLIT_BUILD = "split a range of a build"
    MERGE_BUILD = "merge ranges of a build"
    PRIORITIZE_BUILD = "prioritize a build"


LATER_FAULTS = (Fault.RESTORE_ETCD,)
NOT_AT_FIRST = (*LATER_FAULTS, Fault.SUSPEND)
LATER_WISHES = (Wish.PAUSE, Wish.RESUME, Wish.RESYNC)
SHARDED_WISHES = (Wish.SPLIT, Wish.MERGE)
BUILD_WISHES = (Wish.SPLIT_BUILD, Wish.MERGE_BUILD, Wish.PRIORITIZE_BUILD)
NOT_WISHED = (*LATER_WISHES, *SHARDED_WISHES, *BUILD_WISHES)
MORE = 0.6
"""Runs in which what came to be simulated later is drawn too."""

SLEEPY = 0.1
"""Runs in which machines are suspended, of those in which clocks do not drift: the margins are there for either."""


NARROW = 0.1
"""Runs in which few messages may wait for another node, so that some are dropped."""


SHARDED = 0.2
"""Runs in which tables are split and merged."""

SEVERAL = 0.25
"""Runs in which jobs read further tables."""

BUILT = 0.25
"""Runs in which first snapshots are built by ranges, of those without split tables and jobs of several tables."""

UNANSWERED = 0.25
"""Runs in which storage hangs, so that probes are answered late."""

FOREIGN = 0.2
"""Runs with code of others, which says what cannot be."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Rates are per second, chances for each message, answer, commit or iteration.

    `watch_lag_s`: how late a change in etcd may be reported. `drift`: by how much clocks may run fast or slow.
    `long_s`: faults that last do so for up to this time, also beyond the lease. `accounts` have jobs. `alive`: nodes
    say that they are there. `ttl_spread`: by how much the TTLs that nodes request differ, as a part of the
    smallest; `grants_more`: etcd grants a longer one. `busy`: an engine takes in late what the worker orders, and hears
    late from sources. `ruin`: of faults that a person has to repair. `step_s`: what an event costs the owner, about.
    `inbox_max`: events that may wait for it (0: any number). `outgoing_max`: messages that may wait for one other node.
    `poison`: consumers and nodes of others answer, raise and say what cannot be.
    `unanswered`: a probe hangs for longer than it may.
    `several`: jobs `j` read the next table too, and `rowless` versions of tables change no row.
    `builds`: first snapshots are built by ranges, and at the rate `vacuum` a table's earlier versions are gone.
    `jumps`: the rate at which a clock is weeks ahead for a while; `future`: commits are dated ahead; `lost_puts`: of
    the job log land later or never; `hanging_ranges`: reads of ranges for a build do not come back.
    `silent`: nobody announces a commit to a node; `stray`: it is announced late or twice, or another table is.
    `talkative`: nodes report idle sources all the time, so that the lags that the owner shows move.
    `lost_events`: a watch of etcd passes over a change, and says nothing.
    `loaded`: all tables have jobs in the log from the beginning. `together`: all nodes start at about one moment, and
    nothing is wrong: then every shard starts once.
    """

    nodes: int = 3
    shards: int = 2
    length_s: float = 30.0
    faults: Mapping[Fault, float] = field(default_factory=dict)
    wishes: Mapping[Wish, float] = field(default_factory=dict)
    version_rate: float = 0.2
    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0
    slow_etcd: float = 0.0
    lost_answer: float = 0.0
    watch_lag_s: float = 0.05
    compaction: float = 0.0
    doubt: float = 0.0
    hang: float = 0.0
    fail: float = 0.0
    zombie: float = 0.0
    ruin: float = 0.0
    drift: float = 0.0
    long_s: float = 10.0
    apart: bool = False
    accounts: int = 1
    alive: bool = False
    ttl_spread: float = 0.0
    grants_more: float = 0.0
    busy: float = 0.0
    step_s: float = 0.0
    inbox_max: int = 0
    outgoing_max: int = 0
    poison: float = 0.0
    unanswered: float = 0.0
    several: bool = False
    rowless: float = 0.0
    builds: bool = False
    vacuum: float = 0.0
    jumps: float = 0.0
    future: float = 0.0
    lost_puts: float = 0.0
    hanging_ranges: float = 0.0
    silent: float = 0.0
    stray: float = 0.0
    talkative: bool = False
    lost_events: float = 0.0
    loaded: bool = False
    together: bool = False

    @property
    def quiet(self) -> bool:
        """Whether nothing is wrong but that the owner is slow."""
        return not self.harms_nodes and self.step_s > 0.0

    @property
    def harms_nodes(self) -> bool:
        """Whether anything befalls nodes, or their messages, that could keep them from answering in time."""
        lost = self.drop, self.late, self.slow_etcd, self.lost_answer, self.hang, self.drift
        return bool(self.faults) or any(lost) or self.apart or bool(self.outgoing_max)


def _sometimes(random: Random, least: float, most: float) -> float:
    """0 in half of the runs, else between the two, evenly by order of magnitude."""
    if random.random() < 0.5:
        return 0.0
    return float(least * (most / least) ** random.random())


def draw(random: Random, aside: Random, latest: Random, newest: Random, building: Random, hanging: Random) -> Trouble:
    """`aside`: for what came to be drawn later, `latest`: after that, and so on."""
    trouble = _draw_five(random, aside, latest, newest, building)
    if trouble.quiet or hanging.random() >= UNANSWERED:
        return trouble
    return replace(trouble, unanswered=0.02 + hanging.random() * 0.2)


def _draw_five(random: Random, aside: Random, latest: Random, newest: Random, building: Random) -> Trouble:
    trouble = _draw_three(random, aside, latest)
    split = Wish.SPLIT in trouble.wishes or Wish.MERGE in trouble.wishes
    if trouble.quiet or split:
        return trouble
    if trouble.shards > 1 and newest.random() < SEVERAL:
        return replace(trouble, several=True, rowless=newest.choice((0.0, 0.3)))
    return _draw_builds(building, trouble) if building.random() < BUILT else trouble


def draw_building(seed: int) -> Trouble:
    """What goes wrong in a run of its own kind: first snapshots are built by ranges whatever else is drawn."""
    trouble = _draw_three(*(Random(f"{seed} building {number}") for number in range(3)))
    wishes = {wish: rate for wish, rate in trouble.wishes.items() if wish not in SHARDED_WISHES}
    nodes, shards = min(trouble.nodes, NODES_MAX), min(trouble.shards, SHARDS_MAX)
    return _draw_builds(Random(f"{seed} building"), replace(trouble, nodes=nodes, shards=shards, wishes=wishes))


def _draw_builds(random: Random, trouble: Trouble) -> Trouble:
    wishes = {wish: rate for wish in BUILD_WISHES if (rate := _sometimes(random, 0.1, 1.0))}
    return replace(trouble, builds=True, vacuum=_sometimes(random, 0.02, 0.3), wishes={**trouble.wishes, **wishes})


def _draw_three(random: Random, aside: Random, latest: Random) -> Trouble:
    trouble = _draw(random)
    if trouble.quiet:
        return trouble
    if aside.random() < MORE:
        trouble = _draw_more(aside, trouble)
    if latest.random() < SLEEPY and not trouble.drift:
        trouble = replace(trouble, faults={**trouble.faults, Fault.SUSPEND: 0.02 + latest.random() * 0.2})
    if latest.random() < NARROW:
        trouble = replace(trouble, outgoing_max=latest.choice((2, 5, 20)))
    if latest.random() < FOREIGN:
        trouble = replace(trouble, poison=0.02 + latest.random() * 0.2)
    if latest.random() < SHARDED:
        split = {wish: 0.02 * 10.0 ** latest.random() for wish in SHARDED_WISHES}
        trouble = replace(trouble, wishes={**trouble.wishes, **split})
    return trouble


def _draw_more(random: Random, trouble: Trouble) -> Trouble:
    faults = {fault: rate for fault in LATER_FAULTS if (rate := _sometimes(random, 0.01, 0.06))}
    wishes = {wish: rate for wish in LATER_WISHES if (rate := _sometimes(random, 0.02, 0.3))}
    return replace(
        trouble,
        faults={**trouble.faults, **faults},
        wishes={**trouble.wishes, **wishes},
        accounts=random.choice((1, 2)),
        alive=random.random() < 0.5,
        ttl_spread=_sometimes(random, 0.2, 2.0),
        grants_more=_sometimes(random, 0.1, 0.5),
        busy=_sometimes(random, 0.02, 0.3),
        ruin=_sometimes(random, 0.02, 0.2),
    )


def _draw(random: Random) -> Trouble:
    """`apart`: no node ever hears from another again, also when all other trouble is over.

    In some runs nothing is wrong but that the owner is slow, and has much to do.
    """
    if random.random() < BUSY:
        return _draw_busy(random)
    nodes = random.choice((1, 2, 2, 3, 3, 3, 4))
    return Trouble(
        nodes=nodes,
        shards=random.randint(1, SHARDS_MAX),
        length_s=20.0 * 6.0 ** (random.random() ** 3),
        faults={
            fault: rate for fault in Fault if fault not in NOT_AT_FIRST and (rate := _sometimes(random, 0.01, 0.15))
        },
        wishes={wish: rate for wish in Wish if wish not in NOT_WISHED and (rate := _sometimes(random, 0.02, 0.15))},
        version_rate=0.02 * 15.0 ** random.random(),
        drop=_sometimes(random, 0.005, 0.2),
        double=_sometimes(random, 0.01, 0.3),
        late=_sometimes(random, 0.01, 0.3),
        slow_etcd=_sometimes(random, 0.02, 0.4),
        lost_answer=_sometimes(random, 0.01, 0.1),
        watch_lag_s=max(0.05, _sometimes(random, 0.1, 6.0)),
        compaction=_sometimes(random, 0.05, 0.5),
        doubt=_sometimes(random, 0.02, 0.3),
        hang=_sometimes(random, 0.02, 0.3),
        fail=_sometimes(random, 0.02, 0.3),
        zombie=_sometimes(random, 0.05, 0.5),
        drift=random.choice((0.0, 0.0, 0.02, 0.15)),
        long_s=random.choice((3.0, 8.0, 20.0)),
        apart=nodes > 1 and random.random() < 0.1,
        step_s=_sometimes(random, 0.002, 0.2),
        inbox_max=random.choice((0, 0, 10, 100)),
    )


def _draw_busy(random: Random) -> Trouble:
    return Trouble(
        nodes=random.choice((2, 5, 12)),
        shards=random.choice((10, 40)),
        wishes={wish: rate for wish in Wish if wish not in NOT_WISHED and (rate := _sometimes(random, 0.02, 0.5))},
        version_rate=0.01 * 10.0 ** random.random(),
        double=_sometimes(random, 0.01, 0.3),
        step_s=0.01 * 30.0 ** random.random(),
    )
