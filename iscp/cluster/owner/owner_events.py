"""Parts of the owner's loop: the events that it gets from its own node, the ports by which it reaches others, unread
messages, and the decisions of owners.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile

from iscp.cluster.owner.job_log_writer import LogLimits, LogWriter
from iscp.model.api.api_requests import EventView
from iscp.model.protocol.events import Decided, Decision
from iscp.model.protocol.messages import NodeMessage, OwnerMessage
from iscp.model.settings.config import JobLogConfig
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import Leader, NodeRecord, ShardId
from iscp.ports.cluster import NodeCalls
from iscp.ports.engine import JobLog
from iscp.ports.system import Clock
from iscp.system.inbox import Gathered

log = logging.getLogger(__name__)

# --- events of the owner's own node -----------------------------------------------------------------------------------
# The loop gets these events beside the events of its machine.


@dataclass(frozen=True, slots=True)
class Won:
    leader: Leader


@dataclass(frozen=True, slots=True)
class Lost:
    """The election is lost, or (`writer` given) the log belongs to another term."""

    writer: LogWriter | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The writer has committed. `shards` says whether their jobs were decided again or have only progressed."""

    writer: LogWriter
    shards: Gathered[dict[ShardId, bool]]


@dataclass(frozen=True, slots=True)
class Query:
    read: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Heard:
    """A `Heard` is what one node sent together, and when it came in."""

    node_id: str
    messages: Sequence[NodeMessage]
    came_s: float


@dataclass(frozen=True, slots=True)
class Members:
    """The registered nodes have changed."""


def merge_shards(before: dict[ShardId, bool], now: dict[ShardId, bool]) -> dict[ShardId, bool]:
    """Merge what changed before with what changes now."""
    for shard, decided in now.items():
        before[shard] = decided or before.get(shard, False)
    return before


# --- ports of the loop: the job log, and whom the loop notifies -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobLogAccess:
    """Access to the job log. `open` gives a log for one term."""

    open: Callable[[], JobLog]
    config: JobLogConfig
    limits: LogLimits = field(default_factory=LogLimits)


@dataclass(frozen=True, slots=True)
class OwnerHooks:
    """All but `on_broken` and `on_woken` are called on the loop's thread, which they must not hold up.

    `keep` is given those to whom the loop goes on to `send`: the members during a term, nobody between terms;
    `on_progress` is called when rows changed, `on_broken` with what ended the loop, `on_tables` with the ids of tables
    whose jobs changed, and with none when a term begins or ends, `on_synced` with each other node that reported what
    it runs; `on_woken` on the log's thread, with a shard whose jobs read a table that another job has committed to.
    """

    send: Callable[[NodeRecord, OwnerMessage], None]
    keep: Callable[[Sequence[NodeRecord]], None]
    on_progress: Callable[[], None]
    on_broken: Callable[[Exception], None]
    on_tables: Callable[[Iterable[str]], None] = lambda table_ids: None
    on_synced: Callable[[NodeRecord], None] = lambda record: None
    on_woken: Callable[[ShardId], None] = lambda shard: None


# --- unread messages --------------------------------------------------------------------------------------------------


