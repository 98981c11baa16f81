"""Refreshes and purges that kinds of consumers bring along, on the node that runs the table's shard (after TiDB MVS).

The two are independent: heaps, intervals, backoff and threads of their own. Each is done in a thread of its own, which
nobody can end: one that takes too long is given up, its thread is left behind and counted, and its slot is the next
one's. So whatever one does, it holds up no other, and no iteration. A handler may be called on two nodes for a moment
while a shard moves: what it does has to bear that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, assert_never

from iscp.model.job.iteration import JobMaintenance
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import StartShard, StopAllShards, StopShard, UpdateShard
from iscp.model.rows.key_ranges import WHOLE
from iscp.model.settings.config import BackoffConfig, MaintenanceConfig
from iscp.model.values.errors import ErrorCode, IscpError, PermanentError, TemporaryError
from iscp.model.values.ids import ShardId
from iscp.model.values.untrusted_values import error_code, error_text, exact_name, named_error, shown
from iscp.model.values.watermark import wait_until_s
from iscp.ports.consumer import ConsumerKind
from iscp.ports.system import NO_TRACER, Attribute, Clock, Tracer
from iscp.schedule.maintenance_turns import MaintenanceTurns, Turn
from iscp.system.inbox import Notifier

log = logging.getLogger(__name__)

# --- answers of handlers ----------------------------------------------------------------------------------------------
# A handler of refreshes or purges may answer anything; what can be believed is made of that.

TABLES_READ_MAX = 1_000
"""Tables that one refresh may say to have read; with more its answer is an error."""


def to_error(error: BaseException) -> IscpError:
    """Return whatever a handler raised as an error of iscp's own that can be stored and shown."""
    if isinstance(error, IscpError):
        code = error_code(error)
        return (TemporaryError if code.temporary else PermanentError)(error_text(error), code=code)
    return TemporaryError(named_error(error), code=ErrorCode.CONSUMER_FAILED)


def parse_refresh(answer: Any) -> tuple[list[str], object]:
    """Return the tables that a refresh has read, and when it wants to come again. Raises PermanentError."""
    why = f"refresh() answers {shown(answer)}, and no pair of table ids and a time"
    try:
        table_ids, next_at_s = answer
        if isinstance(table_ids, str):
            raise TypeError("the ids are one text")
        found = [exact_name(each, "a table's id") for each in islice(table_ids, TABLES_READ_MAX + 1)]
        if len(found) > TABLES_READ_MAX:
            raise ValueError(f"there are more than {TABLES_READ_MAX} ids")
    except (ValueError, TypeError) as error:
        remedy = "Fix the consumer's refresh"
        raise PermanentError(f"{why}: {error_text(error)}", remedy=remedy, code=ErrorCode.CONSUMER_BROKEN) from error
    return found, next_at_s


# --- refreshes and purges ---------------------------------------------------------------------------------------------

REFRESH_INTERVAL_S = 1.0
"""Least seconds between two refreshes of a job."""

PURGE_INTERVAL_S = 60.0
"""Least seconds between two purges of what a kind of consumer stores of a table."""

T = TypeVar("T", bound=Hashable)
MaintenanceOrder = StartShard | UpdateShard | StopShard | StopAllShards
Purge = tuple[str, str]
"""A kind of consumer, and a table's id."""

_SPANS = {"refresh": "iscp.refresh", "purge": "iscp.purge"}
_GIVEN_UP = {"refresh": "refresh.given_up", "purge": "purge.given_up"}
_REJECTED = {"refresh": "refresh.rejected", "purge": "purge.rejected"}
_FAILED = {"refresh": "refresh.failed", "purge": "purge.failed"}


@dataclass(frozen=True, slots=True)
class _Offered:
    """An `_Offered` is what the jobs of one shard want done: `rows` are those of which something is, `refreshes` their
    job_ids.

    `purges` come with the account of one of their jobs.
    """

    rows: dict[str, JobRow] = field(default_factory=dict)
    refreshes: dict[str, None] = field(default_factory=dict)
    purges: dict[Purge, str] = field(default_factory=dict)


