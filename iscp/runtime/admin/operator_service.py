"""Answer operators' requests about nodes and shards, at the owner (port OperatorService).

Their decisions are stored outside all nodes before they count: they outlive this owner.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from iscp.coordination.membership.assignments import HELD, Assignment, ShardState
from iscp.coordination.membership.term import Term
from iscp.coordination.protocol.events import MoveRequested, OverridesChanged, RebalanceRequested
from iscp.coordination.protocol.overrides import Overrides
from iscp.core.api.api_requests import JobName, NodeVerb, ShardVerb
from iscp.core.api.api_views import ConsumerInfo, EventView, PlacedShard
from iscp.core.api.log_lines import LogPage, LogPlace, LogQuery
from iscp.core.values.errors import InvalidRequest, IscpError, Unavailable, no_owner
from iscp.core.values.ids import ShardId, parse_shard
from iscp.ports.catalog import Catalog
from iscp.ports.cluster import OverrideStore
from iscp.runtime.admin.job_lookup import JobLookup
from iscp.runtime.admin.log_reader import LogReader
from iscp.runtime.admin.resharder import Resharder
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop

T = TypeVar("T")

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether a caller that waits for events is still there."""


class OwnerOperator:
    """One change at a time; views are taken on the owner loop's thread."""

    def __init__(
        self,
        owner: OwnerLoop,
        store: OverrideStore,
        catalog: Catalog,
        resharder: Resharder,
        nodes: NodeClients,
        consumers: Callable[[], Sequence[ConsumerInfo]],
    ) -> None:
        self._owner = owner
        self._resharder = resharder
        self._consumers = consumers
        self._store = store
        self._lookup = JobLookup(catalog)
        self._logs = LogReader(owner, nodes, self._lookup)
        # Overrides are read, changed and saved as a whole: of two changes at once one would be lost.
        self._lock = threading.Lock()

    # --- changes -----------------------------------------------------------------------------------------------

    def change_node(self, verb: NodeVerb, node_id: str) -> tuple[bool, int]:
        with self._lock:
            before, shards = self._read_term(
                lambda term: (_check_verb(term, verb, node_id), _shard_count(term, node_id))
            )
            match verb:
                case NodeVerb.CORDON:
                    after = replace(before, cordoned=before.cordoned | {node_id})
                case NodeVerb.DRAIN:
                    after = replace(before, draining=before.draining | {node_id})
                case NodeVerb.UNCORDON:
                    one = {node_id}
                    after = replace(before, cordoned=before.cordoned - one, draining=before.draining - one)
            return self._override(before, after), shards

    def change_shards(self, verb: ShardVerb, table: str, range_id: int, node_id: str) -> int:
        with self._lock:
            shards = self._shards(table, range_id)
            if verb is not ShardVerb.UNPIN:
                self._read_term(lambda term: _check_target(term, node_id))
            match verb:
                case ShardVerb.MOVE:
                    return self._move(shards, node_id)
                case ShardVerb.PIN:
                    return self._pin(shards, lambda pins, shard: pins.update({shard: node_id}))
                case ShardVerb.UNPIN:
                    return self._pin(shards, lambda pins, shard: pins.pop(shard, None))

    def reshard(self, merge: bool, table: str, range_id: int, request_id: str) -> int:
        with self._lock:
            table_id, ranges = self._resharder.reshard(merge, table, range_id, request_id)
            with suppress(IscpError):  # a pin of a range that is gone says nothing; the next change takes it out
                self._unpin_gone(table_id, ranges)
            return len(ranges)

    def _unpin_gone(self, table_id: str, ranges: Collection[int]) -> None:
        before: Overrides = self._read_term(lambda term: term.placement.overrides)
        pins = {
            shard: node_id
            for shard, node_id in before.pins.items()
            if shard.table_id != table_id or shard.range_id in ranges
        }
        self._override(before, replace(before, pins=pins))

    def rebalance(self, dry_run: bool) -> list[PlacedShard]:
        def read(term: Term) -> list[PlacedShard]:
            settled = (each for each in term.assignments if each.state in HELD and each.wanted)
            return [each for each in _placed(term, settled) if each.target and each.target != each.node_id]

        moves = self._read_term(read)
        if not dry_run:
            self._owner.notify(RebalanceRequested())
        return moves

    def _move(self, shards: Iterable[ShardId], node_id: str) -> int:
        def elsewhere(term: Term) -> list[ShardId]:
            found = [each for each in map(term.assignments.get, shards) if each is not None]
            return [each.shard for each in found if each.holder is None or each.holder.node_id != node_id]

        moves = self._read_term(elsewhere)
        for shard in moves:
            self._owner.notify(MoveRequested(shard, node_id))
        return len(moves)

    def _pin(self, shards: Iterable[ShardId], change: Callable[[dict[ShardId, str], ShardId], object]) -> int:
        before: Overrides = self._read_term(lambda term: term.placement.overrides)
        pins = dict(before.pins)
        for shard in shards:
            change(pins, shard)
        self._override(before, replace(before, pins=pins))
        return sum(pins.get(shard) != before.pins.get(shard) for shard in shards)

    def _override(self, before: Overrides, after: Overrides) -> bool:
        if after == before:
            return False
        leader = self._owner.leader
        if leader is None:
            raise no_owner()
        try:
            self._store.save(leader, before, after)
        except IscpError:
            self._learn()
            raise
        self._owner.notify(OverridesChanged(after))
        return True

    def _learn(self) -> None:
        """Load the overrides: what was not answered may have been written all the same."""
        with suppress(IscpError):
            self._owner.notify(OverridesChanged(self._store.load()))

    # --- questions ---------------------------------------------------------------------------------------------

    def placement(self, table: str, account: str = "") -> list[PlacedShard]:
        shards = self._shards(table, 0, account) if table else None
        names = self._names(account)

        def read(term: Term) -> list[PlacedShard]:
            found = term.assignments if shards is None else map(term.assignments.get, shards)
            return _placed(term, (each for each in found if each is not None))

        placed: list[PlacedShard] = self._read_term(read)
        if names is None:
            return placed
        return [replace(each, table=names[each.table_id]) for each in placed if each.table_id in names]

    def events(
        self,
        owner_rev: int,
        number: int,
        wait_s: float,
        alive: Callable[[], bool],
        table: str = "",
        account: str = "",
    ) -> list[EventView]:
        left_s, names = wait_s, self._names(account)
        wanted = self._about(table, account, names)
        while True:
            self._owner.current_writer()  # events of a term that is over are not to be waited for
            events = self._owner.decisions.after(owner_rev, number, min(left_s, ALIVE_LOOK_S), wanted)
            left_s -= ALIVE_LOOK_S
            if events or left_s <= 0 or not alive():
                return events if names is None else [replace(each, table=names[_table_id(each)]) for each in events]

    def _about(self, table: str, account: str, names: Mapping[str, str] | None) -> Callable[[EventView], bool]:
        """Return a test of whether an event is about a shard of the table, also one that is gone by now, or about one
        of the account.
        """
        if not table and names is None:
            return lambda event: True
        found = self._lookup.table_ids(self._owner.current_writer(), table, account) if table else names or ()
        table_ids = {each for each in found if names is None or each in names}
        return lambda event: bool(event.shard) and _table_id(event) in table_ids

    def _names(self, account: str) -> Mapping[str, str] | None:
        """Return the account's names of the tables on which it has jobs: another may have registered them first.

        None means no account, so all count.
        """
        return self._lookup.of_account(self._owner.current_writer(), account) if account else None

    def node_logs(self, node_id: str, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        return self._logs.of_node(node_id, query, after)

    def job_logs(self, job: JobName, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        return self._logs.of_job(job, query, after)

    def consumers(self) -> Sequence[ConsumerInfo]:
        return self._consumers()

    def _shards(self, table: str, range_id: int, account: str = "") -> list[ShardId]:
        """Return the wanted shards of a table. Raises TableNotFound, InvalidRequest."""
        table_ids = dict.fromkeys(self._lookup.table_ids(self._owner.current_writer(), table, account))

        def read(term: Term) -> list[ShardId]:
            found = (each for table_id in table_ids for each in term.assignments.of_table(table_id))
            return [each.shard for each in found if each.wanted and range_id in (0, each.shard.range_id)]

        shards: list[ShardId] = self._read_term(read)
        if not shards:
            raise InvalidRequest(
                f"{table} has no shard {range_id or ''}".rstrip(), about="range", remedy="See `iscp-admin shard list`"
            )
        return shards

    def _read_term(self, read: Callable[[Term], T]) -> T:
        def read_term(loop: OwnerLoop) -> T:
            if loop.machine.term is None:
                raise no_owner()
            return read(loop.machine.term)

        return self._owner.query(read_term)


def _table_id(event: EventView) -> str:
    return parse_shard(event.shard).table_id


def _shard_count(term: Term, node_id: str) -> int:
    peer = term.peers.get(node_id)
    return sum(1 for _ in term.assignments.assigned_to(peer.holder)) if peer else 0


def _check_verb(term: Term, verb: NodeVerb, node_id: str) -> Overrides:
    """Return the overrides as they are. Raises InvalidRequest if the verb makes no sense for the node."""
    overrides = term.placement.overrides
    if verb is NodeVerb.UNCORDON and node_id in overrides.closed:
        return overrides  # also of a node that is gone for good
    _check_known(term, node_id)
    if verb is NodeVerb.DRAIN and term.awaiting:
        raise Unavailable("the owner has not heard of all nodes yet", remedy="Try again in a moment")
    if verb is NodeVerb.DRAIN and term.placement.eligible <= {node_id}:
        raise InvalidRequest(
            f"{node_id} is the last node that takes shards", about="node", remedy="Add or uncordon another node first"
        )
    return overrides


def _check_known(term: Term, node_id: str) -> None:
    if node_id not in term.peers:
        there = ", ".join(sorted(term.peers)) or "none"
        raise InvalidRequest(f"there is no node {node_id!r}", about="node", remedy=f"The nodes are: {there}")


def _check_target(term: Term, node_id: str) -> None:
    _check_known(term, node_id)
    peer = term.peers[node_id]
    if node_id in term.placement.overrides.closed:
        raise InvalidRequest(
            f"{node_id} is cordoned or drained", about="node", remedy=f"`iscp-admin node uncordon {node_id}` first"
        )
    if not peer.synced or peer.record.leaving:
        why = "is leaving" if peer.record.leaving else "has not joined yet"
        raise InvalidRequest(f"{node_id} {why}", about="node", remedy="Choose another, or try again in a moment")


def _placed(term: Term, assignments: Iterable[Assignment]) -> list[PlacedShard]:
    return [_placed_one(term, each) for each in assignments]


def _placed_one(term: Term, assignment: Assignment) -> PlacedShard:
    shard, holder, placement = assignment.shard, assignment.holder, term.placement
    target = placement.target(shard) if assignment.wanted else ""
    return PlacedShard(
        table_id=shard.table_id,
        range_id=shard.range_id,
        table=assignment.jobs[0].table_name if assignment.jobs else "",
        state=assignment.state.value,
        node_id=holder.node_id if holder else "",
        preferred=placement.ring.preferred(shard) if placement.ring and placement.eligible else "",
        pinned=placement.overrides.pins.get(shard, ""),
        target=target,
        why=_why(term, assignment, target),
    )


def _why(term: Term, assignment: Assignment, target: str) -> str:
    """Return why a shard is not where it should be."""
    holder = assignment.holder
    if not assignment.wanted:
        return "has no jobs any more"
    if holder is None:
        if (other := term.in_the_way(assignment.shard)) is not None:
            return f"waits until {other} has ended"
        return "waits until it may be placed" if term.placement.eligible else "no node may take it"
    if holder.node_id == target:
        return "" if assignment.state is not ShardState.DRAINING else "is being stopped"
    if assignment.state is ShardState.DRAINING:
        return f"is being stopped: {assignment.why}"
    if holder.node_id in term.placement.overrides.draining:
        return "waits to be drained"
    waits = "moves to its preferred node with the next rebalance"
    return f"{assignment.why}; {waits}" if assignment.why else waits
