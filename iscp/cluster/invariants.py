"""Checks that must succeed after every step of a machine, for tests and for assertions in production.

Each check costs in proportion to all shards: a loop in production makes it now and then, tests after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations

from iscp.cluster.membership.assignments import HELD, Assignment, ShardState
from iscp.cluster.membership.term import OPERATIONS_IN_FLIGHT_MAX, Peer, PeerPhase, Term
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.worker_machine import FENCES_MAX, WorkerMachine
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.messages import NodeShardState
from iscp.model.rows.key_ranges import overlaps
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import ShardId
from iscp.schedule.lag import GlobalCheckpoint, counts
from iscp.schedule.reports import IN_FLIGHT_MAX


def require(holds: bool, what: str, *of: object) -> None:
    """Raise InvariantBroken unless `holds`; `what` is formatted with `of`, and only then."""
    if not holds:
        raise InvariantBroken(what.format(*of))


def check_owner(owner: OwnerMachine) -> None:
    """Check that the owner's table agrees with itself and with its operations. Raises InvariantBroken."""
    term = owner.term
    if term is None:
        return
    counts = Counter(assignment.state for assignment in term.assignments)
    require(all(counts[state] == term.assignments.counts[state] for state in ShardState), "the counts are wrong")
    assigned = [
        (holder, shard) for holder in term.assignments.holders() for shard in term.assignments.assigned_to(holder)
    ]
    require(len({shard for _, shard in assigned}) == len(assigned), "a shard is assigned twice")
    for holder, shard in assigned:
        require(term.assignments[shard].holder == holder, "{} is assigned to {}, and does not know it", shard, holder)
    for assignment in term.assignments:
        _check_assignment(term, assignment)
    for table_id in term.assignments.split_tables:
        at_work = [each for each in term.assignments.of_table(table_id) if each.state in HELD]
        _check_apart(each.shard for each in at_work)
    for peer in term.peers.values():
        _check_peer(term, peer)
    placement = term.placement
    of_now = placement.ring is None or placement.ring.node_ids == tuple(sorted(placement.eligible))
    require(of_now, "the ring is of {}, not of {}", placement.ring, placement.eligible)
    awaited = sum(each.awaited for peer in term.peers.values() for each in peer.in_flight.values())
    require(awaited == term.window.awaited, "{} answers are awaited, not {}", awaited, term.window.awaited)
    require(term.awaiting == any(peer.awaited for peer in term.peers.values()), "the awaited are miscounted")


def _check_apart(shards: Iterable[ShardId]) -> None:
    """Check that no two shards of one table share keys."""
    for one, other in combinations(shards, 2):
        apart = one.table_id != other.table_id or not overlaps(one.range_id, other.range_id)
        require(apart, "{} and {} share keys, and both may run", one, other)


def _check_assignment(term: Term, assignment: Assignment) -> None:
    shard, state, holder = assignment.shard, assignment.state, assignment.holder
    require((holder is None) == (state is ShardState.ABSENT), "{} is {} at {}", shard, state, holder)
    blocked = shard in term.assignments.blocked.get(shard.table_id, ())
    require((shard in term.assignments.unplaced) + blocked == (holder is None), "{} would never be placed", shard)
    require(not blocked or term.in_the_way(shard) is not None, "{} waits for nothing", shard)
    if holder is None:
        require(assignment.wanted, "{} is remembered for nothing", shard)
        return
    require(shard in term.assignments.assigned_to(holder), "{} is missing at {}", shard, holder)
    peer = term.peers.get(holder.node_id)
    there = peer is not None and peer.holder == holder
    require(there != (holder in term.departed), "{} must be there or have departed", holder)
    is_delete = peer.ordered(shard) if peer is not None and there else None
    answers = peer is not None and there and peer.synced
    match state:
        case ShardState.DISPATCHING:
            require(is_delete is False, "{} is dispatched by nothing", shard)
        case ShardState.RUNNING:
            require(answers and not is_delete, "{} runs and is to stop", shard)
        case ShardState.DRAINING:
            require(is_delete or not answers, "{} drains, and no operation stops it", shard)
        case _:
            pass
    require(assignment.wanted or state is ShardState.DRAINING, "{} is {}, and nobody wants it", shard, state)


def _check_peer(term: Term, peer: Peer) -> None:
    name = peer.record.node_id
    require(not peer.queue.keys() & peer.in_flight.keys(), "{} has two operations on a shard", name)
    require(len(peer.in_flight) <= OPERATIONS_IN_FLIGHT_MAX, "{} has too much in flight", name)
    require(not peer.queue or bool(peer.in_flight) or name in term.turns, "what waits for {} is never sent", name)
    require(peer.recorded <= peer.accepted, "{}: more was recorded than came in", name)
    ordered = [*peer.queue, *peer.in_flight]
    require(peer.phase is PeerPhase.SYNCED or not ordered, "{} has operations before its Sync", name)
    for epoch in (operation.table_epoch for operation in peer.in_flight.values()):
        require(epoch.owner_rev == term.owner_rev and epoch.counter <= term.counter, "{} is not of this term", epoch)
    for shard in ordered:
        assignment = term.assignments.get(shard)
        require(
            peer.ordered(shard) or (assignment is not None and assignment.holder == peer.holder),
            "{} is not for {}",
            shard,
            name,
        )


def check_checkpoint(
    checkpoint: GlobalCheckpoint, rows: Iterable[JobRow], applied_up_to_s: Callable[[JobRow], float]
) -> None:
    """Check that each wanted job not listed as left out has applied what was committed up to the checkpoint.

    `applied_up_to_s`: Unix time up to which a job has really applied everything.
    """
    listed = {job_id for job_ids in checkpoint.catching_up.values() for job_id in job_ids}
    for row in rows:
        require(not (row.job_id in listed and checkpoint.covers(row)), "{} is listed and covered", row.key)
        if counts(row) and row.job_id not in listed:
            at_s = applied_up_to_s(row)
            require(at_s >= checkpoint.at_s, "{} is at {}, below the checkpoint {}", row.key, at_s, checkpoint.at_s)


def check_worker(worker: WorkerMachine) -> None:
    """Raises InvariantBroken."""
    require(len(worker.outbox.chunks) <= IN_FLIGHT_MAX, "too many checkpoints are on their way")
    numbers = [chunk.number for chunk in worker.outbox.chunks]
    first = worker.outbox.recorded + 1
    require(numbers == list(range(first, first + len(numbers))), "checkpoints are not numbered in order")
    require(len(worker.fences) <= FENCES_MAX, "too many fences")
    for shard, hosted in worker.shards.items():
        require(hosted.state is not NodeShardState.ABSENT, "{} is there though absent", shard)
        require(
            worker.lease_held or hosted.state is NodeShardState.REMOVING,
            "{} is {} without a lease",
            shard,
            hosted.state,
        )
        require(hosted.table_epoch.owner_rev <= worker.owner_rev, "{} runs for an owner that was never checked", shard)


def check_no_double_run(engines: Iterable[tuple[str, Iterable[ShardId]]]) -> None:
    """Check that no shard, and no two that share keys, run in engines that may write.

    `engines`: a name and what runs there, for each.
    """
    at: dict[ShardId, str] = {}
    parts: dict[str, list[ShardId]] = {}
    for name, shards in engines:
        for shard in shards:
            require(shard not in at, "{} runs at {} and at {}", shard, at.get(shard), name)
            at[shard] = name
            parts.setdefault(shard.table_id, []).append(shard)
    for of_table in parts.values():
        _check_apart(of_table)
