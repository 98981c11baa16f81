"""Which probes are made on which threads, so that storage that hangs holds up only its own tables. A pure machine.

Tables on local storage are probed one after the other, many in one turn of the common thread: that is what a hundred
thousand idle tables cost least with. A probe that holds that thread up for STALL_S keeps it, charged to its account's
share at its place (`iscp.coordination.probing.thread_shares`), and another thread goes on with the next table. Until it
has ended and been quick for a while, its table is probed on a thread of its own; so are all tables behind a network,
those of an account that has several slow ones at the place, and those at a place where several accounts' hang.
What finds no thread waits: it is held, and no other is.

A table is probed once at a time, also where that hangs. `late` says which do, and what waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from iscp.coordination.probing.thread_shares import SLOW_TABLES_MAX, Share, ThreadShares
from iscp.coordination.schedule.schedule_events import Probe, ProbeLate

BATCH_MAX = 500
"""Tables that are probed in one turn of the common thread; their answers are taken together."""

STALL_S = 0.1
"""How long a probe may hold up the common thread; then another thread goes on with the next table."""

SLOW_S = 0.025
"""A probe on local storage that took longer than this was slow: the next one of its table has a thread of its own."""


@dataclass(slots=True, eq=False)
class Turn:
    """What one thread has to do: `probes`, in order. `share`: whose thread it is; None: the common one.

    `hung`: it was the common one. `late`: it was said that it is.
    """

    probes: Sequence[Probe]
    begun_s: float
    share: Share | None = None
    hung: bool = False
    late: bool = False


class ProbeTurns:
    """`far` gives the place of a probe that goes over a network, else nothing; `places` those of all its tables.

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
        self._common_turn: Turn | None = None
        self._turns: dict[str, Turn] = {}  # those that are not common, by their table's URI
        self._waiting: dict[Share, None] = {}
        # Probes of tables that are being probed already, by URI: another range's, or after the table came back.
        self._behind: dict[str, list[Probe]] = {}

    @property
    def backlog(self) -> int:
        """Tables that the common thread has yet to probe, or to hand in."""
        return len(self._common) + (len(self._common_turn.probes) if self._common_turn else 0)

    @property
    def counts(self) -> tuple[int, int]:
        """Probes that are late, and probes that have to wait for a thread."""
        late = sum(turn.late for turn in self._turns.values())
        return late, sum(len(share.waiting) for share in self._waiting) + sum(map(len, self._behind.values()))

    def offer(self, probes: Sequence[Probe]) -> None:
        for probe in probes:
            if place := self._far(probe):
                self._put_apart(probe, self._shares.of(probe.account, place, far=True))
            else:
                self._common.append(probe)

    def begin(self, now_s: float) -> Turn | None:
        """What another thread has to do now; None: nothing."""
        if self._common and self._common_turn is None and (batch := self._cut(now_s)):
            self._common_turn = Turn(batch, now_s)
            return self._common_turn
        while (share := next(filter(self._shares.may_begin, self._waiting), None)) is not None:
            if (turn := self._begin_apart(share, now_s)) is not None:
                return turn
        return None

    def stall(self, turn: Turn, answered: int, place: str, now_s: float) -> None:
        """The common thread hangs at the probe after those `answered`, with a table at `place`."""
        hanging = turn.probes[answered]
        self._common.extendleft(reversed(turn.probes[answered + 1 :]))
        share = self._shares.of(hanging.account, place)
        turn.probes, turn.share, turn.hung = turn.probes[: answered + 1], share, True
        turn.begun_s = now_s
        self._common_turn = None
        self._turns[hanging.uri] = turn
        self._shares.hang(share, hanging.uri)

    def end(self, turn: Turn, answered: int, place: str, *, slow: bool, now_s: float) -> bool:
        """A thread has made so many of its turn's probes; what it has not, another does. `slow`: the last one was.

        `place`: where that lies. False: its answer is out of date, as the table came back meanwhile.
        """
        self._common.extendleft(reversed(turn.probes[answered:]))
        share, last = turn.share, turn.probes[-1]
        if share is None:
            self._common_turn = None
            if slow:
                last = turn.probes[answered - 1]
                self._shares.note_slow(self._shares.of(last.account, place), last.uri, now_s)
            return True
        del self._turns[last.uri]
        self._shares.end(share, hung=turn.hung)
        if turn.hung or (slow and not share.far):
            self._shares.note_slow(share, last.uri, now_s)
        behind = self._behind.pop(last.uri, [])
        for probe in behind:
            self._put_apart(probe, share)
        self._shares.drop_empty(share)
        return all(probe.shard != last.shard for probe in behind)

    def late(self, now_s: float) -> list[ProbeLate]:
        """Probes that have taken too long since the last call, and those that wait for nothing else than such."""
        found = []
        for turn in self._turns.values():
            if not turn.late and turn.begun_s + self._timeout_s <= now_s:
                turn.late = True
                found.append(_late(turn.probes[-1], f"does not answer since {self._timeout_s:g} s"))
        if not any(turn.late for turn in self._turns.values()):
            return found
        quick = {turn.share.place for turn in self._turns.values() if turn.share and not turn.late}
        for share in self._waiting:
            if share.place not in quick and not self._shares.may_begin(share):
                waiting = list(share.waiting)[share.announced :]
                share.announced = len(share.waiting)
                found += [_late(probe, f"waits for others of {share.place} that do not answer") for probe in waiting]
        return found

    def next_late_s(self) -> float:
        """When the next one will be late; inf: none runs."""
        return min((turn.begun_s + self._timeout_s for turn in self._turns.values() if not turn.late), default=inf)

    # --- which thread ------------------------------------------------------------------------------------------

    def _cut(self, now_s: float) -> list[Probe]:
        """The next of the common thread; those that need a thread of their own are put where they wait for it."""
        count = min(len(self._common), BATCH_MAX)
        batch = [self._common.popleft() for _ in range(count)]
        if not self._shares.troubled:
            return batch
        self._shares.forget_slow(now_s)
        kept = []
        for probe in batch:
            if probe.uri in self._turns:
                self._behind.setdefault(probe.uri, []).append(probe)
            elif (share := self._share_apart(probe)) is not None:
                self._put_apart(probe, share)
            else:
                kept.append(probe)
        return kept or (self._cut(now_s) if self._common else [])

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
        share.waiting.append(probe)
        self._waiting[share] = None

    def _begin_apart(self, share: Share, now_s: float) -> Turn | None:
        probe = share.waiting.popleft()
        share.announced = max(0, share.announced - 1)
        del self._waiting[share]
        if share.waiting:
            self._waiting[share] = None  # after the others that wait
        if probe.uri in self._turns:
            self._behind.setdefault(probe.uri, []).append(probe)
            return None
        turn = self._turns[probe.uri] = Turn((probe,), now_s, share)
        self._shares.begin(share)
        return turn


def _late(probe: Probe, why: str) -> ProbeLate:
    return ProbeLate(probe.shard, probe.uri, f"the storage of {probe.uri} {why}")
