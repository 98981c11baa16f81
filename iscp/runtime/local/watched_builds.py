"""First snapshots that a watch builds in its process, as a cluster's builds are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from iscp.core.build.api_builds import BuildStage, BuildView
from iscp.core.job.job_row import JobRow, JobState
from iscp.core.values.progress import UNKNOWN, RunProgress

_STAGES = {JobState.RUNNING: BuildStage.BUILDING, JobState.PENDING: BuildStage.WAITING}


def watched_builds(rows: Iterable[JobRow], progress: Callable[[str], RunProgress | None]) -> list[BuildView]:
    """Return the builds of the jobs that have no position yet, and run or wait for a slot: what runs comes first.

    Jobs of one table that are built together are one build. `progress` returns that of a job's iteration.
    """
    together: dict[tuple[object, ...], list[JobRow]] = {}
    for row in rows:
        if row.watermark.version < 0 and row.state in _STAGES:
            key = row.key.account, row.key.table_id, row.state, row.status.to_version, row.status.start_at_s
            together.setdefault(key, []).append(row)
    builds = [_build(each, progress) for each in together.values()]
    return sorted(builds, key=lambda build: build.state is BuildStage.WAITING)


def _build(rows: Sequence[JobRow], progress: Callable[[str], RunProgress | None]) -> BuildView:
    first = rows[0]
    stage = _STAGES[first.state]
    waits = BuildView(
        first.table_uri,
        first.key.table_id,
        first.key.account,
        tuple(sorted(row.key.job_name for row in rows)),
        first.status.to_version if stage is BuildStage.BUILDING else -1,
        stage,
    )
    found = progress(first.job_id) if stage is BuildStage.BUILDING else None
    return waits if found is None else _measured(waits, found)


def _measured(build: BuildView, found: RunProgress) -> BuildView:
    """Return the build with what is written of it; rows are read more than once, as they are sorted in between.

    How many rows there are in all is not known of a query.
    """
    total = found.rows_total
    written = min(found.rows_written, total) if total >= 0 else UNKNOWN
    return replace(
        build,
        began_at_s=found.started_at_s,
        rows_total=total,
        done_share=written / total if total > 0 else 0.0,
        rows_per_s=found.rows_per_s,
        left_s=found.left_s,
        rows_done=written,
    )
