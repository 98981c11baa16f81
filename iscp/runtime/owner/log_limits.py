"""What bounds the job log's writer, and how often it does what it does."""

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

    status_delay_s: float = 0.2
    """How long statuses are gathered before they are written; `log.status_batch_s` sets it."""

    retry_s: float = 0.5
    """Pause after a failed commit; it doubles up to `retry_max_s`."""

    retry_max_s: float = 30.0
    """Longest pause after a failed commit."""

    compact_commits: int = 500
    """Commits after which the log is compacted; `log.compact_commits` sets it."""

    compact_every_s: float = 3_600.0
    """Time after which a log that grew is compacted; `log.compact_interval_s` sets it."""

    flush_every_s: float = 3_600.0
    """Time after which watermarks that moved without a commit are written; `log.flush_interval_s` sets it."""

    collect_every_s: float = 3_600.0
    """Time after which dropped jobs' rows are looked for; `log.collect_interval_s` sets it."""

    tidy_every_s: float = 3_600.0
    """Time after which files that no version of the log needs are deleted."""

    dropped_kept_s: float = 86_400.0
    """How long a dropped job's row is kept; `log.keep_dropped_s` sets it."""

    close_s: float = 10.0
    """How long the thread is waited for at the end of a term; then it is left, and the fence refuses its commits."""
