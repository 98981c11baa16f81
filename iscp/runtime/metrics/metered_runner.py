"""Records what iterations took and wrote, around whoever runs them."""

from __future__ import annotations

from collections.abc import Mapping

from iscp.core.job.iteration import Iteration, JobOutcome, Purpose
from iscp.core.job.job_row import JobRow
from iscp.core.job.usage import Usage, UsagePart
from iscp.core.metrics import iteration_metrics as metrics
from iscp.core.metrics import view_metrics
from iscp.core.metrics.attributes import ERROR, KIND
from iscp.core.values.errors import ErrorCode, InvalidRequest
from iscp.core.values.untrusted_values import error_code
from iscp.ports.engine import IterationRunner
from iscp.ports.system import Clock, Guard, Meter

UNKNOWN = "unknown"
"""The kind of a job whose spec cannot be read."""


class MeteredRunner:
    """Port IterationRunner, around another one. A job's part in an iteration counts as long as the whole of it."""

    def __init__(self, runner: IterationRunner, meter: Meter, clock: Clock) -> None:
        self._runner = runner
        self._meter = meter
        self._clock = clock

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        began_s = self._clock.monotonic_s()
        try:
            outcomes = self._runner.run(iteration, guard)
        except BaseException as error:
            took_s, code = self._clock.monotonic_s() - began_s, error_code(error)
            for row in iteration.jobs:
                self._meter.record(metrics.DURATION, took_s, _attributes(row, iteration.purpose.value, code))
            raise
        took_s = self._clock.monotonic_s() - began_s
        for outcome in outcomes:
            self._record(iteration, outcome, took_s)
        return outcomes

    def cancel(self, iteration: Iteration) -> None:
        self._runner.cancel(iteration)

    def _record(self, iteration: Iteration, outcome: JobOutcome, took_s: float) -> None:
        applies = iteration.purpose is Purpose.APPLY
        strategy = (outcome.strategy or outcome.data_type.value) if applies else iteration.purpose.value
        attributes = _attributes(outcome.row, strategy, ErrorCode.OK)
        failed = {ERROR.name: _error_name(outcome.error_code)} if not outcome.ok else {}
        self._meter.record(metrics.DURATION, took_s, attributes | failed)
        self._meter.record(metrics.ROWS, outcome.rows, attributes)
        self._meter.record(metrics.IO, outcome.bytes, attributes)
        if outcome.usage is not None:
            self._record_usage(outcome.usage, attributes)
        if outcome.ok and outcome.strategy and attributes[KIND.name] == "view":
            why = view_metrics.reason_class(outcome.strategy, outcome.strategy_reason)
            given = {metrics.STRATEGY.name: outcome.strategy, view_metrics.REASON.name: why}
            self._meter.record(view_metrics.REFRESHES, 1, given)

    def _record_usage(self, usage: Usage, attributes: Mapping[str, str]) -> None:
        for part in (UsagePart.READ, UsagePart.COMPUTE, UsagePart.COMMIT):
            took_s = usage.seconds()[part]
            self._meter.record(metrics.PARTS, took_s, {**attributes, metrics.PART.name: part.value})
        self._meter.record(metrics.ROWS_READ, usage.rows_read, attributes)
        self._meter.record(metrics.IO_READ, usage.bytes_read, attributes)
        self._meter.record(metrics.CONFLICTS, usage.conflicts, attributes)


def _attributes(row: JobRow, strategy: str, code: int) -> dict[str, str]:
    failed = {ERROR.name: _error_name(code)} if code != ErrorCode.OK else {}
    return {KIND.name: kind_of(row), metrics.STRATEGY.name: strategy, **failed}


def kind_of(row: JobRow) -> str:
    """Return the kind of a job's consumer; a spec that is damaged in the job log has none."""
    try:
        return row.spec.consumer.kind
    except InvalidRequest:
        return UNKNOWN


_ERROR_NAMES: Mapping[int, str] = {int(code): code.name for code in ErrorCode}


def _error_name(code: int) -> str:
    return _ERROR_NAMES.get(code, ErrorCode.INTERNAL.name)
