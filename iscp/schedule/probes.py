"""Decisions on probes, as pure machines: which probes are made on which threads, so that storage that hangs delays only
its own tables; what share of the threads each account has; and which probes were not answered in time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from iscp.schedule.schedule_events import Probe, ProbeLate
from iscp.schedule.table_state import TrackedTable

# --- shares of threads ------------------------------------------------------------------------------------------------
# Each account has a share of the threads that probe tables, at each place where tables lie. A place is a mounted file
# system, or a bucket.

THREADS_MAX = 256
"""Threads of a node that probe tables on their own at a time, those that hang among them; what is more waits."""

SHARE_MAX = 16
"""Threads of one account at one place, at most."""

SLOW_TABLES_MAX = 4
"""Slow tables of one account at one place from which on all of its tables there are moved off the common thread."""

SLOW_FOR_S = 60.0
"""Seconds that a table counts as slow after a slow probe."""

HUNG_ACCOUNTS = 2
"""Accounts whose probes hang at a place from which on it counts as hung: all tables there are moved off the common
thread.
"""


@dataclass(slots=True, eq=False)
class Share:
    """An account's share of threads at one place. `running` counts its threads, `hanging` those of them that were for
    many tables, and hang at one. `shared` means that one is for all its tables that wait. `waiting` is in order; the
    first `announced` of it were reported as waiting for those that hang. `slow` has tables by URI, and until when they
    count as slow. `far` means behind a network.
    """

    account: str
    place: str
    far: bool
    running: int = 0
    hanging: int = 0
    shared: bool = False
    waiting: deque[Probe] = field(default_factory=deque)
    announced: int = 0
    slow: dict[str, float] = field(default_factory=dict)


class ThreadShares:
    """Rules: no share is greater than SHARE_MAX, and no place has more than half of the threads that others leave."""

    def __init__(self, threads_max: int = THREADS_MAX, share_max: int = SHARE_MAX) -> None:
        self._threads_max = threads_max
        self._share_max = share_max
        self._shares: dict[tuple[str, str], Share] = {}
        self._running_at: Counter[str] = Counter()
        self._hanging_at: Counter[str] = Counter()
        self.running = 0

    def of(self, account: str, place: str, *, far: bool = False) -> Share:
        key = account, place
        if (share := self._shares.get(key)) is None:
            share = self._shares[key] = Share(account, place, far)
        return share

    def known(self, account: str, place: str) -> Share | None:
        return self._shares.get((account, place))

    @property
    def troubled(self) -> bool:
        """Return whether any table that is not behind a network is slow, or hangs."""
        return any(share.slow or share.hanging for share in self._shares.values())

    def is_full(self, place: str) -> bool:
        running_there = self._running_at.get(place, 0)
        return running_there > 0 and running_there >= (self._threads_max - (self.running - running_there)) // 2

    def is_hung(self, place: str) -> bool:
        """Return whether a probe there would hang, for all that is known, whoever's table it is."""
        return self._hanging_at.get(place, 0) >= HUNG_ACCOUNTS or self.is_full(place)

    def may_begin(self, share: Share) -> bool:
        room = self.running < self._threads_max and not self.is_full(share.place)
        return room and share.running < self._share_max and not share.shared

    def begin(self, share: Share) -> None:
        share.running += 1
        self._running_at[share.place] += 1
        self.running += 1

    def hang(self, share: Share, uri: str) -> None:
        """A thread that was for many tables is this one's from now on."""
        share.slow[uri] = inf
        share.hanging += 1
        self._hanging_at[share.place] += share.hanging == 1

    def end(self, share: Share, *, hung: bool) -> None:
        share.running -= 1
        self.running -= 1
        _count_down(self._running_at, share.place)
        if hung:
            share.hanging -= 1
            if not share.hanging:
                _count_down(self._hanging_at, share.place)

    def note_slow(self, share: Share, uri: str, now_s: float) -> None:
        share.slow[uri] = now_s + SLOW_FOR_S

    def forget_slow(self, now_s: float) -> None:
        for share in list(self._shares.values()):
            for uri in [uri for uri, until_s in share.slow.items() if until_s <= now_s]:
                del share.slow[uri]
            self.drop_empty(share)

    def drop_empty(self, share: Share) -> None:
        if not (share.running or share.waiting or share.slow):
            self._shares.pop((share.account, share.place), None)