class Maintenance:
    """Hears which jobs are this node's (`give`). `lease_check` raises LeaseLost."""

    def __init__(
        self,
        kinds: Callable[[str], ConsumerKind],
        clock: Clock,
        config: MaintenanceConfig,
        backoff: BackoffConfig,
        draw: Callable[[], float],
        lease_check: Callable[[], None],
        on_broken: Callable[[Exception], None],
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._kinds = kinds
        self._clock = clock
        self._lease_check = lease_check
        self._on_broken = on_broken
        self._tracer = tracer
        self._refreshes: MaintenanceTurns[str] = MaintenanceTurns(REFRESH_INTERVAL_S, config, backoff, draw)
        self._purges: MaintenanceTurns[Purge] = MaintenanceTurns(PURGE_INTERVAL_S, config, backoff, draw)
        # Filled by any thread without the lock, so that `give` never waits; emptied by the loop's.
        self._orders: deque[MaintenanceOrder] = deque()
        self._shards: dict[ShardId, _Offered] = {}
        self._jobs: dict[str, JobRow] = {}
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._wake = Notifier()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="iscp-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def give(self, order: MaintenanceOrder) -> None:
        """Take which jobs of a shard are this node's now; this never waits."""
        self._orders.append(order)
        self._wake.notify()

    def figures(self, job_id: str) -> JobMaintenance:
        """Return how the job's refreshes and its table's purges go here."""
        with self._lock:
            row, now_s, at_s = self._jobs.get(job_id), self._clock.monotonic_s(), self._clock.now_s()
            if row is None:
                return JobMaintenance()
            refresh = self._refreshes.figures(job_id, now_s, at_s)
            return JobMaintenance(refresh, self._purges.figures(_purge_of(row), now_s, at_s))

    def counters(self) -> dict[str, int]:
        """Threads that run a handler now, and those of them that were given up."""
        with self._lock:
            hanging = self._refreshes.hanging + self._purges.hanging
            return {
                "upkeep_running": self._at_work + hanging,
                "upkeep_hanging": hanging,
            }

    def close(self, wait_s: float) -> None:
        """Begin nothing more, and wait so long for what has not hung yet; the rest ends with the process."""
        until_s = time.monotonic() + wait_s
        self._closed = True
        self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(wait_s)
        with self._lock:
            if not self._ended.wait_for(lambda: not self._at_work, max(0.0, until_s - time.monotonic())):
                log.warning("upkeep.left", extra={"running": self._at_work})

    @property
    def _at_work(self) -> int:
        return self._refreshes.running + self._purges.running

    def _loop(self) -> None:
        try:
            while not self._closed:
                self.turn()
                self._wake.wait(self._sleep_s())
        except Exception as error:
            log.exception("upkeep.broken")
            self._on_broken(error)

    def turn(self) -> None:
        """Take in what was ordered, give up what takes too long, and begin what is due."""
        while self._orders:
            self._take(self._orders.popleft())
        if self._closed:
            return
        with self._lock:
            now_s = self._clock.monotonic_s()
            refreshes, purges = self._refreshes.turn(now_s), self._purges.turn(now_s)
        self._begin("refresh", self._refreshes, refreshes, self._refresh)
        self._begin("purge", self._purges, purges, self._purge)

    def _begin(self, what: str, turns: MaintenanceTurns[T], turn: Turn[T], call: Callable[[T], object]) -> None:
        for item in turn.given_up:
            log.error(_GIVEN_UP[what], extra={"item": str(item), "hanging": turns.hanging})
        for item in turn.rejected:
            log.error(_REJECTED[what], extra={"item": str(item), "hanging": turns.hanging})
        for item in turn.begin:
            # None of a pool: one that hangs must not be waited for at the process's end either.
            run = threading.Thread(target=self._run, args=(what, turns, item, call), name=f"iscp-{what}", daemon=True)
            try:
                run.start()
            except RuntimeError as error:  # the machine has no more threads
                self._settle(what, turns, item, TemporaryError(error_text(error), code=ErrorCode.NO_SPACE))

    def _sleep_s(self) -> float | None:
        with self._lock:
            due = [each for each in (self._refreshes.next_due_s(), self._purges.next_due_s()) if each is not None]
        return max(0.0, min(due) - self._clock.monotonic_s()) if due else None

    # --- which are this node's -----------------------------------------------------------------------------------

    def _take(self, order: MaintenanceOrder) -> None:
        match order:
            case StartShard(shard, _, jobs) | UpdateShard(shard, _, jobs):
                self._replace(shard, jobs)
            case StopShard(shard):
                self._replace(shard, ())
            case StopAllShards():
                for shard in list(self._shards):
                    self._replace(shard, ())
            case _:
                assert_never(order)

    def _replace(self, shard: ShardId, jobs: tuple[JobRow, ...]) -> None:
        before, offered = self._shards.pop(shard, _Offered()), self._collect_offers(jobs)
        if offered.rows:
            self._shards[shard] = offered
        with self._lock:
            now_s = self._clock.monotonic_s()
            for job_id in before.rows.keys() - offered.rows.keys():
                self._jobs.pop(job_id, None)
            self._jobs.update(offered.rows)
            for job_id in before.refreshes.keys() - offered.refreshes.keys():
                self._refreshes.remove(job_id)
            for job_id in offered.refreshes:
                row, former = offered.rows[job_id], before.rows.get(job_id)
                self._refreshes.add(job_id, row.key.account, row.spec.consumer.kind, now_s)
                if former is not None and former.spec_json != row.spec_json:
                    self._refreshes.renew(job_id, now_s)
            for gone in before.purges.keys() - offered.purges.keys() - self._of_other_ranges(shard):
                self._purges.remove(gone)
            for purge, account in offered.purges.items():
                self._purges.add(purge, account, purge[0], now_s)

    def _collect_offers(self, jobs: tuple[JobRow, ...]) -> _Offered:
        found = _Offered()
        for row in jobs:
            refreshes, purges = self._offers(row)
            if refreshes:
                found.refreshes[row.job_id] = None
            if purges:
                found.purges[_purge_of(row)] = row.key.account
            if refreshes or purges:
                found.rows[row.job_id] = row
        return found

    def _of_other_ranges(self, shard: ShardId) -> set[Purge]:
        """Return what is purged for another range of the table, which this node may run as well."""
        if shard.range_id == WHOLE:
            return set()
        others = (each for at, each in self._shards.items() if at.table_id == shard.table_id and at != shard)
        return {purge for each in others for purge in each.purges}

    def _offers(self, row: JobRow) -> tuple[bool, bool]:
        """Return whether its kind of consumer offers refreshes, and purges."""
        if row.paused or row.failed_for_good:
            return False, False
        try:
            kind = self._kinds(row.spec.consumer.kind)
            return kind.refresh is not None, kind.purge is not None
        except BaseException:  # noqa: BLE001  (its iterations say so, in the job's own status)
            return False, False

    # --- in threads of their own ---------------------------------------------------------------------------------

    def _refresh(self, job_id: str) -> object:
        with self._lock:
            row = self._jobs.get(job_id)
        if row is None:
            return self._clock.now_s() + REFRESH_INTERVAL_S  # given up meanwhile, and forgotten when this ends
        kind = row.spec.consumer.kind
        answer: object = _required(self._kinds(kind).refresh, kind, "RefreshHandler")(row)
        table_ids, next_at_s = parse_refresh(answer)
        with self._lock:
            for table_id in table_ids:  # the purge may remove what was retained for it
                self._purges.hasten((kind, table_id), self._clock.monotonic_s())
        return next_at_s

    def _purge(self, purge: Purge) -> object:
        kind, table_id = purge
        return _required(self._kinds(kind).purge, kind, "PurgeHandler")(table_id)

    def _run(self, what: str, turns: MaintenanceTurns[T], item: T, call: Callable[[T], object]) -> None:
        result: float | IscpError
        try:
            # Without a lease another node may run the same handler already.
            self._lease_check()
            with self._tracer.span(_SPANS[what], _attributes(item), parent=""):
                result = wait_until_s(call(item), self._clock.now_s())
        except BaseException as error:  # noqa: BLE001  (whatever a handler raises is its own fault)
            result = to_error(error)
        self._settle(what, turns, item, result)

    def _settle(self, what: str, turns: MaintenanceTurns[T], item: T, result: float | IscpError) -> None:
        with self._lock:
            again_s = turns.end(item, result, self._clock.monotonic_s())
            self._ended.notify_all()
        if isinstance(result, IscpError):
            fields = {"item": str(item), "error": error_text(result), "code": int(result.code)}
            log.warning(_FAILED[what], extra={**fields, "again_s": round(again_s, 3)})
        self._wake.notify()


def _attributes(item: object) -> Mapping[str, Attribute]:
    """Return what is known of a refresh, which is of a job, or of a purge."""
    if isinstance(item, tuple):
        kind, table_id = item
        return {"iscp.kind": kind, "iscp.table.id": table_id}
    return {"iscp.job.id": str(item)}


def _required(handler: T | None, kind: str, name: str) -> T:
    if handler is None:
        raise PermanentError(
            f"the consumer {kind!r} is no {name} any more",
            remedy="Install the version of its package that is, on every node, and restart them",
            code=ErrorCode.CONSUMER_BROKEN,
        )
    return handler


def _purge_of(row: JobRow) -> Purge:
    return row.spec.consumer.kind, row.key.table_id
