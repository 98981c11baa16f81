"""Decide after each iteration of a run whether a job goes on, waits for another try, or has ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from iscp.core.job.iteration import JobOutcome
from iscp.core.job.job_row import JobRow
from iscp.core.run.run_result import ResultState, RunResult
from iscp.core.run.run_words import words_of_a_run
from iscp.core.values.errors import ErrorCode
from iscp.core.values.watermark import Watermark

TRIES_MAX = 4
"""Iterations in a row of one job that may fail by something temporary; after the last of them the job has failed."""

RETRY_BASE_S = 0.5
"""Seconds before the second try of a job; each further one waits twice as long. A job that waits for tables that are
behind checks so often whether they are so still.
"""

_CAME_LATE = "the answer to its commit was lost"

_ENDED = frozenset({ErrorCode.CANCELED, ErrorCode.TIMEOUT})


@dataclass(slots=True)
class JobProgress:
    """One job while it is brought to `goal`, the version of its own table that was the newest when its turn came.

    `result` is what is known of it so far. `retry_s`: seconds to wait before the next iteration.
    """

    row: JobRow
    goal: int
    result: RunResult
    ended: bool = False
    retry_s: float = 0.0
    _failures: int = 0
    _first: JobOutcome | None = field(default=None)

    def take(self, outcome: JobOutcome, seconds: float) -> None:
        """Take in what came of an iteration, which took `seconds` for all its jobs."""
        before, self.retry_s = self.row.watermark, 0.0
        # Of an iteration that failed the commit may have come to be when its answer was lost.
        came_late = outcome.ok and not outcome.committed and self._failures > 0 and outcome.seq > self.row.seq
        self.row = self.row._replace(watermark=outcome.watermark, seq=outcome.seq)
        self._count(outcome, seconds)
        if came_late:
            self.result = replace(
                self.result, state=ResultState.UPDATED, reason=_CAME_LATE, iterations=self.result.iterations + 1
            )
        if not outcome.ok:
            self._fail(outcome)
            return
        self._failures = 0
        if outcome.waits_for:
            self.retry_s = min(outcome.wait_s, RETRY_BASE_S)
        elif outcome.watermark.version >= self.goal and not outcome.watermark.steps:
            self.ended = True
        elif not _moved(before, outcome.watermark):
            self.end_by(ErrorCode.INTERNAL, "the iteration ended without progress")

    def end_by(self, code: int, error: str) -> None:
        """End the job as failed."""
        self.ended = True
        self.result = replace(self.result, state=ResultState.FAILED, error_code=int(code), error=words_of_a_run(error))

    def _fail(self, outcome: JobOutcome) -> None:
        self._failures += 1
        code = ErrorCode(outcome.error_code)
        if code.temporary and code not in _ENDED and self._failures < TRIES_MAX:
            self.retry_s = RETRY_BASE_S * 2.0 ** (self._failures - 1)
        else:
            self.end_by(code, outcome.error_msg)

    def _count(self, outcome: JobOutcome, seconds: float) -> None:
        work_s = seconds if outcome.usage is None else outcome.usage.work_s
        result = replace(
            self.result, seconds=round(self.result.seconds + work_s, 4), to_version=outcome.watermark.version
        )
        if outcome.ok:
            result = replace(result, dead_letters=outcome.dead_letters, warning=outcome.warning)
        if outcome.ok and outcome.committed:
            # Of several iterations the first one says how far the target was behind, and why.
            first = self._first = self._first or outcome
            result = replace(
                result,
                state=ResultState.UPDATED,
                strategy=first.strategy or first.data_type.value,
                reason=first.strategy_reason,
                rows=result.rows + outcome.rows,
                bytes=result.bytes + outcome.bytes,
                iterations=result.iterations + 1,
            )
        self.result = result


def _moved(before: Watermark, after: Watermark) -> bool:
    return (before.version, before.step) != (after.version, after.step)