def _count_down(counts: Counter[str], place: str) -> None:
    counts[place] -= 1
    if not counts[place]:
        del counts[place]


# --- turns of threads -------------------------------------------------------------------------------------------------
# Tables on local storage are probed one after the other, many in one turn of the common thread: a hundred thousand idle
# tables cost least that way. A probe that blocks its thread for STALL_S keeps it, charged to its account's share at its
# place (ThreadShares), and another thread goes on with the next table. Until it has ended and been quick for a while,
# its table is probed on a thread of its account for that place; so are all tables of an account that has several slow
# ones there, and those at a place where several accounts' hang. Each probe of a table behind a network has a thread. A
# probe that finds no thread waits, and delays no other.
#
# A table that hangs is not probed a second time. `late` says which do, and what waits for them.

BATCH_MAX = 1_000
"""Tables that are probed in one turn of a thread; their answers are taken together."""

STALL_S = 0.1
"""Seconds that a probe may delay others on its thread; then another thread goes on with the next table."""

SLOW_S = 0.05
"""Seconds from which on a probe on local storage was slow: its table is moved off the common thread for a while."""


@dataclass(slots=True, eq=False)
class ProbeTurn:
    """The work of one thread: `probes`, in order. `share` says whose thread it is; None is the common one.

    `hung` means that it had a thread for many tables, and keeps it with its last. `late` means that it was reported as
    late.
    """

    probes: Sequence[Probe]
    begun_s: float
    share: Share | None = None
    hung: bool = False
    late: bool = False

    @property
    def single(self) -> bool:
        """Return whether no other table waits for it to end."""
        return self.hung or (self.share is not None and self.share.far)


