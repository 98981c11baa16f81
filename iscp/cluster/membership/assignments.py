"""The assignments of shards to nodes, as the owner knows them: the states, the transitions, the table.

The module also has the second copies of shards, and the rings that say where a shard should be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from iscp.model.job.job_row import JobRow
from iscp.model.rows.key_ranges import WHOLE, overlaps
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import ShardId
from iscp.model.values.ring import Ring
from iscp.model.values.state_table import StateTable

# --- states and assignments -------------------------------------------------------------------------------------------
# A new owner takes over what a node runs from its Sync. Only the node's own report, or the end of its lease and of the
# grace after it, ends Draining: stopping is not stopped.

# state diagram of SHARD_STATES
#
#   absent                            ── dispatch ───────────────────────────▶  dispatching
#   absent                            ── found starting ─────────────────────▶  dispatching
#   absent                            ── found running ──────────────────────▶  running
#   absent                            ── found stopping, or unwanted ────────▶  draining
#   dispatching | running             ── node confirms ──────────────────────▶  running
#   dispatching | running             ── missing in Sync ────────────────────▶  dispatching
#   dispatching | running             ── drain ──────────────────────────────▶  draining
#   dispatching | running | draining  ── node lost ──────────────────────────▶  draining
#   dispatching | running | draining  ── node has stopped it, or grace over ─▶  absent


class ShardState(StrEnum):
    """`absent`: no node has it. `running`: its node has confirmed. `draining`: it must end there, whatever follows."""

    ABSENT = "absent"
    DISPATCHING = "dispatching"
    RUNNING = "running"
    DRAINING = "draining"

    __hash__ = str.__hash__  # the states of a hundred thousand are counted by it


HELD = (ShardState.DISPATCHING, ShardState.RUNNING)
"""A node is to have it."""


class Cause(StrEnum):
    """A `Cause` says why a shard is, or goes, where it does."""

    NEW = "new"
    NODE_GONE = "node gone"
    LEAVING = "node leaves"
    DRAINED = "node drained"
    REQUESTED = "asked"
    REBALANCED = "rebalance"
    STOPPED = "stopped by its node"


class ShardEvent(StrEnum):
    """A `ShardEvent` is what happens to a shard, as its owner sees it. `found` means in the Sync of a node, by a new
    owner or after a cut.
    """

    DISPATCH = "dispatch"
    FIND_STARTING = "found starting"
    FIND_RUNNING = "found running"
    FIND_STOPPING = "found stopping, or unwanted"
    CONFIRM = "node confirms"
    MISS = "missing in Sync"
    DRAIN = "drain"
    ABANDON = "node lost"
    FREE = "node has stopped it, or grace over"


_ABSENT, _DISPATCHING, _RUNNING, _DRAINING = ShardState

SHARD_STATES: StateTable[ShardState, ShardEvent] = StateTable(
    {
        ShardEvent.DISPATCH: {_ABSENT: _DISPATCHING},
        ShardEvent.FIND_STARTING: {_ABSENT: _DISPATCHING},
        ShardEvent.FIND_RUNNING: {_ABSENT: _RUNNING},
        ShardEvent.FIND_STOPPING: {_ABSENT: _DRAINING},
        ShardEvent.CONFIRM: {_DISPATCHING: _RUNNING, _RUNNING: _RUNNING},
        ShardEvent.MISS: {_DISPATCHING: _DISPATCHING, _RUNNING: _DISPATCHING},
        ShardEvent.DRAIN: {_DISPATCHING: _DRAINING, _RUNNING: _DRAINING},
        ShardEvent.ABANDON: {_DISPATCHING: _DRAINING, _RUNNING: _DRAINING, _DRAINING: _DRAINING},
        ShardEvent.FREE: {_DISPATCHING: _ABSENT, _RUNNING: _ABSENT, _DRAINING: _ABSENT},
    }
)


class Holder(NamedTuple):
    """A `Holder` is one process life of a node: a shard is assigned to it, not to a name."""

    node_id: str
    epoch: int


@dataclass(slots=True)
class Assignment:
    """Invariants: `holder` is None exactly while absent; `jobs` is empty exactly while unwanted.

    `to`: the node that it is to go to once it is free (empty: wherever it belongs); `why`: what moved it last.
    """

    shard: ShardId
    jobs: tuple[JobRow, ...]
    state: ShardState = ShardState.ABSENT
    holder: Holder | None = None
    to: str = ""
    why: Cause | None = None

    @property
    def wanted(self) -> bool:
        return bool(self.jobs)


class Assignments:
    """All shards that are wanted or assigned. Every change of state goes through `take`, `turn` and `free`.

    Wanted shards without a holder are `unplaced` or, by their tables, `blocked`: what is in the way of a blocked one
    has to end first, and it is not considered before.
    """

    def __init__(self) -> None:
        self._shards: dict[ShardId, Assignment] = {}
        self._assigned: dict[Holder, dict[ShardId, None]] = {}
        self._parts: dict[str, dict[ShardId, None]] = {}  # by table, of those that are split, or were and drain
        self.unplaced: dict[ShardId, None] = {}
        self.blocked: dict[str, dict[ShardId, None]] = {}
        self.counts = dict.fromkeys(ShardState, 0)

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[Assignment]:
        return iter(self._shards.values())

    def get(self, shard: ShardId) -> Assignment | None:
        return self._shards.get(shard)

    def __getitem__(self, shard: ShardId) -> Assignment:
        return self._shards[shard]

    def of_table(self, table_id: str) -> list[Assignment]:
        shards = (ShardId(table_id), *self._parts.get(table_id, ()))
        return [self._shards[shard] for shard in shards if shard in self._shards]

    @property
    def split_tables(self) -> Collection[str]:
        """Return the tables of which a range that is not the whole is wanted or assigned."""
        return self._parts.keys()

    def in_the_way(self, shard: ShardId) -> ShardId | None:
        """Return another shard that some node still has and that shares keys with it: until then it is not to be
        placed.

        Costs one lookup for tables that are not split.
        """
        if shard.table_id not in self._parts:
            return None
        taken = [each.shard for each in self.of_table(shard.table_id) if each.holder is not None]
        return next((each for each in taken if each != shard and overlaps(each.range_id, shard.range_id)), None)

    def assigned_to(self, holder: Holder) -> Iterable[ShardId]:
        return self._assigned.get(holder, {}).keys()

    def holders(self) -> Iterable[Holder]:
        return self._assigned.keys()

    def want(self, shard: ShardId, jobs: tuple[JobRow, ...]) -> Assignment:
        """Have `shard` run with `jobs` (at least one), and return its assignment."""
        if not jobs:
            raise InvariantBroken(f"shard {shard} is wanted without a job")
        found = self._shards.get(shard)
        if found is not None:
            found.jobs = jobs
            return found
        return self._add(Assignment(shard, jobs))

    def stray(self, shard: ShardId) -> Assignment:
        """Return a shard that some node has and nobody wants."""
        return self._add(Assignment(shard, ()))

    def _add(self, assignment: Assignment) -> Assignment:
        shard = assignment.shard
        self._shards[shard] = assignment
        if shard.range_id != WHOLE:
            self._parts.setdefault(shard.table_id, {})[shard] = None
        self.counts[ShardState.ABSENT] += 1
        if assignment.wanted:
            self.unplaced[assignment.shard] = None
        return assignment

    def unwant(self, assignment: Assignment) -> None:
        """Note that nobody wants the shard any more; it is forgotten at once if it has no holder either."""
        assignment.jobs = ()
        if assignment.state is ShardState.ABSENT:
            self._settle(assignment)

    def take(self, assignment: Assignment, holder: Holder, event: ShardEvent) -> None:
        """Assign an absent shard to `holder` from now on."""
        if assignment.holder is not None:
            raise InvariantBroken(f"shard {assignment.shard} is with {assignment.holder}, not free for {holder}")
        self.turn(assignment, event)
        assignment.holder, assignment.to = holder, ""
        self._assigned.setdefault(holder, {})[assignment.shard] = None
        self._forget_unplaced(assignment.shard)

    def turn(self, assignment: Assignment, event: ShardEvent) -> None:
        """Change the state, not the holder; raises InvariantBroken on a transition that does not exist."""
        state = SHARD_STATES.after(assignment.state, event, assignment.shard)
        self.counts[assignment.state] -= 1
        self.counts[state] += 1
        assignment.state = state

    def free(self, assignment: Assignment) -> None:
        """Free the shard, which its holder has no more."""
        holder = assignment.holder
        if holder is None:
            raise InvariantBroken(f"shard {assignment.shard} is free already")
        self.turn(assignment, ShardEvent.FREE)
        assignment.holder = None
        assigned = self._assigned[holder]
        del assigned[assignment.shard]
        if not assigned:
            del self._assigned[holder]
        self.unblock(assignment.shard.table_id)
        self._settle(assignment)

    def block(self, shard: ShardId) -> None:
        """Place the unplaced shard nowhere before something of its table has ended."""
        del self.unplaced[shard]
        self.blocked.setdefault(shard.table_id, {})[shard] = None

    def unblock(self, table_id: str) -> None:
        """Unblock the table's shards, after something of the table has ended."""
        self.unplaced |= self.blocked.pop(table_id, {})

    def _settle(self, assignment: Assignment) -> None:
        if assignment.wanted:
            self.unplaced[assignment.shard] = None
        else:
            self._forget_unplaced(assignment.shard)
            self.counts[ShardState.ABSENT] -= 1
            del self._shards[assignment.shard]
            self._forget_part(assignment.shard)

    def _forget_unplaced(self, shard: ShardId) -> None:
        self.unplaced.pop(shard, None)
        if (blocked := self.blocked.get(shard.table_id)) is not None:
            blocked.pop(shard, None)
            if not blocked:
                del self.blocked[shard.table_id]

    def _forget_part(self, shard: ShardId) -> None:
        if (parts := self._parts.get(shard.table_id)) is not None:
            parts.pop(shard, None)
            if not parts:
                del self._parts[shard.table_id]


