"""Lets the consumers of one iteration work at the same time, each for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from iscp.core.job.iteration import Iteration, JobOutcome
from iscp.core.job.job_row import JobRow
from iscp.ports.engine import NO_DEATHS, Engine
from iscp.runtime.iteration.job_outcomes import record_failure
from iscp.runtime.iteration.job_run import JobRun

CONSUMERS_AT_ONCE_MAX = 4
"""Consumers of one iteration that work at a time; the others queue."""


def run_side_by_side(
    engine: Engine,
    iteration: Iteration,
    works: list[JobRun],
    consume: Callable[[JobRun], JobOutcome],
    at_work: Callable[[Sequence[JobRow]], AbstractContextManager[None]] = NO_DEATHS.at_work,
) -> list[JobOutcome]:
    """Run `consume` for each, and return their outcomes, in order; what one of them raises is its own outcome.

    `at_work` does what JobDeaths describes.
    """

    def consume_safely(job_run: JobRun) -> JobOutcome:
        try:
            with at_work([job_run.row]):
                return consume(job_run)
        except BaseException as error:  # noqa: BLE001  (one consumer's fault is its own)
            return record_failure(job_run.row, job_run.position, error)

    def run_labelled(job_run: JobRun) -> JobOutcome:
        engine.label(iteration.label)
        return consume_safely(job_run)

    if len(works) <= 1:
        return [consume_safely(job_run) for job_run in works]
    with ThreadPoolExecutor(min(len(works), CONSUMERS_AT_ONCE_MAX), "iscp-consumer") as pool:
        return list(pool.map(run_labelled, works))