class ProbeTurns:
    """The turns of probes. `far` gives the place of a probe that goes over a network, else nothing; `places` gives
    those of all its tables.

    Times are of one clock that never steps back.
    """

    def __init__(
        self,
        timeout_s: float,
        far: Callable[[Probe], str],
        places: Callable[[Probe], Sequence[str]],
        shares: ThreadShares | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._far = far
        self._places = places
        self._shares = shares or ThreadShares()
        self._common: deque[Probe] = deque()
        self._common_turn: ProbeTurn | None = None
        self._turns: dict[ProbeTurn, None] = {}  # those of shares
        self._waiting: dict[Share, None] = {}
        self._single: Counter[str] = Counter()  # tables with a turn of their own, by URI
        # Probes of such tables that came meanwhile: another range's, or after the table came back.
        self._behind: dict[str, list[Probe]] = {}

    @property
    def busy(self) -> bool:
        """Return whether the common thread has yet to probe tables, or to hand their answers in."""
        return self._common_turn is not None or bool(self._common)

    @property
    def counts(self) -> tuple[int, int]:
        """Probes that are late, and probes that have to wait for a thread."""
        late = sum(turn.late for turn in self._turns)
        return late, sum(len(share.waiting) for share in self._waiting) + sum(map(len, self._behind.values()))

    def offer(self, probes: Sequence[Probe]) -> None:
        for probe in probes:
            if place := self._far(probe):
                self._put_apart(probe, self._shares.of(probe.account, place, far=True))
            else:
                self._common.append(probe)

    def begin(self, now_s: float) -> ProbeTurn | None:
        """Return what another thread has to do now, or None if that is nothing."""
        if self._common and self._common_turn is None and (batch := self._cut(now_s)):
            self._common_turn = ProbeTurn(batch, now_s)
            return self._common_turn
        while (share := next(filter(self._shares.may_begin, self._waiting), None)) is not None:
            if (turn := self._begin_apart(share, now_s)) is not None:
                return turn
        return None

    def stall(self, turn: ProbeTurn, answered: int, place: str, now_s: float) -> None:
        """A thread for many tables hangs at the probe after those `answered`, with a table at `place`."""
        hanging = turn.probes[answered]
        self._put_back(turn, answered + 1)
        turn.probes, turn.hung, turn.begun_s = turn.probes[: answered + 1], True, now_s
        if turn.share is None:
            self._common_turn, turn.share = None, self._shares.of(hanging.account, place)
            self._turns[turn] = None
            self._shares.begin(turn.share)
        else:
            turn.share.shared = False
        self._shares.hang(turn.share, hanging.uri)
        self._single[hanging.uri] += 1

    def end(self, turn: ProbeTurn, answered: int, place: str, *, slow: bool, now_s: float) -> bool:
        """End a thread's turn, which has made so many of its probes; what it has not, another does. `slow`: the last
        one was.

        `place`: where that lies. False: its last answer is out of date, as the table came back meanwhile.
        """
        self._put_back(turn, answered)
        share, last = turn.share, turn.probes[-1]
        if slow and not turn.single:
            at_last = turn.probes[answered - 1]
            self._shares.note_slow(self._shares.of(at_last.account, place), at_last.uri, now_s)
        if share is None:
            self._common_turn = None
            return True
        del self._turns[turn]
        self._shares.end(share, hung=turn.hung)
        behind: list[Probe] = []
        if turn.single:
            behind = self._end_single(last.uri)
        else:
            share.shared = False
        if turn.hung:
            self._shares.note_slow(share, last.uri, now_s)
        for probe in behind:
            self._put_apart(probe, share)
        self._shares.drop_empty(share)
        return all(probe.shard != last.shard for probe in behind)

    def late(self, now_s: float) -> list[ProbeLate]:
        """Probes that have taken too long since the last call, and those that wait for nothing else than such."""
        found = []
        for turn in self._turns:
            if turn.single and not turn.late and turn.begun_s + self._timeout_s <= now_s:
                turn.late = True
                found.append(_late(turn.probes[-1], f"does not answer since {self._timeout_s:g} s"))
        if not any(turn.late for turn in self._turns):
            return found
        quick = {turn.share.place for turn in self._turns if turn.share and not turn.late}
        for share in self._waiting:
            if share.place not in quick and not self._shares.may_begin(share):
                waiting = list(share.waiting)[share.announced :]
                share.announced = len(share.waiting)
                found += [_late(probe, f"waits for others of {share.place} that do not answer") for probe in waiting]
        return found

    def next_late_s(self) -> float:
        """Return when the next one will be late; inf if none runs."""
        begun_s = (turn.begun_s for turn in self._turns if turn.single and not turn.late)
        return min(begun_s, default=inf) + self._timeout_s

    # --- which thread ------------------------------------------------------------------------------------------

    def _cut(self, now_s: float) -> list[Probe]:
        """Return the next probes of the common thread; those that need another are put where they wait for it."""
        while self._common:
            batch = _pop_batch(self._common)
            if not self._shares.troubled:
                return batch
            self._shares.forget_slow(now_s)
            cut = []
            for probe in batch:
                if (share := self._share_apart(probe)) is not None:
                    self._put_apart(probe, share)
                else:
                    cut.append(probe)
            if cut:
                return cut
        return []

    def _share_apart(self, probe: Probe) -> Share | None:
        """Whose thread the probe needs; None: the common one will do."""
        for place in self._places(probe):
            if self._shares.is_hung(place):
                return self._shares.of(probe.account, place)
            share = self._shares.known(probe.account, place)
            if share and (probe.uri in share.slow or len(share.slow) >= SLOW_TABLES_MAX):
                return share
        return None

    def _put_apart(self, probe: Probe, share: Share) -> None:
        if probe.uri in self._single:
            self._behind.setdefault(probe.uri, []).append(probe)
        else:
            share.waiting.append(probe)
            self._waiting[share] = None

    def _put_back(self, turn: ProbeTurn, begun: int) -> None:
        """Put what a thread has not begun before what waits."""
        if not (rest := turn.probes[begun:]):
            return
        if turn.share is None:
            self._common.extendleft(reversed(rest))
        else:
            turn.share.waiting.extendleft(reversed(rest))
            self._waiting[turn.share] = None

    def _begin_apart(self, share: Share, now_s: float) -> ProbeTurn | None:
        del self._waiting[share]
        probes = [share.waiting.popleft()] if share.far else _pop_batch(share.waiting)
        share.announced = max(0, share.announced - len(probes))
        if share.waiting:
            self._waiting[share] = None  # after the others that wait
        for probe in probes:
            if probe.uri in self._single:
                self._behind.setdefault(probe.uri, []).append(probe)
        probes = [probe for probe in probes if probe.uri not in self._single]
        if not probes:
            self._shares.drop_empty(share)
            return None
        turn = ProbeTurn(probes, now_s, share)
        self._turns[turn] = None
        self._shares.begin(share)
        if share.far:
            self._single[probes[0].uri] += 1
        else:
            share.shared = True
        return turn

    def _end_single(self, uri: str) -> list[Probe]:
        """End the table's single probe, and return what waits behind it, and may go on."""
        self._single[uri] -= 1
        if self._single[uri]:
            return []
        del self._single[uri]
        return self._behind.pop(uri, [])


def _pop_batch(waiting: deque[Probe]) -> list[Probe]:
    if len(waiting) > BATCH_MAX:
        return [waiting.popleft() for _ in range(BATCH_MAX)]
    batch = list(waiting)
    waiting.clear()
    return batch


def _late(probe: Probe, why: str) -> ProbeLate:
    return ProbeLate(probe.shard, probe.uri, f"the storage of {probe.uri} {why}")


# --- deadlines --------------------------------------------------------------------------------------------------------
# Probes that were not answered in time are found, whatever delays them.

GATHERED_S = 0.25
"""Probes that begin within so long share a deadline, that of the last."""


@dataclass(slots=True)
class _Sent:
    """Probes that began one after the other, within GATHERED_S of `first_s`."""

    first_s: float
    due_s: float
    sent_s: tuple[float, float]
    tables: list[TrackedTable] = field(default_factory=list)

    def has_open(self) -> bool:
        """Forgets those at the end that were answered."""
        while self.tables and not self._is_open(self.tables[-1]):
            self.tables.pop()
        return bool(self.tables)

    def _is_open(self, table: TrackedTable) -> bool:
        return table.probing and self.sent_s[0] <= table.probe_sent_s <= self.sent_s[1]


class ProbeDeadlines:
    """Each probe is noted once, in order; one that is answered in time costs little else."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sent: deque[_Sent] = deque()

    def note(self, table: TrackedTable, now_s: float) -> None:
        """A probe of the table begins, or goes on though it was late."""
        sent_s = table.probe_sent_s
        last = self._sent[-1] if self._sent else None
        if last is None or now_s - last.first_s > GATHERED_S:
            last = _Sent(now_s, 0.0, (sent_s, sent_s))
            self._sent.append(last)
        last.due_s = now_s + self._timeout_s
        if not last.sent_s[0] <= sent_s <= last.sent_s[1]:
            last.sent_s = min(sent_s, last.sent_s[0]), max(sent_s, last.sent_s[1])
        last.tables.append(table)

    def next_due_s(self) -> float | None:
        while self._sent:
            if self._sent[0].has_open():
                return self._sent[0].due_s
            self._sent.popleft()
        return None

    def pop_late(self, now_s: float) -> TrackedTable | None:
        """Return a table whose probe has just become late."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        return self._sent[0].tables.pop()
