"""The job log on a disk that is full for a while: files of this process may not grow past a few bytes.

Argument: the log's URI. Says for each attempt whether it `failed` with StorageError or was `written`, and at the end
which jobs the log has; with `checkpoint` as the second argument, what came of a commit that failed after it landed.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.model.job.job_row import LogEntry
from iscp.model.values.errors import StorageError
from iscp.system.threads import SystemClock
from tests.fakes.log_program import job


def limit_files(bytes_max: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, resource.RLIM_INFINITY))


class FillsUp:
    """Port Failpoints: the disk is full between the data file and the commit file, when `armed`."""

    armed = False
    bytes_max = 100

    def reach(self, name: str) -> None:
        if self.armed:
            limit_files(self.bytes_max)


def main(uri: str) -> None:
    disk = FillsUp()
    joblog = DeltaJobLog(uri, SystemClock(), disk)
    joblog.claim_term()
    joblog.load()
    joblog.append([LogEntry(job(0), "r0")])
    for bytes_max in (0, 1_000, resource.RLIM_INFINITY):
        disk.armed = bytes_max == resource.RLIM_INFINITY
        attempts: tuple[Callable[[], None], ...] = (
            lambda: joblog.append([LogEntry(job(1), "r1")]),
            lambda: joblog.compact([job(1)]),
        )
        for attempt in attempts:
            limit_files(bytes_max)
            try:
                attempt()
                outcome = "written"
            except StorageError:
                outcome = "failed"
            limit_files(resource.RLIM_INFINITY)
            print(outcome, flush=True)  # noqa: T201
    disk.armed = False
    joblog.append([LogEntry(job(2), "r2")])
    print(*sorted(row.key.job_name for row in joblog.load()), flush=True)  # noqa: T201


def fail_behind_a_commit(uri: str) -> None:
    """The commit that ends in a checkpoint finds room for itself but not for that."""
    disk = FillsUp()
    disk.bytes_max = 2_000
    joblog = DeltaJobLog(uri, SystemClock(), disk)
    joblog.claim_term()
    for number in range(17):
        joblog.append([LogEntry(job(number))])
    disk.armed = True
    try:
        joblog.append([LogEntry(job(17))])
    finally:
        limit_files(resource.RLIM_INFINITY)
    print("written", flush=True)  # noqa: T201


if __name__ == "__main__":
    (fail_behind_a_commit if sys.argv[2:] == ["checkpoint"] else main)(sys.argv[1])
