"""Wait within bounds for what the job log's writer answers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from iscp.core.api.api_requests import ChangeOutcome
from iscp.core.values.errors import OutcomeUnknown, PermanentError

T = TypeVar("T")

COMMIT_WAIT_S = 30.0
"""Seconds that a caller waits for the log's answer; then the call fails with OUTCOME_UNKNOWN, and is to be repeated
with the same request id.
"""


def _no_answer() -> OutcomeUnknown:
    return OutcomeUnknown("the job log does not answer", remedy="Retry with the same request_id")


def answer_of(future: Future[T]) -> T:
    try:
        return future.result(COMMIT_WAIT_S)
    except TimeoutError as error:
        raise _no_answer() from error


def answers_of(futures: Sequence[Future[Any]]) -> list[ChangeOutcome]:
    """Return an answer for each change, within COMMIT_WAIT_S in all. Raises OutcomeUnknown if some were made, others
    not.
    """
    wait(futures, COMMIT_WAIT_S)
    outcomes: list[ChangeOutcome] = []
    failed: list[BaseException] = []
    for future in futures:
        error = future.exception() if future.done() else _no_answer()
        if error is None:
            outcomes.append(bool(future.result()))
        elif isinstance(error, PermanentError):
            outcomes.append(error)
        else:
            failed.append(error)
    if outcomes and failed:
        text = f"{len(failed)} of {len(futures)} changes failed: {failed[0]}"
        raise OutcomeUnknown(text, remedy="Retry with the same request ids") from failed[0]
    if failed:
        raise failed[0]
    return outcomes