# --- second copies ----------------------------------------------------------------------------------------------------


class SecondCopies:
    """The nodes that run a shard beside the one that holds it, until they have stopped: it is not placed before.

    A node that could not be seen for a while may come back with all that it ran, so there may be as many as shards:
    each question costs what it is about, however many there are.
    """

    def __init__(self) -> None:
        self._tables: dict[str, dict[ShardId, set[Holder]]] = {}
        self._copies: dict[Holder, dict[ShardId, None]] = {}

    def __len__(self) -> int:
        """Return how many shards have a second copy."""
        return sum(len(shards) for shards in self._tables.values())

    def __iter__(self) -> Iterator[tuple[ShardId, Holder]]:
        return ((shard, holder) for holder, shards in self._copies.items() for shard in shards)

    def add(self, shard: ShardId, holder: Holder) -> None:
        self._tables.setdefault(shard.table_id, {}).setdefault(shard, set()).add(holder)
        self._copies.setdefault(holder, {})[shard] = None

    def end(self, shard: ShardId, holder: Holder) -> bool:
        """Note that the node has stopped it, and return whether it had it."""
        copies = self._copies.get(holder, {})
        if shard not in copies:
            return False
        del copies[shard]
        if not copies:
            del self._copies[holder]
        shards = self._tables[shard.table_id]
        shards[shard].discard(holder)
        if not shards[shard]:
            del shards[shard]
        if not shards:
            del self._tables[shard.table_id]
        return True

    def at(self, holder: Holder) -> list[ShardId]:
        return list(self._copies.get(holder, ()))

    def in_the_way(self, shard: ShardId) -> ShardId | None:
        """Return a shard with a second copy that shares keys with this one."""
        alike = self._tables.get(shard.table_id, ())
        return next((each for each in alike if overlaps(each.range_id, shard.range_id)), None)


# --- rings ------------------------------------------------------------------------------------------------------------
# A ring decides where a shard should be. Only a dispatch makes it so.

RINGS_KEPT_MAX = 4
"""Sets of nodes whose rings are cached, at 16 MB for 1,000 nodes; others are built again."""


@lru_cache(RINGS_KEPT_MAX)
def ring_of(nodes: frozenset[str]) -> Ring:
    """Return the ring of the nodes, which does not change, and is the same for the same nodes."""
    return Ring(nodes)
