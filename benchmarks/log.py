"""Updates of the job log, and how long a log of 100,000 jobs takes to load: `python -m benchmarks.log [--json]`.

The loading time's name says of how many jobs it is: `load_100k_s`, unless `--load-jobs` is given.

An update is a pause or a resume that is answered when it is in the log. By default it goes through the admin API of a
node of its own (`iscp up`), from client processes beside it: first `--batch` of them in each call, and then, under
`single`, one; the same jobs both times, and a latency is that of a call. `--layers` leaves out gRPC and node, and
measures the log's writer with the Delta table alone, one by one.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.progress import report_progress
from iscp.cli.node.up import start_up
from iscp.client.admin_client import Client
from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Pause, Register, Resume
from iscp.cluster.owner.job_log_writer import LogHooks, LogWriter
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.model.api.api_requests import ChangeVerb, JobChange, JobName, RegisterRequest
from iscp.model.job.job_row import JobRow, JobStatus, LogEntry, Registration
from iscp.model.settings.config import JobLogConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Watermark
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

AIM_UPDATES_PER_S = 2_000
AIM_P95_MS = 500
AIM_LOAD_S = 3.0
LOAD_JOBS = 100_000
LOAD_COMMITS = 100
CLIENTS = 2
THREADS = 256
BATCH = 16
SECONDS = 15.0
BUILT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Updates:
    """What was answered within `seconds`, and how long each call took, of `batch` updates each."""

    latencies_ms: list[float]
    seconds: float
    batch: int = 1

    def figures(self) -> dict[str, Any]:
        cuts = statistics.quantiles(self.latencies_ms, n=100)
        return {
            "batch": self.batch,
            "updates": len(self.latencies_ms) * self.batch,
            "updates_per_s": round(len(self.latencies_ms) * self.batch / self.seconds),
            "p50_ms": round(cuts[49], 1),
            "p95_ms": round(cuts[94], 1),
            "p99_ms": round(cuts[98], 1),
        }


def toggle_for(seconds: float, threads: int, toggle: Callable[[int, bool], object]) -> list[float]:
    """Each thread pauses and resumes its own job, again and again; the latencies in ms."""
    end_s = time.monotonic() + seconds

    def run(number: int) -> list[float]:
        latencies, pause = [], True
        while (begin_s := time.monotonic()) < end_s:
            toggle(number, pause)
            latencies.append((time.monotonic() - begin_s) * 1e3)
            pause = not pause
        return latencies

    with ThreadPoolExecutor(threads) as pool:
        return [latency for latencies in pool.map(run, range(threads)) for latency in latencies]


@contextmanager
def log_at(root: str, config: JobLogConfig | None = None) -> Iterator[LogWriter]:
    joblog = DeltaJobLog(root, SystemClock(), EnvironmentFailpoints({}))
    joblog.claim_term()
    book = JobBook(joblog.load(), joblog.requests())
    hooks = LogHooks(lambda _: None, lambda _: None)
    writer = LogWriter(joblog, book, SystemClock(), config or JobLogConfig(uri=root), hooks)
    writer.start()
    try:
        yield writer
    finally:
        writer.close()


def job_row(number: int) -> JobRow:
    spec = JobSpec(ConsumerSpec("replica", f"/lake/targets/{number}", ("id",)))
    status = JobStatus(41, 42, 1_700_000_000.5, 1_700_000_001.25, rows=1_000, bytes=100_000)
    return JobRow(
        key=JobKey("default", f"table-{number // 4}", f"job-{number}"),
        job_id=uuid4().hex,
        spec_json=spec.to_json(),
        table_name=f"/lake/sources/{number // 4}",
        table_uri=f"/lake/sources/{number // 4}",
        watermark=Watermark(42, 1_700_000_000.0),
        seq=7,
        status_json=status.to_json(),
        create_at_s=1_600_000_000.0 + number,
    )


def updates_of_layers(root: Path, threads: int, seconds: float) -> Updates:
    with log_at(str(root)) as writer:
        rows = [job_row(number) for number in range(threads)]
        writer.submit(Register(tuple(map(Registration, rows)))).result()

        def toggle(number: int, pause: bool) -> None:
            request = (Pause if pause else Resume)(rows[number].key, uuid4().hex)
            writer.submit(request).result()

        return Updates(toggle_for(seconds, threads, toggle), seconds)


def client_updates(endpoint: str, source: str, names: list[str], batch: int, seconds: float) -> list[float]:
    """Each thread of a client has `batch` jobs of its own."""
    with Client(endpoint) as client:

        def toggle(number: int, pause: bool) -> None:
            if batch == 1:
                (client.pause if pause else client.resume)(source, names[number])
                return
            verb = ChangeVerb.PAUSE if pause else ChangeVerb.RESUME
            mine = names[number * batch : (number + 1) * batch]
            outcomes = client.change_many([JobChange(verb, JobName(source, name)) for name in mine])
            assert all(isinstance(outcome, bool) for outcome in outcomes), outcomes

        return toggle_for(seconds, len(names) // batch, toggle)


def updates_of_api(root: Path, clients: int, threads: int, batches: list[int], seconds: float) -> list[Updates]:
    """Jobs on a table of one row, built before the measurement begins, so that nothing but updates goes on.

    Measured once for each of `batches`, by threads / batch callers.
    """
    source = str(root / "source")
    (root / "targets").mkdir()  # a registration is refused where the directory of its target is not there
    write_deltalake(source, pa.table({"id": [1]}), configuration={"delta.enableChangeDataFeed": "true"})
    up = start_up(root / "iscp", SystemClock(), os.environ, port=0)
    try:
        per_client = max(1, threads // clients)
        names = [[f"job-{client}-{number}" for number in range(per_client)] for client in range(clients)]
        with Client(up.endpoint) as client:
            client.register_many([registration(root, source, name) for each in names for name in each])
            for name in (name for each in names for name in each):
                client.wait(source, name, timeout_s=BUILT_TIMEOUT_S)
        with ProcessPoolExecutor(clients, mp_context=get_context("spawn")) as pool:

            def measured(batch: int) -> Updates:
                running = [pool.submit(client_updates, up.endpoint, source, mine, batch, seconds) for mine in names]
                done = Updates([latency for each in running for latency in each.result()], seconds, batch)
                report_progress("updates by the admin API", **done.figures())
                return done

            return [measured(batch) for batch in batches]
    finally:
        up.stop()


def registration(root: Path, source: str, name: str) -> RegisterRequest:
    spec = JobSpec(ConsumerSpec("replica", str(root / "targets" / name), ("id",)))
    return RegisterRequest(JobName(source, name), spec.to_json())


def loaded_in_s(root: Path, jobs: int) -> float:
    """From opening a log of so many jobs, some of it not compacted, to a book that can decide."""
    writer = DeltaJobLog(str(root), SystemClock(), EnvironmentFailpoints({}))
    writer.claim_term()
    rows = [job_row(number) for number in range(jobs)]
    writer.append([LogEntry(row, f"request-{number}") for number, row in enumerate(rows)])
    writer.compact(rows)
    for number in range(LOAD_COMMITS):
        first = number * 10 % jobs
        writer.append([LogEntry(row) for row in rows[first : first + 10]])
    del rows
    begin_s = time.monotonic()
    joblog = DeltaJobLog(str(root), SystemClock(), EnvironmentFailpoints({}))
    joblog.claim_term()
    book = JobBook(joblog.load(), joblog.requests())
    load_s = time.monotonic() - begin_s
    assert len(book) == jobs
    return round(load_s, 2)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--layers", is_flag=True, help="Without gRPC and node: the writer and the Delta table.")
@click.option("--clients", type=click.IntRange(min=1), default=CLIENTS, show_default=True, help="Client processes.")
@click.option("--threads", type=click.IntRange(min=1), default=THREADS, show_default=True, help="Of all clients.")
@click.option("--batch", type=click.IntRange(min=1), default=BATCH, show_default=True, help="Updates in one call.")
@click.option("--seconds", type=click.FloatRange(min=1.0), default=SECONDS, show_default=True)
@click.option("--load-jobs", type=click.IntRange(min=1_000), default=LOAD_JOBS, show_default=True, help="To be loaded.")
def main(as_json: bool, layers: bool, clients: int, threads: int, batch: int, seconds: float, load_jobs: int) -> None:
    """Measure how fast the job log takes updates, and how fast it loads."""
    with tempfile.TemporaryDirectory(prefix="iscp-log-") as directory:
        root = Path(directory)
        (root / "load").mkdir()
        load_name, load_s = f"load_{load_jobs // 1_000}k_s", loaded_in_s(root / "load", load_jobs)
        report_progress("loading", **{load_name: load_s})
        (root / "updates").mkdir()
        if layers:
            measured = [updates_of_layers(root / "updates", threads, seconds)]
        else:
            measured = updates_of_api(root / "updates", clients, threads, [batch, 1], seconds)
    updates, *single = [each.figures() for each in measured]
    aims = [
        (
            f"updates_per_s >= {AIM_UPDATES_PER_S}",
            updates["updates_per_s"],
            updates["updates_per_s"] >= AIM_UPDATES_PER_S,
        ),
        (f"p95_ms <= {AIM_P95_MS}", updates["p95_ms"], updates["p95_ms"] <= AIM_P95_MS),
        (f"{load_name} <= {AIM_LOAD_S:g}", load_s, load_s <= AIM_LOAD_S),
    ]
    result = {
        "benchmark": "log",
        "through": "writer and Delta table" if layers else "admin API",
        "cpus": os.cpu_count(),
        "threads": threads,
        **updates,
        **({"single": single[0]} if single else {}),
        load_name: load_s,
        "aims": [{"aim": aim, "measured": value, "met": met} for aim, value, met in aims],
    }
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
