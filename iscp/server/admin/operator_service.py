"""Requests of operators, answered by the owner: about nodes and shards (port OperatorService), about builds (port
BuildAdmin), and to split and merge a table's key-hash ranges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Reshard
from iscp.cluster.membership.assignments import HELD, Assignment, ShardState
from iscp.cluster.membership.term import Term
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.requests.job_views import JobLookup
from iscp.cluster.requests.request_validator import RequestValidator
from iscp.model.api.api_requests import (
    ChangeOutcome,
    ChangeVerb,
    ConsumerInfo,
    EventView,
    JobChange,
    JobName,
    LogPage,
    LogPlace,
    LogQuery,
    NodeVerb,
    PlacedShard,
    ShardVerb,
)
from iscp.model.build.build_progress import (
    BuildStage,
    BuildView,
    JobBuild,
    KnownBuilds,
    build_views,
    builds_of,
    priority_to_be_next,
    ranges_after_merge,
    ranges_after_split,
    ranges_to_merge,
    ranges_to_split,
)
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import MoveRequested, OverridesChanged, RebalanceRequested
from iscp.model.values.errors import InvalidRequest, IscpError, Unavailable, no_owner
from iscp.model.values.ids import ShardId, parse_shard
from iscp.model.values.ring import Overrides
from iscp.ports.cluster import OverrideStore
from iscp.ports.consumer import ConsumerKind
from iscp.ports.source import Catalog
from iscp.ports.system import Clock
from iscp.server.admin.admin_service import LogReader, answer_of
from iscp.system.threads import retry_conflicts

# --- builds -----------------------------------------------------------------------------------------------------------
# Requests are answered from what the owner's builder knows.


class TermBuilds(Protocol):
    """The builder of the owner's term, for all threads.

    Raises NotOwner between terms, Unavailable until it knows what etcd has. Changes of several ranges are taken
    together, for all jobs of the table, or refused together: InvalidRequest.
    """

    def known(self) -> KnownBuilds: ...

    def split(self, table_id: str, ranges: Sequence[int]) -> None: ...

    def merge(self, table_id: str, ranges: Sequence[int]) -> None:
        """Put the halves of each of these ranges together."""

    def prioritize(self, table_id: str, priority: int) -> None: ...


class OwnerBuilds:
    """The port `BuildAdmin`.

    One change at a time, each validated by what is known of builds; `change_jobs` pauses jobs, as users do.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        catalog: Catalog,
        builder: TermBuilds,
        change_jobs: Callable[[Sequence[JobChange]], Sequence[ChangeOutcome]],
        clock: Clock,
    ) -> None:
        self._owner = owner
        self._lookup = JobLookup(catalog)
        self._builder = builder
        self._change_jobs = change_jobs
        self._clock = clock
        # Validated by what the one before has changed.
        self._lock = threading.Lock()

    def builds(self, table: str, account: str = "") -> list[BuildView]:
        table_ids = self._table_ids(table, account) if table else None
        known = self._builder.known()
        wanted = [
            each
            for each in known.jobs
            if (table_ids is None or each.plan.table_id in table_ids) and account in ("", each.plan.account)
        ]
        return build_views(KnownBuilds(tuple(wanted), known.running), self._names(wanted), self._clock.now_s())

    def abort(self, job: JobName) -> int:
        with self._lock:
            builds = self._builds(job.table, job.account if job.name else "")
            builds = [each for each in builds if not job.name or _is_of(each, job)]
            unfinished = [each for each in builds if each.stage is not BuildStage.PUBLISHING]
            if not unfinished:
                raise self._nothing_to_abort(job, bool(builds))
            for outcome in self._change_jobs([_pause(each) for each in unfinished]):
                if isinstance(outcome, IscpError):
                    raise outcome
        return sum(not task.aborted for each in unfinished for task in each.tasks)

    def prioritize(self, table: str) -> bool:
        with self._lock:
            table_ids = self._table_ids(table)
            known = self._builder.known()
            builds_of(known, table, table_ids)
            wanted = priority_to_be_next(known, table_ids)
            if wanted is not None:
                self._builder.prioritize(*wanted)
            return wanted is not None

    def split(self, table: str, range_id: int) -> int:
        with self._lock:
            builds = self._builds_of_one(table)
            ranges = ranges_to_split(builds, range_id)
            self._builder.split(builds[0].plan.table_id, ranges)
            return len(ranges_after_split(builds, ranges))

    def merge(self, table: str, range_id: int) -> int:
        with self._lock:
            builds = self._builds_of_one(table)
            ranges = ranges_to_merge(builds, range_id)
            self._builder.merge(builds[0].plan.table_id, ranges)
            return len(ranges_after_merge(builds, ranges))

    def _table_ids(self, table: str, account: str = "") -> tuple[str, ...]:
        return self._lookup.table_ids(self._owner.current_writer(), table, account)

    def _builds(self, table: str, account: str = "") -> list[JobBuild]:
        table_ids = self._table_ids(table, account)
        return [each for each in self._builder.known().jobs if each.plan.table_id in table_ids]

    def _builds_of_one(self, table: str) -> list[JobBuild]:
        """Raises InvalidRequest where nothing of it is being built, or it is several tables."""
        builds = builds_of(self._builder.known(), table, self._table_ids(table))
        table_ids = dict.fromkeys(each.plan.table_id for each in builds)
        if len(table_ids) > 1:
            raise InvalidRequest(
                f"{table} was dropped and recreated, and each is being built: {', '.join(table_ids)}",
                about="table",
                remedy="Name the id of the one that is meant",
            )
        return builds

    def _names(self, builds: Sequence[JobBuild]) -> Mapping[str, str]:
        """Return the users' names of the tables, by id, if they still have jobs."""
        job_ids = {each.plan.table_id: each.plan.job_id for each in builds}

        def read(book: JobBook) -> dict[str, str]:
            rows = {table_id: book.by_id(job_id) for table_id, job_id in job_ids.items()}
            return {table_id: row.table_name for table_id, row in rows.items() if row is not None}

        found: dict[str, str] = self._owner.current_writer().read(read)
        return found

    def _nothing_to_abort(self, job: JobName, staged: bool) -> IscpError:
        """Raises JobNotFound."""
        if job.name:
            self._lookup.row(self._owner.current_writer(), job)
        what = f"job {job.name!r} on {job.table}" if job.name else job.table
        why = "is staged as a whole, and about to be published" if staged else "is not being built"
        return InvalidRequest(
            f"{what} {why}",
            about="job" if job.name else "table",
            remedy="See `iscp-admin build list`; `iscp-admin job pause` stops a job in any case",
        )


