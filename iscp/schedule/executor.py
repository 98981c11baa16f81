"""Run iterations: how many, in which order, and how they are made to end (after TiDB MVS's TaskExecutor).

A slot is free when its run has ended: a timeout or a cancel shuts the run's guard, so that it cannot commit any more,
has the runner stop the Spark work, and if the run still has not ended after `cancel_wait_s`, requests the JVM's end
(`on_stuck`). A run that even then does not end hangs in storage that does not answer. Its thread is left, its slot is
another's, and its shard stays taken until it ends.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from iscp.model.job.iteration import Iteration
from iscp.model.job.registration_id import logged_jobs
from iscp.model.settings.config import SchedulerConfig
from iscp.model.values.errors import Canceled, ErrorCode, IscpError, TimedOut
from iscp.model.values.untrusted_values import named_error
from iscp.ports.engine import IterationRunner
from iscp.ports.system import Clock
from iscp.schedule.runner import CANCELED, TIMED_OUT, RunGuard
from iscp.schedule.schedule_events import IterationEnded, IterationStarted

log = logging.getLogger(__name__)

# --- iterations that wait ---------------------------------------------------------------------------------------------
# The queue is fair between accounts. It is not safe for threads: the executor's lock is around it.

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


# --- iterations that run ----------------------------------------------------------------------------------------------

IDLE_WAIT_S = 60.0
"""Longest pause between two checks of the executor's watch; it is woken for everything that it has to know."""


LEFT_OF_ACCOUNT_MAX = 4
"""Iterations of one account that hang and have lost their slots; with so many, none of the account's others begins."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The executor's counters: `running`, `waiting` and `hanging` are as of now, the others since the start. An
    iteration is failed if any job of it is. Those that hang are among those that run.
    """

    submitted: int = 0
    running: int = 0
    waiting: int = 0
    hanging: int = 0
    completed: int = 0
    failed: int = 0
    timeout: int = 0
    canceled: int = 0
    rejected: int = 0


class _Run:
    """One iteration in a slot. `stop_due_s`: when it is stuck, once its end was ordered; `left_due_s`: when it loses
    its slot.
    """

    __slots__ = ("guard", "iteration", "left", "left_due_s", "stop_due_s", "stuck")

    def __init__(self, iteration: Iteration, guard: RunGuard) -> None:
        self.iteration = iteration
        self.guard = guard
        self.stop_due_s: float | None = None
        self.stuck = False
        self.left_due_s: float | None = None
        self.left = False


_EFFECTS_OF_AN_END = frozenset({ErrorCode.CANCELED, ErrorCode.TIMEOUT, ErrorCode.ENGINE})


def _blamed(run: _Run, ended: IterationEnded) -> IterationEnded:
    """Return the end of a run with the reason why its end was ordered, if that is why it failed, not with Spark's
    words.
    """
    if run.stop_due_s is None:
        return ended
    why = Canceled(CANCELED) if run.guard.canceled else TimedOut(TIMED_OUT)
    if ended.error is not None:
        return replace(ended, error=why) if ended.error.code in _EFFECTS_OF_AN_END else ended
    outcomes = (
        replace(outcome, error_code=why.code, error_msg=why.message)
        if outcome.error_code in _EFFECTS_OF_AN_END
        else outcome
        for outcome in ended.outcomes
    )
    return replace(ended, outcomes=tuple(outcomes))


