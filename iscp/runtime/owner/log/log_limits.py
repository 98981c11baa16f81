"""The limits of the job log's writer, beside the settings of the section `log`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds and intervals of the log's writer; all in seconds or counts."""

    requests_max: int = 20_000
    """Requests that wait for the log; one more is refused with QUEUE_FULL."""

    batch_requests_max: int = 2_000
    """Requests in one commit; the others follow in further commits."""

    batch_statuses_max: int = 5_000
    """Statuses in one commit; the others follow in further commits."""

    retry_s: float = 0.5
    """Pause after a failed commit; it doubles up to `retry_max_s`."""

    retry_max_s: float = 30.0
    """Longest pause after a failed commit."""

    tidy_every_s: float = 3_600.0
    """Time after which files that no version of the log needs are deleted."""

    close_s: float = 10.0
    """Seconds that the end of a term waits for the thread; then it is left, and the fence refuses its commits."""
