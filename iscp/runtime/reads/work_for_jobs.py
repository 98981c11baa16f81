"""Reads of targets count as work of their jobs: a file there may crash a library, and the node's process with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from iscp.core.job.job_deaths import killed
from iscp.core.job.job_row import JobRow
from iscp.ports.engine import JobDeaths


@contextmanager
def at_work_for(row: JobRow, deaths: JobDeaths) -> Iterator[None]:
    """Count what is done within as work for the job. Raises NodeKilled if this node's process died of it too often."""
    found = deaths.of(row.job_id)
    if found.too_many:
        raise killed(found)
    with deaths.at_work([row]):
        yield
