"""Every order of events among the writers of one shard of a changefeed: breadth first, to the end of its states.

The machine that waits for the lock is the real one; around it are models of what it relies on: queues with their keys
(iscp.changefeed.etcd.locks), the count of incidents, and a commit that compares the state with the one that the
transaction has read. At any step a writer may be frozen, wake up later, or die; the keys of one that is not awake may
expire, or stay for ever.

What is bounded: the writers, their transactions, how often one is frozen and how many die. Time: a first try may be in
vain whenever the key is not the oldest. A long wait is in vain only if the oldest key's writer is not awake, or
something was committed since the sample: a transaction is shorter than the timeout (one that is not counts as frozen).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from iscp.changefeed.model.lock_queue import (
    SHORT_TRY_S,
    Acquired,
    Began,
    CheckConnection,
    Counted,
    CountIncidents,
    GiveUp,
    Incidents,
    LockTimedOut,
    Proceed,
    QueueEffect,
    QueueEvent,
    QueueLimits,
    RaiseIncidents,
    Sampled,
    SampleState,
    TryLock,
    Waiting,
)
from tests.simulation.violation import ViolationError, expect

LIMITS = QueueLimits(timeout_s=1.0, wait_max_s=2.0)
ROWS = 2
"""Of one transaction, each with a ulid."""


@dataclass(frozen=True, slots=True)
class Bounds:
    writers: int = 3
    transactions: int = 1
    freezes: int = 1
    deaths: int = 1
    states_max: int = 500_000


class Life(IntEnum):
    AWAKE = 0
    FROZEN = 1
    DEAD = 2


class Stage(IntEnum):
    IN_LINE = 0
    """Carries out what the machine wants."""
    TURN = 1
    """Has the lock, and is to read the state."""
    WRITES = 2
    LEAVES = 3
    DONE = 4


class Writer(NamedTuple):
    """`place`: the count whose line its key stands in. `base`: the state that its transaction has read."""

    waiting: Waiting
    wanted: tuple[QueueEffect, ...]
    left: int
    now_s: float = 0.0
    life: Life = Life.AWAKE
    stage: Stage = Stage.IN_LINE
    place: int | None = None
    base: int = 0


class Commit(NamedTuple):
    """Visible from then on; the ulids are those above `after`, up to `up_to`."""

    transaction: tuple[int, int]
    after: int
    up_to: int


class State(NamedTuple):
    """`lines`: by count, the writers whose keys stand there, the oldest first. `ulid` is what the last commit left."""

    writers: tuple[Writer, ...]
    lines: tuple[tuple[int, ...], ...] = ((),)
    incidents: int = 0
    ulid: int = 0
    log: tuple[Commit, ...] = ()
    freezes: int = 0
    deaths: int = 0


class Step(NamedTuple):
    """`by`: the writer that takes it while awake; None: it is done to one. `commits`: whether a transaction is."""

    name: str
    after: State
    by: int | None = None
    commits: bool = False


class FeedSearch:
    """`states` counts what was found, `kinds` says what happened at all; raises Violation with the way there."""

    def __init__(self, bounds: Bounds, waiting: type[Waiting] = Waiting, *, compares: bool = True) -> None:
        """`compares`: whether a commit is refused whose transaction has read another state."""
        self.bounds, self._waiting, self._compares = bounds, waiting, compares
        self.kinds: set[str] = set()
        self._found: list[State] = []
        self._came: list[tuple[int, str]] = []
        self._awake_steps: list[list[tuple[int, int]]] = []

    @property
    def states(self) -> int:
        return len(self._found)

    def run(self) -> int:
        """All states, and from each of them a way on for every writer that is awake; raises Violation."""
        first = State(tuple(self._attempt(self.bounds.transactions) for _ in range(self.bounds.writers)))
        numbers = {fingerprint(first): 0}
        self._found, self._came, self._awake_steps = [first], [(0, "")], [[]]
        frontier = deque([0])
        while frontier:
            before = frontier.popleft()
            for step in self._steps(self._found[before]):
                self.kinds.add(step.name[3:])
                number = numbers.setdefault(fingerprint(step.after), len(self._found))
                if number == len(self._found):
                    self._found.append(step.after)
                    self._came.append((before, step.name))
                    self._awake_steps.append([])
                    frontier.append(number)
                if step.by is not None:
                    self._awake_steps[number].append((before, step.by if step.commits else -1))
                if step.commits or step.after.incidents:
                    try:
                        check(step.after)
                    except ViolationError as broken:
                        raise ViolationError(f"{broken}, after {self._way(before)}, {step.name}") from broken
            expect(len(self._found) <= self.bounds.states_max, "more than {} states", self.bounds.states_max)
        for writer in range(self.bounds.writers):
            self._check_progress(writer)
        return self.states

    def _check_progress(self, writer: int) -> None:
        """From every state in which it is awake it may yet commit, if nobody wakes up, dies or expires any more."""
        can = {before for steps in self._awake_steps for before, commits in steps if commits == writer}
        frontier = list(can)
        while frontier:
            for before, _ in self._awake_steps[frontier.pop()]:
                if before not in can:
                    can.add(before)
                    frontier.append(before)
        for number, state in enumerate(self._found):
            it = state.writers[writer]
            if it.life is Life.AWAKE and it.left and number not in can:
                raise ViolationError(f"w{writer} waits for ever after {self._way(number)}")

    def _way(self, number: int) -> str:
        names = []
        while number:
            number, name = self._came[number]
            names.append(name)
        return ", ".join(reversed(names))

    # --- what can happen ---------------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[Step]:
        for number, writer in enumerate(state.writers):
            if writer.life is Life.AWAKE:
                for name, after in self._own_steps(state, number, writer):
                    yield Step(f"w{number} {name}", after, number, len(after.log) > len(state.log))
                if state.freezes < self.bounds.freezes and _may_suffer(state, number):
                    after = _with(state, number, writer._replace(life=Life.FROZEN))
                    yield Step(f"w{number} freezes", after._replace(freezes=state.freezes + 1))
            elif writer.place is not None:
                yield Step(f"w{number} expires", _without_place(state, number))
            if writer.life is Life.FROZEN:
                yield Step(f"w{number} wakes up", _with(state, number, writer._replace(life=Life.AWAKE)))
            if state.deaths < self.bounds.deaths and writer.life is not Life.DEAD and _may_suffer(state, number):
                after = _with(state, number, writer._replace(life=Life.DEAD))
                yield Step(f"w{number} dies", after._replace(deaths=state.deaths + 1))

    def _own_steps(self, state: State, number: int, writer: Writer) -> Iterator[tuple[str, State]]:
        match writer.stage:
            case Stage.IN_LINE:
                yield from self._carry_out(state, number, writer)
            case Stage.TURN:
                yield "reads", _with(state, number, writer._replace(stage=Stage.WRITES, base=state.ulid))
            case Stage.WRITES:
                yield self._commit(state, number, writer)
            case Stage.LEAVES:
                after = _without_place(state, number)
                done = writer._replace(stage=Stage.DONE, place=None)
                yield "leaves", _with(after, number, self._attempt(writer.left) if writer.left else done)
            case Stage.DONE:
                pass

    def _commit(self, state: State, number: int, writer: Writer) -> tuple[str, State]:
        """The sink: data and state at once, if the state is still the one that was read."""
        if self._compares and state.ulid != writer.base:
            return "conflicts", _with(state, number, writer._replace(stage=Stage.LEAVES, base=0))
        commit = Commit((number, writer.left), writer.base, writer.base + ROWS)
        after = _with(state, number, writer._replace(stage=Stage.LEAVES, base=0, left=writer.left - 1))
        return "commits", after._replace(ulid=commit.up_to, log=(*state.log, commit))

    def _carry_out(self, state: State, number: int, writer: Writer) -> Iterator[tuple[str, State]]:
        match writer.wanted[0]:
            case CountIncidents():
                counted = Counted(Incidents(state.incidents, state.incidents))
                yield "counts", self._event(state, number, counted)
            case SampleState():
                yield "samples", self._event(state, number, Sampled(state.ulid))
            case RaiseIncidents(seen):
                if state.incidents == seen.revision:
                    state = state._replace(incidents=state.incidents + 1, lines=(*state.lines, ()))
                yield "raises", _with(state, number, self._attempt(writer.left))
            case TryLock(incidents, wait_s):
                yield from self._stand(state, number, incidents, wait_s)
            case GiveUp():
                yield "gives up", _with(state, number, self._attempt(writer.left))
            case effect:
                raise ViolationError(f"{effect} has no place here")

    def _stand(self, state: State, number: int, incidents: int, wait_s: float) -> Iterator[tuple[str, State]]:
        writer, line = state.writers[number], state.lines[incidents]
        if writer.place is None:
            after = _with(state, number, writer._replace(place=incidents))
            yield "joins", _with_line(after, incidents, (*line, number))
        elif line[0] == number:
            yield "acquires", self._event(state, number, Acquired())
        elif (
            wait_s == SHORT_TRY_S
            or state.writers[line[0]].life is not Life.AWAKE
            or state.ulid != writer.waiting.sample
        ):
            after = _without_place(state, number)
            writer = after.writers[number]
            after = _with(after, number, writer._replace(now_s=writer.now_s + wait_s))
            yield "times out", self._event(after, number, LockTimedOut())

    def _event(self, state: State, number: int, event: QueueEvent) -> State:
        """What the machine makes of it. Everybody is connected."""
        writer = state.writers[number]
        waiting = copy(writer.waiting)
        wanted = tuple(each for each in waiting.step(event, writer.now_s) if each != CheckConnection())
        writer = writer._replace(waiting=waiting, wanted=wanted)
        if wanted == (Proceed(),):
            writer = writer._replace(stage=Stage.TURN, wanted=(), waiting=self._waiting(LIMITS), now_s=0.0)
        return _with(state, number, writer)

    def _attempt(self, left: int) -> Writer:
        waiting = self._waiting(LIMITS)
        wanted = tuple(waiting.step(Began(), 0.0))
        return Writer(waiting, wanted, left)


def _may_suffer(state: State, number: int) -> bool:
    """Writers are alike: those that are frozen or die are the first ones, in their order."""
    return number <= state.freezes + state.deaths and state.writers[number].stage is not Stage.DONE


def check(state: State) -> None:
    """Ulids become visible in their order and never twice; no incident without a cause."""
    last = 0
    for commit in state.log:
        expect(commit.after >= last, "{} becomes visible after {}", commit, last)
        last = commit.up_to
    causes = state.freezes + state.deaths
    expect(state.incidents <= causes, "{} incidents, and only {} were frozen or died", state.incidents, causes)


# --- states as values ------------------------------------------------------------------------------------------------


def _with(state: State, number: int, writer: Writer) -> State:
    return state._replace(writers=(*state.writers[:number], writer, *state.writers[number + 1 :]))


def _with_line(state: State, incidents: int, line: tuple[int, ...]) -> State:
    return state._replace(lines=(*state.lines[:incidents], line, *state.lines[incidents + 1 :]))


def _without_place(state: State, number: int) -> State:
    writer = state.writers[number]
    if writer.place is None:
        return state
    line = tuple(other for other in state.lines[writer.place] if other != number)
    return _with_line(_with(state, number, writer._replace(place=None)), writer.place, line)


def fingerprint(state: State) -> tuple[Any, ...]:
    """Equal for states that what follows cannot distinguish: what was committed lies below all that comes."""
    writers = tuple(map(_writer, state.writers))
    return writers, state.lines, state.incidents, state.ulid, state.freezes, state.deaths


def _writer(writer: Writer) -> tuple[Any, ...]:
    """What is wanted follows from the machine, but for how many effects of its last step are left."""
    waiting = writer.waiting
    machine = (waiting.phase.value, waiting.seen.count, waiting.sample, len(writer.wanted), writer.now_s)
    return machine, writer.life, writer.stage, writer.left, writer.place, writer.base