class Executor:
    """Runs iterations on up to `concurrency` threads.

    `emit` is given IterationStarted and IterationEnded, from the executor's threads and in order for each
    iteration; it may block for a while, but never on a thread that calls the executor. `lease_check` raises
    LeaseLost unless the node may write under this epoch. `on_stuck` has to make the run end by force.
    """

    def __init__(
        self,
        runner: IterationRunner,
        clock: Clock,
        config: SchedulerConfig,
        lease_check: Callable[[int], None],
        emit: Callable[[IterationStarted | IterationEnded], None],
        on_stuck: Callable[[Iteration], None],
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._config = config
        self._lease_check = lease_check
        self._emit = emit
        self._on_stuck = on_stuck
        self._lock = threading.Lock()
        # `_changed` wakes slots, and who waits for their end; `_watch_due` the thread that ends what takes too long.
        self._changed = threading.Condition(self._lock)
        self._watch_due = threading.Condition(self._lock)
        self._queue = IterationQueue(config.queue_max)
        self._runs: dict[int, _Run] = {}
        self._concurrency = config.concurrency
        self._threads = 0
        self._left: Counter[str] = Counter()
        self._closed = False
        self._counts = dict.fromkeys(("submitted", "completed", "failed", "timeout", "canceled", "rejected"), 0)
        self._watch = threading.Thread(target=self._watch_runs, name="iscp-executor-watch", daemon=True)
        self._watch.start()

    def submit(self, iteration: Iteration) -> Iteration | None:
        """Queue `iteration`. Gives the one that was turned away for it: itself, another one, or None.

        Nothing else is reported of the one turned away. After `close` it is always the one submitted.
        """
        with self._lock:
            turned_away = iteration if self._closed else self._queue.put(iteration)
            self._counts["submitted"] += turned_away is not iteration
            self._counts["rejected"] += turned_away is not None
            if turned_away is not iteration:
                self._start_threads()
                self._changed.notify()
            return turned_away

    def cancel(self, number: int) -> bool:
        """Make the iteration end. True: it was still waiting, is over, and nothing more is reported of it."""
        with self._lock:
            if self._queue.remove(number):
                self._counts["canceled"] += 1
                return True
            run = self._runs.get(number)
            if run is not None:
                self._order_end(run)
            return False

    def counters(self) -> Counters:
        with self._lock:
            return Counters(
                running=len(self._runs), waiting=len(self._queue), hanging=self._left.total(), **self._counts
            )

    def close(self, drain: bool, wait_s: float) -> bool:
        """Take nothing more; let what runs end (`drain`) or make it. Iterations that wait are canceled. Return True if
        all has ended.

        After `wait_s` what still runs is canceled in any case; then it waits for as long as a cancel may take.
        """
        with self._lock:
            self._closed = True
            waiting = self._queue.drain()
            self._counts["canceled"] += len(waiting)
            self._changed.notify_all()
        # Without the lock: `emit` may block for a while.
        for iteration in waiting:
            self._emit(IterationEnded(iteration.number, error=Canceled("the node stops")))
        with self._lock:
            ended = drain and self._wait_ended(wait_s)
            if not ended:
                for run in self._runs.values():
                    self._order_end(run)
                ended = self._wait_ended(self._config.cancel_wait_s)
            self._watch_due.notify_all()
        return ended

    def _wait_ended(self, wait_s: float) -> bool:
        return self._changed.wait_for(lambda: self._threads == 0, wait_s)

    # --- slots; all with the lock held unless they say otherwise -------------------------------------------------

    def _start_threads(self) -> None:
        left = self._left.total()
        while self._threads - left < min(self._concurrency, len(self._runs) - left + len(self._queue)):
            self._threads += 1
            threading.Thread(target=self._work, name=f"iscp-iteration-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        """Run one slot (without the lock)."""
        while (run := self._next()) is not None:
            self._emit(IterationStarted(run.iteration.number))
            ended = self._run(run)
            with self._lock:
                ended = _blamed(run, ended)
                del self._runs[run.iteration.number]
                if run.left:
                    self._left[run.iteration.account] -= 1
                    self._left = +self._left
                self._queue.finish(run.iteration)
                self._count(run, ended)
                self._changed.notify_all()
            # After the slot is free: the schedule may submit the next iteration at once.
            self._emit(ended)

    def _next(self) -> _Run | None:
        """Return the next iteration to run; None ends the thread: the executor closed, or its slot is another's."""
        with self._lock:
            while True:
                if self._closed or self._threads - self._left.total() > self._concurrency:
                    self._threads -= 1
                    self._changed.notify_all()
                    return None
                iteration = self._queue.pop(self._hangs_too_much)
                if iteration is not None:
                    timeout_s = self._config.iteration_timeout_s
                    guard = RunGuard(self._clock, self._lease_check, timeout_s, iteration.epoch)
                    run = self._runs[iteration.number] = _Run(iteration, guard)
                    self._watch_due.notify()
                    return run
                self._changed.wait()

    def _hangs_too_much(self, account: str) -> bool:
        return self._left[account] >= LEFT_OF_ACCOUNT_MAX

    def _run(self, run: _Run) -> IterationEnded:
        """Run it to its end (without the lock); what it committed counts, though its end was ordered meanwhile."""
        number = run.iteration.number
        try:
            # The lease may have ended while the iteration waited.
            run.guard.check()
            return IterationEnded(number, self._runner.run(run.iteration, run.guard))
        except IscpError as error:
            return IterationEnded(number, error=error)
        except BaseException as error:  # an exit that a consumer calls ends no slot
            log.exception("iteration.broke", extra=_named(run.iteration))
            return IterationEnded(number, error=IscpError(named_error(error)))

    def _count(self, run: _Run, ended: IterationEnded) -> None:
        if ended.error is None and all(outcome.ok for outcome in ended.outcomes):
            name = "completed"
        elif run.guard.canceled:
            name = "canceled"
        elif run.guard.timed_out:
            name = "timeout"
        else:
            name = "failed"
        self._counts[name] += 1

    def _order_end(self, run: _Run) -> None:
        """Shut the guard and stop the Spark work, on a thread of its own: a JVM that hangs must not hang the caller."""
        if run.stop_due_s is not None:
            return
        # What timed out is not cancelled as well: the report says which of the two it was.
        if not run.guard.timed_out:
            run.guard.cancel()
        run.stop_due_s = self._clock.monotonic_s() + self._config.cancel_wait_s
        name = f"iscp-cancel-{run.iteration.number}"
        threading.Thread(target=self._stop_work, args=(run.iteration,), name=name, daemon=True).start()
        self._watch_due.notify()

    def _stop_work(self, iteration: Iteration) -> None:
        try:
            self._runner.cancel(iteration)
        except Exception:
            log.exception("iteration.cancel_failed", extra={"iteration": iteration.number})

    # --- the watch -----------------------------------------------------------------------------------------------

    def _watch_runs(self) -> None:
        """End what takes too long (without the lock)."""
        while True:
            with self._lock:
                if self._closed and not self._runs:
                    return
                self._watch_due.wait(self._watch_wait_s())
                for run in self._runs.values():
                    if run.guard.timed_out:
                        self._order_end(run)
                stuck = [run for run in self._runs.values() if self._is_stuck(run)]
                for run in stuck:
                    run.stuck = True
                    run.left_due_s = self._clock.monotonic_s() + self._config.cancel_wait_s
                self._leave_hanging()
            # Without the lock: to end a JVM by force takes a while.
            for run in stuck:
                self._force_end(run.iteration)

    def _leave_hanging(self) -> None:
        """Give the slots of runs that nothing ends to others (with the lock held)."""
        now_s = self._clock.monotonic_s()
        for run in self._runs.values():
            if not run.left and run.left_due_s is not None and now_s >= run.left_due_s:
                run.left = True
                self._left[run.iteration.account] += 1
                log.error("iteration.left", extra={**_named(run.iteration), "hanging": self._left.total()})
        if not self._closed:
            self._start_threads()

    def _force_end(self, iteration: Iteration) -> None:
        log.error("iteration.stuck", extra=_named(iteration))
        try:
            self._on_stuck(iteration)
        except Exception:
            log.exception("iteration.stuck_failed", extra={"iteration": iteration.number})

    def _is_stuck(self, run: _Run) -> bool:
        return not run.stuck and run.stop_due_s is not None and self._clock.monotonic_s() >= run.stop_due_s

    def _watch_wait_s(self) -> float:
        now_s = self._clock.monotonic_s()
        due = [run.guard.due_s for run in self._runs.values() if run.stop_due_s is None]
        due += [run.stop_due_s for run in self._runs.values() if not run.stuck]
        due += [run.left_due_s for run in self._runs.values() if not run.left]
        return max(0.0, min((due_s - now_s for due_s in due if due_s is not None), default=IDLE_WAIT_S))


def _named(iteration: Iteration) -> dict[str, object]:
    """Return the fields of a line that is logged of an iteration; who may read lines of an account's jobs reads those
    of no other.
    """
    about = {"iteration": iteration.number, "table": iteration.table_uri, "account": iteration.account}
    return about | logged_jobs(iteration.jobs)