class Unread:
    """Remembers when unread messages came in, so that nobody is blamed for what only has to be read.

    Safe to use from several threads. Costs next to nothing where things are read about in the order they came in.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._came: deque[float] = deque()

    def note(self) -> float:
        """Note that something has come in, and return when, to be given to `mark_read`."""
        with self._lock:
            # Read under the lock: the deque is in order of time, whichever thread comes first.
            came_s = self._clock.monotonic_s()
            self._came.append(came_s)
            return came_s

    def mark_read(self, came_s: float) -> None:
        """Note that a message was processed, or was refused."""
        with self._lock:
            self._came.remove(came_s)

    def since_s(self) -> float:
        """Return the time before which all that came in has been processed."""
        with self._lock:
            return self._came[0] if self._came else self._clock.monotonic_s()


# --- decisions of owners ----------------------------------------------------------------------------------------------

PLACEMENT_EVENTS_MAX = 10_000
"""Events of owners that a node keeps for `iscp-admin events`; the oldest are forgotten."""

_Place = tuple[int, int]


def _place(event: EventView) -> _Place:
    return event.owner_rev, event.number


class Decisions:
    """The latest decisions of owners, for operators: the newest, in memory, numbered within each term.

    Any thread may read them. `merge` takes in what other owners decided in earlier terms.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[EventView] = deque(maxlen=PLACEMENT_EVENTS_MAX)  # the oldest first
        self._owner_rev = 0
        self._number = 0
        self._taken = 0, 0
        self._counts: Counter[str] = Counter({each.value: 0 for each in Decision})
        self._closed = False

    def begin(self, owner_rev: int) -> None:
        """This node's own term; events of it or a later one are of a job log that is no more."""
        with self._changed:
            self._owner_rev, self._number = owner_rev, 0
            self._replace(event for event in self._events if event.owner_rev < owner_rev)

    def note(self, decided: Decided, at_s: float, table: str = "") -> None:
        """Note a decision; `table` is the shard's, as it was registered: later nobody may know it any more."""
        shard, what = str(decided.shard) if decided.shard else "", decided.what.value
        with self._changed:
            self._number += 1
            self._counts[what] += 1
            place = self._owner_rev, self._number
            self._events.append(EventView(*place, at_s, what, decided.node_id, shard, str(decided.why), table))
            self._changed.notify_all()

    def counts(self) -> dict[str, int]:
        """Return how often this node has decided what, as the owner, since its start."""
        with self._changed:
            return dict(self._counts)

    def merge(self, events: Iterable[EventView]) -> None:
        """Take in what a former owner's node remembers of terms before the present one."""
        with self._changed:
            found = {_place(event): event for event in events if event.owner_rev < self._owner_rev}
            found.update((_place(event), event) for event in self._events)
            self._replace(found[place] for place in sorted(found))

    def terms(self) -> set[int]:
        """Return the terms of which events are cached."""
        with self._changed:
            return {event.owner_rev for event in self._events}

    def of_other_terms(self, known: Collection[int]) -> list[EventView]:
        """Return all cached events of terms that are not `known`, the oldest first."""
        with self._changed:
            self._taken = self._last()
            self._changed.notify_all()
            return [event for event in self._events if event.owner_rev not in known]

    def wait_taken(self, wait_s: float) -> bool:
        """Wait until another node has taken all events that are cached here by `of_other_terms`; return False if none
        has by then.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._taken == self._last(), wait_s)

    def close(self) -> None:
        """Wake everyone for the last time: the term has ended, or the node stops."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def after(
        self, owner_rev: int, number: int, wait_s: float = 0.0, wanted: Callable[[EventView], bool] = lambda event: True
    ) -> list[EventView]:
        """Return the events that are `wanted` and came after that number of that term, waiting for them if need be; the
        oldest first.

        After a term that is still to come, return all that are cached.
        """

        def found() -> list[EventView]:
            last = (owner_rev, number) if owner_rev <= self._owner_rev else (0, 0)
            newer = list(takewhile(lambda event: _place(event) > last, reversed(self._events)))
            return [event for event in reversed(newer) if wanted(event)]

        with self._changed:
            self._changed.wait_for(lambda: self._closed or found(), wait_s)
            return found()

    def _last(self) -> _Place:
        return _place(self._events[-1]) if self._events else (0, 0)

    def _replace(self, events: Iterable[EventView]) -> None:
        self._events = deque(events, maxlen=PLACEMENT_EVENTS_MAX)
        self._changed.notify_all()


class EventCollector:
    """Brings what former owners decided to the present one: it takes what each node that has synced remembers.

    The collector takes one node after the other, by a thread of its own, so that each term's events travel once.
    """

    def __init__(self, decisions: Decisions, call: Callable[[NodeRecord], NodeCalls]) -> None:
        self._decisions = decisions
        self._call = call
        self._lock = threading.Lock()
        self._pending: set[NodeRecord] = set()
        self._thread = ThreadPoolExecutor(1, "iscp-owner-events")

    def collect(self, record: NodeRecord) -> None:
        """Collect from this node soon, without waiting. A node is pending once, however often it syncs."""
        with self._lock:
            if record in self._pending:
                return
            self._pending.add(record)
        try:
            self._thread.submit(self._collect, record)
        except RuntimeError:  # closed: the node stops
            return

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _collect(self, record: NodeRecord) -> None:
        with self._lock:
            # Before the call: a sync that comes during it leads to another call.
            self._pending.discard(record)
        try:
            self._decisions.merge(self._call(record).events(sorted(self._decisions.terms())))
        except IscpError as error:  # they are missing from `events` then, and from nothing else
            log.info("events.not_collected", extra={"node": record.node_id, "error": str(error)})
        except Exception:
            log.exception("events.not_collected", extra={"node": record.node_id})