def _is_of(build: JobBuild, job: JobName) -> bool:
    return (build.plan.job_name, build.plan.account) == (job.name, job.account)


def _pause(build: JobBuild) -> JobChange:
    plan = build.plan
    return JobChange(ChangeVerb.PAUSE, JobName(plan.table_id, plan.job_name, plan.account))


# --- splits and merges of key-hash ranges -----------------------------------------------------------------------------

TRIES_MAX = 3
"""Attempts of a split or a merge whose jobs change meanwhile; then it fails with the last attempt's error."""


class Resharder:
    """Splits a table's key-hash ranges, and merges them: checks who may, and has it decided in the job log.

    `validator` is the one that gives job_ids to all that is registered.
    """

    def __init__(
        self, owner: OwnerLoop, catalog: Catalog, kinds: Callable[[str], ConsumerKind], validator: RequestValidator
    ) -> None:
        self._owner = owner
        self._lookup = JobLookup(catalog)
        self._kinds = kinds
        self._validator = validator

    def reshard(self, merge: bool, table: str, range_id: int, request_id: str) -> tuple[str, tuple[int, ...]]:
        """Return the table's id, and its ranges then. Raises TableNotFound, InvalidRequest."""
        # A conflict: a job came or went while this was checked.
        return retry_conflicts(lambda: self._reshard(merge, table, range_id, request_id), TRIES_MAX)

    def _reshard(self, merge: bool, table: str, range_id: int, request_id: str) -> tuple[str, tuple[int, ...]]:
        writer = self._owner.current_writer()
        table_id = self._table_id(writer, table)
        rows = writer.read(lambda book: book.jobs_on(table_id))
        if not merge:
            self._refuse_unsharded(table, rows)
        request = Reshard(table_id, merge, range_id, frozenset(row.registration for row in rows), "", request_id)
        (future,) = self._validator.submit(writer, [request])
        answer_of(future)
        return table_id, writer.read(lambda book: book.ranges(table_id))

    def _table_id(self, writer: LogWriter, table: str) -> str:
        found = tuple(dict.fromkeys(self._lookup.table_ids(writer, table)))
        if len(found) > 1:
            raise InvalidRequest(
                f"{table} was dropped and recreated, and has jobs on each: {', '.join(found)}",
                about="table",
                remedy="Name the id of the one that is meant",
            )
        return found[0]

    def _refuse_unsharded(self, table: str, rows: Sequence[JobRow]) -> None:
        """MERGEs of one Delta table conflict, and several watermarks equal no version of a source."""
        unfit = sorted({f"{row.key.job_name} ({why})" for row in rows if (why := self._unfit(row))})
        if unfit:
            raise InvalidRequest(
                f"{table} cannot be split for its jobs {', '.join(unfit)}",
                about="table",
                remedy="Unregister these, or leave it whole: only what has a watermark for each range can be split",
            )

    def _unfit(self, row: JobRow) -> str:
        consumer = row.spec.consumer
        try:
            sharded = self._kinds(consumer.kind).sharded
        except InvalidRequest as error:
            return f"{consumer.kind}: {error.message}"
        if not sharded:
            return f"{consumer.kind}: its sink is not sharded"
        return "" if consumer.key else f"{consumer.kind}: without a key"


# --- nodes and shards -------------------------------------------------------------------------------------------------

T = TypeVar("T")

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether a caller that waits for events is still there."""


class OwnerOperator:
    """The port `OperatorService`.

    Operators' decisions are stored outside all nodes before they count: they outlive this owner. One change is made at
    a time; views are taken on the owner loop's thread.
    """

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
