"""Probes as they are made: of a table's source, of what else its jobs read and of their targets; and the threads that
make them. Which probes these threads make is decided by ProbeTurns.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from iscp.engine.iteration_ports import JobRun, reconciled
from iscp.engine.range_staging import read_position
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import logged_job
from iscp.model.job.start_rule import ProbeState, TargetLog, TargetQuery, TargetSeen, seen_target
from iscp.model.spec.spec_parsing import target_of
from iscp.model.values.errors import IscpError, TableNotFound, TargetLost
from iscp.model.values.untrusted_values import named_error
from iscp.ports.consumer import Consumer, ConsumerEnvironment, ConsumerKind
from iscp.ports.source import CommitProbe, LogProbe, TargetProbe
from iscp.ports.system import Clock, Threads
from iscp.schedule.lag import FurtherAnswer, FurtherQuery
from iscp.schedule.probes import SLOW_S, STALL_S, ProbeTurn, ProbeTurns
from iscp.schedule.schedule_events import Probe, ProbeAnswered, ProbeLate, TargetAnswer
from iscp.system.recent_values import RecentValues
from iscp.system.threads import THREADS

log = logging.getLogger(__name__)

# --- a probe of a table's source --------------------------------------------------------------------------------------
# A probe says of what has come since whether it is a repair.


def probe_source(probe: CommitProbe, uri: str, seen: ProbeState | None) -> ProbeState:
    """Return the state at the newest version, from `seen` on; `seen` itself if nothing moved.

    Versions that have come since are read for repairs: what these take back may be deleted before every job has applied
    them. A table that did not move costs no read. Raises TableNotFound, StorageError.
    """
    if seen is None:
        return probe.first_probe(uri)
    state = probe.probe(uri, seen)
    if state.version <= seen.version:
        return state
    return replace(state, repair=probe.newest_repair(uri, seen.version, state.version) or seen.repair)


# --- probes of the schedule -------------------------------------------------------------------------------------------
# A probe of the schedule is one of a table's source, of the targets of its jobs, and of what else they read.


class Spot:
    """The spot of a probe: `at` is the table that is touched now, by its URI."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = ""


class Prober:
    """Safe for threads."""

    def __init__(self, probe: CommitProbe, targets: TargetProbe) -> None:
        self._probe = probe
        self._targets = targets
        self.place = probe.place

    def far_place(self, probe: Probe) -> str:
        """Return where the first of its tables behind a network lies; empty if none is."""
        # Loops, as generators would cost as much as the rest of this for each idle table.
        remote = self._probe.remote
        if remote(probe.uri):
            return self.place(probe.uri)
        for target in probe.targets:
            if remote(uri := target.seen.uri if target.seen else self._targets.location(target.row, None)):
                return self.place(uri)
        for further in probe.further:
            if remote(further.uri):
                return self.place(further.uri)
        return ""

    def places(self, probe: Probe) -> Sequence[str]:
        """Return the places of all its tables, each once."""
        targets = [self._targets.location(each.row, each.seen) for each in probe.targets]
        uris = [probe.uri, *filter(None, targets), *(each.uri for each in probe.further)]
        return [*dict.fromkeys(map(self.place, uris))]

    def answer(self, probe: Probe, spot: Spot) -> ProbeAnswered:
        try:
            spot.at = probe.uri
            state = probe_source(self._probe, probe.uri, probe.seen)
            targets = self._probe_targets(probe.targets, spot) if probe.targets else ()
            further = self._probe_further(probe.further, spot) if probe.further else ()
            return ProbeAnswered(probe.shard, probe.uri, state, None, targets, further)
        except IscpError as error:
            return ProbeAnswered(probe.shard, probe.uri, None, error)
        except BaseException as error:  # an exit that foreign code calls ends no thread that others need
            log.exception("probe.broke", extra={"table": probe.uri})
            return ProbeAnswered(probe.shard, probe.uri, None, IscpError(named_error(error)))

    def _probe_further(self, queries: Sequence[FurtherQuery], spot: Spot) -> tuple[FurtherAnswer, ...]:
        """Return the answers of the further tables that have moved, or cannot be reached."""
        answers = []
        for query in queries:
            try:
                spot.at = query.uri
                seen, prober = query.seen, self._probe
                state = prober.first_probe(query.uri) if seen is None else prober.probe(query.uri, seen)
                if state is not seen:
                    answers.append(FurtherAnswer(query.uri, state))
            except Exception as error:  # noqa: BLE001  (one table's fault is that of its jobs)
                log.warning("further_table.unreachable", extra={"table": query.uri, "error": str(error)})
                answers.append(FurtherAnswer(query.uri, None))
        return tuple(answers)

    def _probe_targets(self, queries: Sequence[TargetQuery], spot: Spot) -> tuple[TargetAnswer, ...]:
        """Return the answers of the targets that have moved, or are in doubt."""
        answers = []
        for query in queries:
            try:
                spot.at = query.seen.uri if query.seen else self._targets.location(query.row, None)
                seen = self._targets.probe(query.row, query.seen)
                if seen is not query.seen:
                    answers.append(TargetAnswer(query.row.job_id, seen))
            except Exception as error:  # noqa: BLE001  (one target's fault is its own)
                why = error if isinstance(error, IscpError) else IscpError(f"{type(error).__name__}: {error}")
                log.warning("target.doubted", extra=logged_job(query.row) | {"error": str(why)})
                answers.append(TargetAnswer(query.row.job_id, None, why))
        return tuple(answers)


