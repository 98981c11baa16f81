"""Remember which callers wait for which job's target to be compared with its source. Pure; a part of the schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from iscp.coordination.schedule.schedule_events import VerifyAnswered
from iscp.core.job.iteration import JobOutcome, Purpose
from iscp.core.job.verification import VerifyRequest
from iscp.core.values.errors import IscpError, Unavailable


class VerifyQueue:
    """Requests that wait, by job, and those that an iteration answers.

    One iteration answers all that wait for the same of a job. A job that was just verified goes on with its changes
    first: a caller that requests without end cannot stop it.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[VerifyRequest]] = {}
        self._answering: dict[int, tuple[VerifyRequest, ...]] = {}
        self._served: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, request: VerifyRequest) -> None:
        self._waiting.setdefault(request.job_id, deque()).append(request)

    def is_awaited(self, job_id: str, served: bool) -> bool:
        """Return whether somebody waits for the job, and it was, or was not, just verified."""
        return job_id in self._waiting and (job_id in self._served) is served

    def begin(self, job_id: str, number: int) -> Purpose:
        """Begin the iteration `number`, which answers the first that waits, and those that want the same."""
        waiting = self._waiting.pop(job_id)
        repair = waiting[0].repair
        self._answering[number] = tuple(each for each in waiting if each.repair is repair)
        if others := deque(each for each in waiting if each.repair is not repair):
            self._waiting[job_id] = others
        self._served.add(job_id)
        return Purpose.REPAIR if repair else Purpose.VERIFY

    def note_applied(self, job_ids: Iterable[str]) -> None:
        """These jobs got an iteration of their own."""
        self._served.difference_update(job_ids)

    def answers(self, number: int, outcomes: Sequence[JobOutcome], error: IscpError | None) -> list[VerifyAnswered]:
        """Return the answers to those who wait for an iteration that ended."""
        requests = self._answering.pop(number, ())
        found = next((outcome.verified for outcome in outcomes), None)
        answer = error or found or IscpError("the iteration gave no outcome")
        return [VerifyAnswered(each.verify_id, answer) for each in requests]

    def give_up(self, job_id: str) -> list[VerifyAnswered]:
        """Give up a job that does not run here any more, and return the answers."""
        self._served.discard(job_id)
        return [not_here(each) for each in self._waiting.pop(job_id, ())]

    def withdraw(self, verify_id: str) -> int:
        """Withdraw a caller's wait, and return the iteration that nobody wants then (0: none)."""
        for job_id, waiting in self._waiting.items():
            if left := deque(each for each in waiting if each.verify_id != verify_id):
                self._waiting[job_id] = left
            else:
                del self._waiting[job_id]
                break
        for number, requests in self._answering.items():
            if any(each.verify_id == verify_id for each in requests):
                self._answering[number] = tuple(each for each in requests if each.verify_id != verify_id)
                return 0 if self._answering[number] else number
        return 0


def not_here(request: VerifyRequest) -> VerifyAnswered:
    return VerifyAnswered(request.verify_id, Unavailable("the node does not run this job now", remedy="Retry"))
