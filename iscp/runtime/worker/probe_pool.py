"""The threads that probe tables. Which probes they make is decided by ProbeTurns."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from iscp.coordination.schedule.probe_turns import SLOW_S, STALL_S, ProbeTurn, ProbeTurns
from iscp.coordination.schedule.schedule_events import Probe, ProbeAnswered, ProbeLate
from iscp.ports.system import Clock, Threads
from iscp.runtime.loop.threads import THREADS
from iscp.runtime.worker.table_prober import Prober, Spot

log = logging.getLogger(__name__)

IDLE_S = 10.0
"""Seconds that an idle thread waits for the next probe; then it ends."""


class _TurnRun(Spot):
    """A turn that a thread has. `taken`: it has to end its turn.

    `answers` are of its first probes; so many of them were `returned`. `seen_count`: how many there were when that
    was last seen to change, at `seen_s`.
    """

    __slots__ = ("answers", "returned", "seen_count", "seen_s", "taken", "turn")

    def __init__(self, turn: ProbeTurn) -> None:
        super().__init__()
        self.turn = turn
        self.taken = False
        self.answers: list[ProbeAnswered] = []
        self.returned = 0
        self.seen_count, self.seen_s = 0, turn.begun_s

    def take_answers(self, until: int) -> list[ProbeAnswered]:
        found = self.answers[self.returned : until]
        self.returned = max(self.returned, until)
        return found


class ProbePool:
    """`hand_in` takes answers and news of what is late, on any thread, and never waits. `watch` has to be called again
    and again, at `next_due_s` at the latest, by a thread that touches no storage. `probed`: probes that have ended.
    """

    def __init__(
        self,
        prober: Prober,
        timeout_s: float,
        clock: Clock,
        hand_in: Callable[[Sequence[ProbeAnswered | ProbeLate]], None],
        on_broken: Callable[[Exception], None],
        threads: Threads = THREADS,
    ) -> None:
        self._prober = prober
        self._turns = ProbeTurns(timeout_s, prober.far_place, prober.places)
        self._clock = clock
        self._hand_in = hand_in
        self._on_broken = on_broken
        self._threads = threads
        (self._changed,) = threads.conditions(1)
        self._ready: deque[_TurnRun] = deque()
        self._watched: dict[_TurnRun, None] = {}
        self._idle = 0
        self._made = 0
        self.probed = 0
        self._closed = False

    @property
    def busy(self) -> bool:
        """Return whether tables wait for the thread that most are probed on."""
        return self._turns.busy

    def offer(self, probes: Sequence[Probe]) -> None:
        with self._changed:
            self._turns.offer(probes)
            self._start_turns()

    def watch(self) -> None:
        """Have others go on where a probe hangs, and say which are late."""
        news: list[ProbeAnswered | ProbeLate] = []
        with self._changed:
            now_s = self._clock.monotonic_s()
            for run in list(self._watched):
                news += self._watch_run(run, now_s)
            if now_s >= self._turns.next_late_s():
                news += self._turns.late(now_s)
            self._start_turns()
        for each in news:
            if isinstance(each, ProbeLate):
                log.warning("probe.late", extra={"table": each.uri, "why": each.why})
        if news:
            self._hand_in(news)

    def next_due_s(self) -> float:
        with self._changed:
            seen_s = min((run.seen_s for run in self._watched), default=inf)
            return min(seen_s + STALL_S, self._turns.next_late_s())

    def counters(self) -> dict[str, int]:
        """Probes that do not answer, and those that wait for a thread."""
        with self._changed:
            late, waiting = self._turns.counts
        return {"probes_late": late, "probes_waiting": waiting}

    def close(self) -> None:
        """Begin nothing more; what hangs ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _watch_run(self, run: _TurnRun, now_s: float) -> list[ProbeAnswered]:
        if len(run.answers) != run.seen_count:
            run.seen_count, run.seen_s = len(run.answers), now_s
        if now_s < run.seen_s + STALL_S:
            return []
        # First, so that its thread begins nothing that another one is given now.
        run.taken = True
        answered = len(run.answers)
        if answered >= len(run.turn.probes):  # it is just handing them in
            run.seen_s = now_s
            return []
        self._turns.stall(run.turn, answered, self._prober.place(run.at), now_s)
        del self._watched[run]
        log.info("probe.stalled", extra={"table": run.turn.probes[-1].uri, "at": run.at})
        return run.take_answers(answered)

    # --- with the lock held --------------------------------------------------------------------------------------

    def _start_turns(self) -> None:
        while not self._closed and (turn := self._turns.begin(self._clock.monotonic_s())) is not None:
            run = _TurnRun(turn)
            if not turn.single:
                self._watched[run] = None
            self._ready.append(run)
            if len(self._ready) <= self._idle:
                self._changed.notify()
            else:
                self._made += 1
                self._threads.thread(f"iscp-probe-{self._made}", self._work).start()

    # --- on a thread of the pool ---------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (run := self._next()) is not None:
                slow = self._make(run)
                if answers := self._end(run, slow):
                    self._hand_in(answers)
        except Exception as error:
            log.exception("probe.broken")
            self._on_broken(error)

    def _next(self) -> _TurnRun | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._ready or self._closed, IDLE_S)
            self._idle -= 1
            return self._ready.popleft() if self._ready and not self._closed else None

    def _make(self, run: _TurnRun) -> bool:
        """Probe, until it is done or too slow to go on here; whether the last one was slow."""
        now_s, answers, answer = self._clock.monotonic_s, run.answers, self._prober.answer
        before_s = now_s()
        for probe in run.turn.probes:
            answers.append(answer(probe, run))
            after_s = now_s()
            if run.taken or after_s - before_s > SLOW_S:
                return after_s - before_s > SLOW_S
            before_s = after_s
        return False

    def _end(self, run: _TurnRun, slow: bool) -> list[ProbeAnswered]:
        answered = len(run.answers)
        place = self._prober.place(run.at) if slow else ""
        with self._changed:
            self._watched.pop(run, None)
            self.probed += answered
            current = self._turns.end(run.turn, answered, place, slow=slow, now_s=self._clock.monotonic_s())
            self._idle += 1  # this one has nothing to do then
            self._start_turns()
            self._idle -= 1
            return run.take_answers(answered if current else answered - 1)