# --- threads ----------------------------------------------------------------------------------------------------------

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


# --- probes of targets ------------------------------------------------------------------------------------------------
# Targets are checked whether they still hold what was applied to them, at the cost of a probe of the log if nobody
# touched them. The last state seen of a target is compared with its log as a source's is, by the probe for logs of that
# kind. The target's position is read only if the log has moved, or was never read. Consumers of the user's own have no
# log to probe: their position is read before a wait is answered with the version as applied, and with each iteration.

TARGETS_CACHED_MAX = 10_000
"""Targets somebody waited for of which the owner remembers what it saw; the oldest are forgotten, and read again when
needed.
"""


class TargetProbes:
    """Port TargetProbe; safe for threads. `probes` has one for each kind of log; `environment` is for looking alone."""

    def __init__(
        self,
        probes: Mapping[TargetLog, LogProbe],
        kinds: Callable[[str], ConsumerKind],
        environment: ConsumerEnvironment,
    ) -> None:
        self._probes = probes
        self._kinds = kinds
        self._environment = environment

    def location(self, row: JobRow, seen: TargetSeen | None) -> str:
        return target_of(row.spec_json) if seen is None else seen.uri

    def probe(self, row: JobRow, seen: TargetSeen | None) -> TargetSeen:
        # What was seen says which kind of log it is: nobody parses the spec of a job whose target is idle.
        log = self._kinds(row.spec.consumer.kind).needs.target_log if seen is None else seen.log
        if log is TargetLog.NONE:
            return TargetSeen() if seen is None else seen
        return self._look_for_moves(row, seen, log)

    def check(self, row: JobRow) -> None:
        """Read the target's position; raises TargetLost where it does not hold what `row` says."""
        kind = self._kinds(row.spec.consumer.kind)
        consumer: Consumer
        if kind.open_range is not None:
            consumer = kind.open_range(row, self._environment)
            found = read_position(row, consumer, {})
            if found.apart:
                return  # its iterations bring it together
            position = found.position
        else:
            consumer = kind.open(row, self._environment)
            position = consumer.position(row)
        if position.job_id > row.job_id:
            return  # a later registration's, and this one is about to end
        if position.job_id != row.job_id:
            raise _lost(row, position.void or "it holds nothing of this job's")
        if position.void:
            raise _lost(row, position.void)
        there = reconciled(JobRun(row, kind, consumer, position)).position.watermark.version
        if there < row.watermark.version:
            raise _lost(row, f"it is at version {there} of the source, and {row.watermark.version} was applied")

    def _look_for_moves(self, row: JobRow, seen: TargetSeen | None, log: TargetLog) -> TargetSeen:
        uri, probe = self.location(row, seen), self._probes[log]
        state = seen.state if seen else None
        try:
            found = probe.probe(uri, state) if state else probe.first_probe(uri)
        except TableNotFound:
            self.check(row)
            raise _lost(row, "it is not there") from None
        if seen is not None and found is state:
            return seen
        self.check(row)
        return seen_target(log, uri, found)


class WaitedTargets:
    """The owner's knowledge of the targets that users wait for; safe for threads."""

    def __init__(self, probes: TargetProbes) -> None:
        self._probes = probes
        self._seen: RecentValues[str, TargetSeen] = RecentValues(TARGETS_CACHED_MAX)

    def fault(self, rows: Iterable[JobRow]) -> IscpError | None:
        """Probe now: why the targets do not hold what these rows say, or cannot be read; None: they do."""
        try:
            for row in rows:
                self._probe(row)
        except IscpError as error:
            return error
        return None

    def _probe(self, row: JobRow) -> None:
        seen = self._probes.probe(row, self._seen.take(row.job_id))
        if not seen.uri:
            self._probes.check(row)
        self._seen.put(row.job_id, seen)


def _lost(row: JobRow, why: str) -> TargetLost:
    place = target_of(row.spec_json) or f"of {row.key.job_name}"
    return TargetLost(f"the target {place} does not hold what was applied to it: {why}", remedy="It is rebuilt")
