"""Share the threads that probe tables: each account has a share of them at each place where tables lie.

A place is a mounted file system, or a bucket. Pure; a part of `iscp.coordination.schedule.probe_turns`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from math import inf

from iscp.coordination.schedule.schedule_events import Probe

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
