"""The fields by which lines of a node's log name jobs, so that `job logs` shows each line to whom it concerns.

`JobOfLines` (iscp.core.api.log_lines) reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

from iscp.core.build.build_task import BuildPlan
from iscp.core.job.job_row import JobRow

LOGGED_JOBS_MAX = 50
"""Jobs that a line about several of them names; a line about more names none, and is shown for each job of the
table.
"""


def logged_job(row: JobRow, table: str = "") -> dict[str, object]:
    """Return the fields of a line about one job; `table` is what its table is called, unless as in the row."""
    key = row.key
    return {"table": table or row.table_name, "account": key.account, "job": key.job_name, "job_id": row.job_id}


def logged_plan(plan: BuildPlan) -> dict[str, object]:
    """Return the fields of a line about the build of one job."""
    return {"table": plan.table_uri, "account": plan.account, "job": plan.job_name, "job_id": plan.job_id}


def logged_jobs(rows: Sequence[JobRow]) -> dict[str, object]:
    """Return what a line about several jobs of a table has beside its table and account."""
    return {"job_ids": [row.job_id for row in rows]} if len(rows) <= LOGGED_JOBS_MAX else {}
