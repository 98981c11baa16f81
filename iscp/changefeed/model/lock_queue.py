"""One attempt of a writer to get in line for a shard of a changefeed: locks that can be burned.

Only an order of precedence. That writes are right is due to the commit's compare-and-set alone; the line keeps the
writers of one shard from failing it by turns. The lock's name holds the shard's count of incidents, so that a lock
whose holder was frozen or lost its power is left to it: who waits in vain while nothing moves raises the count, and
all go on under the next name. An abandoned holder costs the others one timeout, not what is left of its lease.

After mssql-changefeed ("The locking scheme to avoid long stalls"). Beyond it, each round reads the count anew: else
who waits for a burned lock takes the others' commits, under the new name, for a long line before itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto

from iscp.core.errors import InvariantBroken

SHORT_TRY_S = 0.02
"""How long the first attempt to lock a shard waits; mostly it succeeds, and then nothing has to be sampled."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How long a writer of a changefeed waits for a shard's lock."""

    timeout_s: float = 1.0
    """How long a lock may be held while nothing is committed; then its holder counts as gone, which delays the
    others by so much. To be much longer than a transaction takes.
    """

    wait_max_s: float = 30.0
    """How long a writer waits in a lock queue that moves; then it begins no further round, and fails with TimedOut."""


@dataclass(frozen=True, slots=True)
class Incidents:
    """How many incidents a shard has had, and the revision at which that was read; (0, 0): none ever."""

    count: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """The incidents of a shard: how many, when the last one was found (Unix seconds), and by whom."""

    shard: str
    count: int
    raised_at_s: float
    raised_by: str


# --- what happens ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Began:
    """The attempt begins."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The answer to CountIncidents."""

    incidents: Incidents


@dataclass(frozen=True, slots=True)
class Acquired:
    """The lock that was tried is ours."""


@dataclass(frozen=True, slots=True)
class LockTimedOut:
    """The lock was waited for in vain, and no place in its line is kept."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the shard's last commit has left; only whether two of them are equal means anything."""

    state: Hashable


QueueEvent = Began | Counted | Acquired | LockTimedOut | Sampled


# --- what is to be done ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CountIncidents:
    """Read the count and give Counted."""


@dataclass(frozen=True, slots=True)
class TryLock:
    """Wait for the lock of this count for so long at most; give Acquired or TimedOut."""

    incidents: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class SampleState:
    """Read the shard's state and give Sampled."""


@dataclass(frozen=True, slots=True)
class RaiseIncidents:
    """Raise the count by one, unless it has been raised since it was `seen`."""

    seen: Incidents


@dataclass(frozen=True, slots=True)
class CheckConnection:
    """Whoever is cut off has every reason to see nothing move: look whether it is us."""


@dataclass(frozen=True, slots=True)
class Proceed:
    """The writer's turn has come. The attempt is over."""


class GiveUpReason(Enum):
    INCIDENT = auto()
    LONG_LINE = auto()


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The attempt is over, without a lock. Another one may begin at once."""

    reason: GiveUpReason
    waited_s: float


QueueEffect = CountIncidents | TryLock | SampleState | RaiseIncidents | CheckConnection | Proceed | GiveUp


class LockPhase(Enum):
    NEW = auto()
    COUNTING = auto()
    TRYING = auto()
    SAMPLING = auto()
    WAITING = auto()
    SAMPLING_AGAIN = auto()
    COUNTING_AGAIN = auto()
    OVER = auto()


@dataclass(slots=True)
class Waiting:
    """Begin it with Began, then give it the answer to each effect that has one; times must not step back.

    It ends in Proceed or GiveUp. Invariant: RaiseIncidents only after a whole `timeout_s` between two equal samples.
    """

    limits: QueueLimits
    phase: LockPhase = LockPhase.NEW
    began_s: float = 0.0
    seen: Incidents = Incidents()
    sample: Hashable = None

    def step(self, event: QueueEvent, now_s: float) -> list[QueueEffect]:
        """Take one event in; the effects it has. Raises InvariantBroken where it answers nothing that was asked."""
        match self.phase, event:
            case LockPhase.NEW, Began():
                self.began_s = now_s
                return self._turn(LockPhase.COUNTING, CountIncidents())
            case LockPhase.COUNTING, Counted(incidents):
                self.seen = incidents
                return self._turn(LockPhase.TRYING, TryLock(incidents.count, SHORT_TRY_S))
            case ((LockPhase.TRYING | LockPhase.WAITING), Acquired()):
                return self._turn(LockPhase.OVER, Proceed())
            case LockPhase.TRYING, LockTimedOut():
                return self._turn(LockPhase.SAMPLING, SampleState())
            case LockPhase.SAMPLING, Sampled(state):
                self.sample = state
                return self._wait()
            case LockPhase.WAITING, LockTimedOut():
                return self._turn(LockPhase.SAMPLING_AGAIN, SampleState())
            case LockPhase.SAMPLING_AGAIN, Sampled(state):
                return self._after_a_round(state, now_s - self.began_s)
            case LockPhase.COUNTING_AGAIN, Counted(incidents):
                self.seen = incidents
                return self._wait()
            case _:
                raise InvariantBroken(f"{event} came while {self.phase.name}")

    def _after_a_round(self, state: Hashable, waited_s: float) -> list[QueueEffect]:
        if state == self.sample:
            give_up = GiveUp(GiveUpReason.INCIDENT, waited_s)
            return self._turn(LockPhase.OVER, RaiseIncidents(self.seen), CheckConnection(), give_up)
        if waited_s >= self.limits.wait_max_s:
            return self._turn(LockPhase.OVER, GiveUp(GiveUpReason.LONG_LINE, waited_s))
        self.sample = state
        return self._turn(LockPhase.COUNTING_AGAIN, CountIncidents())

    def _wait(self) -> list[QueueEffect]:
        # Never less than the timeout, also where that exceeds what is left: a shorter wait in vain shows nothing.
        return self._turn(LockPhase.WAITING, TryLock(self.seen.count, self.limits.timeout_s))

    def _turn(self, phase: LockPhase, *effects: QueueEffect) -> list[QueueEffect]:
        self.phase = phase
        return list(effects)
