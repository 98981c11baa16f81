"""The election of the owner in etcd, and the ports whose state lies in keys there: deaths of nodes' processes, marks
about the job log, the global checkpoint, and the overrides of operators.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Compare, Delete, Get, Keys, KeyValue, Listing, Put, WatchEvent
from iscp.etcd.member_keys import EtcdLease
from iscp.etcd.watch import PrefixWatch, Watch, apply_events
from iscp.model.job.iteration import exact_shard
from iscp.model.job.start_rule import Deaths
from iscp.model.values.errors import (
    Conflict,
    ErrorCode,
    InvariantBroken,
    IscpError,
    JobLogDamaged,
    NotOwner,
    StorageError,
)
from iscp.model.values.ids import Leader, ShardId, parse_shard
from iscp.model.values.ring import Overrides
from iscp.model.values.untrusted_values import error_text, exact_float, exact_int, exact_name, named_error, printable
from iscp.ports.system import Clock, Threads

# --- the election -----------------------------------------------------------------------------------------------------
# One owner leads at a time: candidates campaign on the client's side. etcd's own Campaign call can report success to a
# waiter whose lease has ended. So each candidate creates a key on a lease of its own, waits for the deletion of the one
# created before it, and then reads again whether its own key is still there and the oldest (the recipe of etcd's
# `concurrency` package, with that last read). The key's create revision is the fencing token of the term: a write that
# compares it fails once the key is gone, however late it comes.

log = logging.getLogger(__name__)

CAMPAIGN_PAUSE_S = 0.2
"""Pause before a node campaigns again after its campaign failed."""

RESIGN_WAIT_S = 15.0
"""How long the election's thread is waited for when a node resigns; then the lease's end releases the key."""


class EtcdElection:
    """The port `Election` on etcd. `campaign` runs in a thread of its own until `resign`."""

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock, *, lease_ttl_s: float, margin_s: float) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._lease_ttl_s = lease_ttl_s
        self._margin_s = margin_s
        self._closed = threading.Event()
        self._giving_way = threading.Event()
        # For `_watch` alone: of an interrupt and a watch that begins, the later one sees the other.
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._lease: EtcdLease | None = None
        self._leftover_id = 0
        self._term: tuple[Leader, str, EtcdLease] | None = None
        self._thread: threading.Thread | None = None

    def campaign(self, node_id: str, on_elected: Callable[[Leader], None], on_lost: Callable[[], None]) -> None:
        """Run for owner until `resign`, again after each loss. Both callbacks come from one thread, in turns.

        They must return soon: while `on_elected` runs, a loss cannot be reported. `on_lost` comes when the key is
        gone, and also when its lease can no longer be confirmed: another may be elected then.
        """
        if self._thread is not None:
            raise InvariantBroken("campaign was called twice without resign")
        self._closed.clear()
        self._thread = threading.Thread(
            target=self._run, args=(node_id, on_elected, on_lost), name="etcd-election", daemon=True
        )
        self._thread.start()

    def resign(self) -> None:
        """Stop running; the owner is notified by `on_lost` first, and then gives way at once."""
        self._closed.set()
        self._interrupt()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(RESIGN_WAIT_S)

    def give_way(self, revision: int) -> None:
        term = self._term
        if term is not None and term[0].revision == revision:
            self._giving_way.set()
            self._interrupt()

    def leader(self) -> Leader | None:
        oldest = _oldest(self._client.list_prefix(self._keys.candidates))
        return Leader(oldest.value.decode(errors="backslashreplace"), oldest.create_revision) if oldest else None

    def confirmed_until_s(self, revision: int) -> float:
        term = self._term
        return term[2].confirmed_until_s() if term is not None and term[0].revision == revision else float("-inf")

    @property
    def lease_id(self) -> int:
        """Return the lease of the present candidacy, or 0; keys on it go with the term."""
        lease = self._lease
        return lease.lease_id if lease else 0

    def write_fenced(self, leader: Leader, *writes: Put | Delete, when: tuple[Compare, ...] = ()) -> int:
        """Write as this owner and none other, all or nothing; the revision.

        `leader` is the term that `on_elected` gave. Raises NotOwner if it has ended, Conflict if not all of `when`
        holds, EtcdOutcomeUnknown if the answer was lost: it may be repeated, since writing the same twice under one
        term is the same.
        """
        term = self._term
        if term is None or term[0] != leader:
            raise NotOwner(f"{leader.node_id} does not hold term {leader.revision}")
        # By the create revision: a later candidacy of this very node has another one.
        fence = Compare.created_at(term[1], leader.revision)
        result = self._client.txn((fence, *when), writes, (Get(term[1]),))
        if not result.succeeded:
            if any(kv.create_revision == leader.revision for kv in result.results[0]):
                raise Conflict("another write has come first")
            raise NotOwner(f"term {leader.revision} of {leader.node_id} has ended")
        return result.revision

    def put_fenced(self, leader: Leader, key: str, value: bytes, lease_id: int) -> int:
        return self.write_fenced(leader, Put(key, value, lease_id))

    def _run(self, node_id: str, on_elected: Callable[[Leader], None], on_lost: Callable[[], None]) -> None:
        while not self._closed.is_set():
            try:
                self._candidacy(node_id, on_elected, on_lost)
            except IscpError as error:
                log.warning("etcd.election.interrupted", extra={"node": node_id, "reason": str(error)})
            except Exception:
                log.exception("etcd.election.failed", extra={"node": node_id})
            # A candidacy that fails at once must not load etcd; `resign` ends the pause.
            self._closed.wait(CAMPAIGN_PAUSE_S)
        self._thread = None

    def _candidacy(self, node_id: str, on_elected: Callable[[Leader], None], on_lost: Callable[[], None]) -> None:
        """Run one candidacy: one key on one lease, from its creation to its end."""
        self._giving_way.clear()
        if self._leftover_id:
            # Etcd was away when it was to be revoked: our own former key would be before us until it expires.
            self._client.revoke(self._leftover_id)
            self._leftover_id = 0
        self._lease = lease = EtcdLease(
            self._client,
            self._clock,
            ttl_s=self._lease_ttl_s,
            margin_s=self._margin_s,
            on_lapsed=self._interrupt,
        )
        try:
            key = self._keys.candidate(lease.lease_id)
            revision = self._client.create(key, node_id.encode(), lease.lease_id)
            if revision is None or not self._wait_for_turn(lease, key, revision):
                return
            leader = Leader(node_id, revision)
            self._term = leader, key, lease
            log.info("etcd.election.won", extra={"node": node_id, "revision": revision})
            try:
                on_elected(leader)
                self._hold(lease, key, revision)
            finally:
                log.info("etcd.election.lost", extra={"node": node_id, "revision": revision})
                on_lost()  # before the key is deleted below: the next owner is elected at that moment
        finally:
            self._end(lease)

    def _wait_for_turn(self, lease: EtcdLease, key: str, revision: int) -> bool:
        """Return whether our key has become the oldest, by a read after the last change, on a lease that is still
        valid.
        """
        while self._may_go_on(lease):
            listing = self._client.list_prefix(self._keys.candidates)
            if not listing.holds(key, revision):
                return False
            # Each watches its predecessor alone, so that the end of an owner wakes one candidate, not all.
            if (predecessor := listing.last_before(revision)) is None:
                # The read may have taken longer than the lease is known to hold.
                return self._may_go_on(lease)
            self._until_deleted(lease, predecessor.key, listing.revision + 1)
        return False

    def _hold(self, lease: EtcdLease, key: str, revision: int) -> None:
        """Return when our key is gone, by whosever hand, or can no longer be vouched for."""
        while self._may_go_on(lease):
            found = self._client.get(key)
            if found is None or found.create_revision != revision:
                return
            self._until_deleted(lease, key, found.mod_revision + 1)

    def _may_go_on(self, lease: EtcdLease) -> bool:
        stopped = self._closed.is_set() or self._giving_way.is_set()
        return not stopped and lease.valid(self._clock.monotonic_s())

    def _until_deleted(self, lease: EtcdLease, key: str, start_revision: int) -> None:
        """Return when it may have been deleted, when interrupted, or when the watch cannot say: probe again."""
        watch = self._client.watch(key, start_revision=start_revision)
        with self._lock:
            self._watch = watch
        # Checked again: an interrupt from before found no watch to close.
        if self._may_go_on(lease):
            watch.wait_for_deletion()

    def _interrupt(self) -> None:
        """The lease has lapsed, or this node is to lead no more: wake whoever waits."""
        with self._lock:
            if self._watch is not None:
                self._watch.close()

    def _end(self, lease: EtcdLease) -> None:
        if not lease.try_revoke():
            self._leftover_id = lease.lease_id


def _oldest(listing: Listing) -> KeyValue | None:
    return min(listing.items, key=lambda kv: kv.create_revision, default=None)


# --- deaths of nodes' processes ---------------------------------------------------------------------------------------

JOBS_SHARED_MAX = 100
"""Jobs whose deaths a node shares; of more those whose last one is the longest ago are left out."""

_FORMAT = 1


class EtcdDeathBoard:
    """The port `DeathBoard` on etcd, between `start` and `close`.

    The deaths are shared so that a job that ends one node's process does not end each in turn. Each node writes what it
    has seen into one key of its own, without a lease: its deaths outlast its process.
    """

    def __init__(self, client: EtcdClient, keys: Keys, node_id: str, threads: Threads) -> None:
        self._client = client
        self._keys = keys
        self._own_key = keys.death(node_id)
        self._own = b""
        self._lock = threading.Lock()
        self._known: dict[str, KeyValue] = {}
        self._others: Sequence[Mapping[str, Deaths]] = ()
        self._watch = PrefixWatch(
            client, keys.deaths, self._read, self._follow, "etcd.deaths.unreadable", "etcd-deaths", threads
        )

    def start(self) -> None:
        self._watch.start()

    def close(self) -> None:
        self._watch.close()

    def put(self, own: Mapping[str, Deaths]) -> None:
        shared = _encode(own)
        with self._lock:  # the watch's thread writes too
            if shared == self._own:  # as at most starts; what an earlier life left is found as the watch begins
                return
            self._own = shared
            try:
                self._write()
            except IscpError as error:  # the watch's next list finds another text, and writes it again
                log.warning("etcd.deaths.unwritten", extra={"reason": str(error)})

    def others(self) -> Sequence[Mapping[str, Deaths]]:
        return self._others

    def _write(self) -> None:
        if self._own:
            self._client.put(self._own_key, self._own)
        else:
            self._client.delete(self._own_key)

    def _read(self) -> int:
        listing = self._client.list_prefix(self._keys.deaths)
        self._known = {kv.key: kv for kv in listing.items}
        self._take()
        found = self._known.get(self._own_key)
        with self._lock:
            if (found.value if found else b"") != self._own:
                self._write()
        return listing.revision

    def _follow(self, events: Sequence[WatchEvent]) -> None:
        apply_events(self._known, events)
        self._take()

    def _take(self) -> None:
        others = (kv for key, kv in self._known.items() if key != self._own_key)
        self._others = [found for kv in others if (found := _decode(kv))]


def _encode(own: Mapping[str, Deaths]) -> bytes:
    """Return the value of a node's key, empty where there are none."""
    some = sorted(((job_id, each) for job_id, each in own.items() if each.some), key=lambda item: item[1].at_s)
    jobs = {job_id: asdict(each) for job_id, each in some[-JOBS_SHARED_MAX:]}
    return json.dumps({"format": _FORMAT, "jobs": jobs}).encode() if jobs else b""


