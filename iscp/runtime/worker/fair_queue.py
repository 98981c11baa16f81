"""Iterations that wait, fair between accounts. Not safe for threads: the executor's lock is around it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from iscp.core.job.iteration import Iteration

_Key = tuple[int, float, int]


def _key(iteration: Iteration, serial: int) -> _Key:
    """Higher priority first, then the earlier deadline, then who came first."""
    return (-iteration.priority, iteration.deadline_s, serial)


@dataclass(slots=True)
class _Account:
    """An account's part of the queue: `served` is when its turn was last (a count), `waiting` has its live entries by
    number.
    """

    heap: list[tuple[_Key, Iteration]] = field(default_factory=list)
    waiting: dict[int, _Key] = field(default_factory=dict)
    running: int = 0
    served: int = 0


class IterationQueue:
    """A queue of at most `length_max` iterations.

    The next is of the account that has the fewest running, and among those of the one whose turn was longest ago. A
    full queue takes a newcomer only in place of the last one of the account that has most waiting, if that is not its
    own, or of one of its own account that comes after it. Invariant: an account is known only while something of it
    waits or runs.
    """

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self._accounts: dict[str, _Account] = {}
        self._account_of: dict[int, str] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._account_of)

    def put(self, iteration: Iteration) -> Iteration | None:
        """Queue the iteration, and return the one turned away for it, if any: itself or another."""
        turned_away = self._crowded_out(iteration) if len(self) >= self._length_max else None
        if turned_away is iteration:
            return iteration
        self._serial += 1
        account = self._accounts.setdefault(iteration.account, _Account())
        key = _key(iteration, self._serial)
        account.waiting[iteration.number] = key
        self._account_of[iteration.number] = iteration.account
        heapq.heappush(account.heap, (key, iteration))
        if turned_away is not None:  # only now: if it is the last one of this account, its turn is not forgotten
            self.remove(turned_away.number)
        return turned_away

    def pop(self, passed_over: Callable[[str], bool] = lambda account: False) -> Iteration | None:
        """Take the next to run, and return it; `finish` has to be called at its end. Accounts that are `passed_over`
        wait.
        """
        waiting = (each for name, each in self._accounts.items() if each.waiting and not passed_over(name))
        account = min(waiting, key=lambda account: (account.running, account.served), default=None)
        if account is None:
            return None
        while True:
            _, iteration = heapq.heappop(account.heap)
            if account.waiting.pop(iteration.number, None) is not None:
                break
        del self._account_of[iteration.number]
        self._serial += 1
        account.running += 1
        account.served = self._serial
        return iteration

    def finish(self, iteration: Iteration) -> None:
        account = self._accounts[iteration.account]
        account.running -= 1
        self._forget_idle(iteration.account)

    def remove(self, number: int) -> bool:
        """Remove the iteration; return False if it does not wait here."""
        name = self._account_of.pop(number, None)
        if name is None:
            return False
        account = self._accounts[name]
        # Its entry in the heap is passed over by `pop`; they are removed once they are the greater part.
        del account.waiting[number]
        if len(account.heap) > 2 * len(account.waiting) + 16:
            account.heap = [entry for entry in account.heap if entry[1].number in account.waiting]
            heapq.heapify(account.heap)
        self._forget_idle(name)
        return True

    def drain(self) -> list[Iteration]:
        """Take out all."""
        live = [
            iteration
            for account in self._accounts.values()
            for _, iteration in account.heap
            if iteration.number in account.waiting
        ]
        for iteration in live:
            self.remove(iteration.number)
        return live

    def _crowded_out(self, newcomer: Iteration) -> Iteration:
        """Return the one that has no place once `newcomer` comes: itself or another."""
        crowd = max(self._accounts.values(), key=lambda account: len(account.waiting))
        own = self._accounts.get(newcomer.account)
        fair = len(crowd.waiting) > (len(own.waiting) if own else 0) + 1
        if not fair and (own is None or not own.waiting):
            return newcomer
        victims = crowd if fair or own is None else own
        key, last = max((entry for entry in victims.heap if entry[1].number in victims.waiting), key=lambda e: e[0])
        if not fair and key < _key(newcomer, self._serial + 1):
            return newcomer
        return last

    def _forget_idle(self, name: str) -> None:
        account = self._accounts[name]
        if not account.running and not account.waiting:
            del self._accounts[name]
