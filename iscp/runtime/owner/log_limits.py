"""What bounds the job log's writer, and how often it does what it does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds and intervals of the log's writer; all in seconds or counts."""

    requests_max: int = 20_000
    batch_requests_max: int = 2_000
    batch_statuses_max: int = 5_000
    status_delay_s: float = 0.2
    retry_s: float = 0.5
    retry_max_s: float = 30.0
    compact_commits: int = 500
    compact_every_s: float = 3_600.0
    flush_every_s: float = 3_600.0
    collect_every_s: float = 3_600.0
    tidy_every_s: float = 3_600.0
    dropped_kept_s: float = 86_400.0
    close_s: float = 10.0
