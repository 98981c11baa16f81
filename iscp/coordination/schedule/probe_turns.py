"""Decide which probes are made on which threads, so that storage that hangs delays only its own tables. A pure machine.

Tables on local storage are probed one after the other, many in one turn of the common thread: a hundred thousand idle
tables cost least that way. A probe that blocks its thread for STALL_S keeps it, charged to its account's share at its
place (`thread_shares`), and another thread goes on with the next table. Until it has ended and been quick for a while,
its table is probed on a thread of its account for that place; so are all tables of an account that has several slow
ones there, and those at a place where several accounts' hang. Each probe of a table behind a network has a thread. A
probe that finds no thread waits, and delays no other.

A table that hangs is not probed a second time. `late` says which do, and what waits for them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from iscp.coordination.schedule.schedule_events import Probe, ProbeLate
from iscp.coordination.schedule.thread_shares import SLOW_TABLES_MAX, Share, ThreadShares

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
