"""Reads of targets count as work of their jobs: a file there may crash a library, and the node's process with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from iscp.core.job.job_deaths import ACCOUNT_DEATHS_MAX, Deaths, killed, killed_by_account
from iscp.core.job.job_row import JobRow
from iscp.ports.engine import JobDeaths


@contextmanager
def at_work_for(row: JobRow, deaths: JobDeaths) -> Iterator[None]:
    """Count what is done within as work for the job. Raises NodeKilled if nodes' processes died of it too often."""
    refuse_deadly(row, deaths.of(row), deaths)
    with deaths.at_work([row]):
        yield


def refuse_deadly(row: JobRow, own: Deaths, deaths: JobDeaths) -> None:
    """Raise NodeKilled if nodes' processes died too often of the job, of which these are the `own` deaths, or of those
    of its account.
    """
    if own.too_many:
        raise killed(own)
    of_account = deaths.of_account(row.key.account)
    if of_account >= ACCOUNT_DEATHS_MAX:
        raise killed_by_account(row.key.account, of_account)