def _decode(kv: KeyValue) -> Mapping[str, Deaths]:
    try:
        document = json.loads(kv.value)
        if exact_int(document["format"], "format") != _FORMAT:
            raise ValueError("its format is not known here")
        return {exact_name(job_id, "job_id"): _deaths(fields) for job_id, fields in document["jobs"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.warning("etcd.deaths.unreadable_key", extra={"key": printable(kv.key), "reason": named_error(error)})
        return {}


def _deaths(fields: Mapping[str, object]) -> Deaths:
    return Deaths(
        count=exact_int(fields["count"], "count"),
        at_s=exact_float(fields["at_s"], "at_s"),
        signal=printable(exact_name(fields["signal"], "signal")),
        kills=exact_int(fields["kills"], "kills"),
        account=exact_name(fields["account"], "account"),
    )


# --- marks about the job log ------------------------------------------------------------------------------------------

FORMAT = 1


class EtcdLogMarks:
    """The port `LogMarks` on etcd: up to which version the log was written, and why the owner cannot begin with it.

    Either shows the other's loss: the log of etcd's, which goes on from nothing, and etcd of the log's.
    """

    def __init__(self, client: EtcdClient, election: EtcdElection, keys: Keys) -> None:
        self._client = client
        self._election = election
        self._keys = keys

    def load(self) -> int:
        found = self._client.get(self._keys.job_log)
        if found is None:
            # An owner of an earlier version leaves only this: what is applied was registered.
            return 0 if self._client.get(self._keys.checkpoint) else -1
        try:
            return exact_int(int(found.value), "the job log's version")
        except ValueError as error:  # there was one, as far as is known
            log.warning("etcd.joblog.unreadable", extra={"reason": error_text(error)})
            return 0

    def save(self, leader: Leader, version: int) -> None:
        self._election.write_fenced(leader, Put(self._keys.job_log, str(version).encode()))

    def accept(self, version: int) -> None:
        """Set the end of the log to `version`, whatever was written: a person does so, while no node runs."""
        self._client.txn((), (Put(self._keys.job_log, str(version).encode()),))

    def fault(self) -> IscpError | None:
        found = self._client.get(self._keys.job_log_fault)
        if found is None:
            return None
        try:
            fields = json.loads(found.value)
            if not isinstance(fields, Mapping):
                raise ValueError("it is no object")
            code = ErrorCode(exact_int(fields["code"], "the code"))
            message, remedy = (printable(exact_name(fields[name], name)) for name in ("message", "remedy"))
        except (ValueError, KeyError) as error:
            log.warning("etcd.joblog.unreadable", extra={"reason": error_text(error)})
            return None
        kind = JobLogDamaged if code is ErrorCode.JOB_LOG_DAMAGED else StorageError
        return kind(message, remedy=remedy, code=code)

    def report_fault(self, leader: Leader, fault: IscpError | None) -> None:
        key = self._keys.job_log_fault
        if fault is None:
            self._election.write_fenced(leader, Delete(key))
            return
        fields = {"format": FORMAT, "code": int(fault.code), "message": fault.message, "remedy": fault.remedy}
        # On the lease of the candidacy: what this term could not do is no fault of the next one.
        self._election.write_fenced(leader, Put(key, json.dumps(fields).encode(), self._election.lease_id))


# --- the global checkpoint --------------------------------------------------------------------------------------------


class EtcdCheckpoint:
    """The port `CheckpointStore` on etcd: the checkpoint is written by the owner alone, and not often."""

    def __init__(self, client: EtcdClient, election: EtcdElection, keys: Keys) -> None:
        self._client = client
        self._election = election
        self._key = keys.checkpoint

    def load(self) -> float:
        found = self._client.get(self._key)
        try:
            return exact_float(float(found.value), "the global checkpoint") if found else 0.0
        except ValueError as error:  # it is computed again, from the jobs' watermarks
            log.warning("etcd.checkpoint.unreadable", extra={"reason": error_text(error)})
            return 0.0

    def save(self, leader: Leader, at_s: float) -> None:
        self._election.write_fenced(leader, Put(self._key, repr(at_s).encode()))


# --- overrides of operators -------------------------------------------------------------------------------------------

CORDON, DRAIN, PIN = "cordon", "drain", "pin"
WRITES_AT_ONCE_MAX = 100
"""Operators' overrides written in one transaction, as etcd refuses more than 128 operations; the others follow in
further ones.
"""


class EtcdOverrides:
    """The port `OverrideStore` on etcd: a key for each override of a node or shard, which only the owner writes."""

    def __init__(self, client: EtcdClient, election: EtcdElection, keys: Keys) -> None:
        self._client = client
        self._election = election
        self._keys = keys

    def load(self) -> Overrides:
        found: dict[str, dict[str, str]] = {CORDON: {}, DRAIN: {}, PIN: {}}
        for kv in self._client.list_prefix(self._keys.overrides).items:
            kind, _, name = kv.key.removeprefix(self._keys.overrides).partition("/")
            try:
                if kind not in found or not exact_name(name, "the name"):
                    raise ValueError("it is none of an override")
                if kind == PIN:
                    exact_shard(parse_shard(name))
                found[kind][name] = kv.value.decode()
            except ValueError as error:  # one that somebody else wrote; no owner is to end by it
                log.warning(
                    "etcd.overrides.unreadable_key", extra={"key": printable(kv.key), "reason": error_text(error)}
                )
        pins = {parse_shard(name): node_id for name, node_id in found[PIN].items()}
        return Overrides(frozenset(found[CORDON]), frozenset(found[DRAIN]), pins)

    def save(self, leader: Leader, before: Overrides, after: Overrides) -> None:
        writes = list(self._writes(before, after))
        for first in range(0, len(writes), WRITES_AT_ONCE_MAX):
            # Not atomic as a whole: a caller that fails half-way loads what was written, and goes on from there.
            self._election.write_fenced(leader, *writes[first : first + WRITES_AT_ONCE_MAX])

    def _writes(self, before: Overrides, after: Overrides) -> Iterator[Put | Delete]:
        for kind, had, has in ((CORDON, before.cordoned, after.cordoned), (DRAIN, before.draining, after.draining)):
            yield from (Put(self._keys.override(kind, name), b"") for name in sorted(has - had))
            yield from (Delete(self._keys.override(kind, name)) for name in sorted(had - has))
        for shard in sorted(after.pins):
            if before.pins.get(shard) != after.pins[shard]:
                yield Put(self._pin(shard), after.pins[shard].encode())
        yield from (Delete(self._pin(shard)) for shard in sorted(before.pins.keys() - after.pins.keys()))

    def _pin(self, shard: ShardId) -> str:
        return self._keys.override(PIN, str(shard))
