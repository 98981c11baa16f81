"""An owner of the job log alone, as a process to be killed: claims, then registers jobs from several threads.

Arguments: the log's URI, the number of the first job to register and how many. Says `ready` once it is the owner,
then a line for each answer: `ok` or the error's name, and the job_id.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Register
from iscp.cluster.owner.job_log_writer import LogHooks, LogWriter
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.model.job.job_row import JobRow, Registration
from iscp.model.settings.config import JobLogConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import JobKey
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

THREADS = 8


def job(number: int) -> JobRow:
    spec = JobSpec(ConsumerSpec("replica", f"/targets/{number}")).to_json()
    return JobRow(JobKey("default", f"t{number % 50}", f"j{number}"), uuid4().hex, spec, "t", "/t", create_at_s=1.0)


def main(uri: str, first: int, jobs: int) -> None:
    clock = SystemClock()
    joblog = DeltaJobLog(uri, clock, EnvironmentFailpoints())
    joblog.claim_term()
    book = JobBook(joblog.load(), joblog.requests())
    config = JobLogConfig(uri="", compact_commits=20)
    writer = LogWriter(joblog, book, clock, config, LogHooks(lambda change: None, lambda error: None))
    writer.start()
    said = threading.Lock()

    def register(number: int) -> None:
        row = job(number)
        try:
            result = writer.submit(Register((Registration(row, f"request-{number}"),))).result(60)[0]
        except IscpError as error:
            with said:
                print(f"{type(error).__name__} {row.job_id}", flush=True)  # noqa: T201
            return
        with said:
            print(f"ok {result.job_id}", flush=True)  # noqa: T201

    print("ready", flush=True)  # noqa: T201
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(register, range(first, first + jobs)))
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
