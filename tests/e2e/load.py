"""The jobs that fault tests keep an eye on, and the load under which they are put."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from iscp.model.values.errors import TemporaryError
from tests.e2e.evidence import assert_in_order, assert_watermarks_never_went_back, job_log_rows
from tests.e2e.harness import Cluster, Job, assert_equal, read
from tests.e2e.writer import events, orders

ROOT = Path(__file__).parents[2]
WRITER_STOP_S = 60.0
ACKNOWLEDGE_S = 90.0
WHERE = "state <> 'gone' AND amount > 100"


@contextmanager
def writing(seed: int, orders_uri: str, events_uri: str) -> Iterator[None]:
    """`tests.e2e.writer` changes the tables all the time."""
    command = [sys.executable, "-m", "tests.e2e.writer", str(seed), orders_uri, events_uri]
    with subprocess.Popen(command, cwd=ROOT) as writer:
        try:
            yield
            assert writer.poll() is None, "the writer has ended by itself"
        finally:
            writer.terminate()
            writer.wait(WRITER_STOP_S)


@dataclass
class Load:
    """A keyed full replica and a filtered one with chosen columns of `orders`, an append-only one of `events`."""

    cluster: Cluster
    full: Job
    filtered: Job
    appended: Job

    @classmethod
    def make(cls, cluster: Cluster) -> Load:
        """Two tables, and jobs that are not registered yet."""
        source = cluster.table("orders", orders(list(range(100)), random.Random(0)))
        log = cluster.table("events", events(0, 50))
        return cls(
            cluster,
            *(
                Job(uri, n, f"{cluster.derived}/{n}")
                for uri, n in ((source, "full"), (source, "filtered"), (log, "appended"))
            ),
        )

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.full, self.filtered, self.appended

    def register(self) -> None:
        """Until all are acknowledged, whatever the node suffers meanwhile."""
        self._register(*self.jobs)

    def register_anew(self) -> None:
        """Every job is built again, whatever the node suffers meanwhile: those with a key go, and come again at once.

        Another registration of the append-only one would be refused, as its target may be all that is left of its rows.
        """
        for job in (self.full, self.filtered):
            self._insist(partial(self.cluster.client.unregister, job.source, job.name), job.name)
        self._insist(partial(self.cluster.client.resync, self.appended.source, self.appended.name), self.appended.name)
        self._register(self.full, self.filtered)

    def _register(self, *jobs: Job) -> None:
        options: dict[Job, dict[str, Any]] = {
            self.full: {"key": ["id"]},
            self.filtered: {"key": ["id"], "columns": ["id", "amount"], "where": WHERE},
            self.appended: {},
        }
        for job in jobs:
            ask = partial(self.cluster.client.register, job.source, job.name, target=job.target, **options[job])
            self._insist(ask, job.name)

    def _insist(self, ask: Callable[[], object], what: str) -> None:
        """Ask until there is an answer, as an application would while the node is away."""
        until_s = time.monotonic() + ACKNOWLEDGE_S
        while True:
            try:
                ask()
                return
            except TemporaryError:
                assert time.monotonic() < until_s, f"{what} is not acknowledged within {ACKNOWLEDGE_S} s"

    @contextmanager
    def writing(self, seed: int) -> Iterator[None]:
        """Both tables change all the time."""
        with writing(seed, self.full.source, self.appended.source):
            yield

    def assert_right(self) -> None:
        """At rest every target equals its recomputation, and nothing in the logs went back or was done twice."""
        for job in self.jobs:
            self.cluster.settle(job)
        every = read(self.full.source)
        assert_equal(self.full.target, every)
        kept = every.filter(pc.and_(pc.not_equal(every["state"], "gone"), pc.greater(every["amount"], 100)))
        assert_equal(self.filtered.target, kept.select(["id", "amount"]))
        # Rows that are only ever appended: what the table holds is every row ever inserted.
        assert_equal(self.appended.target, read(self.appended.source))
        for job in self.jobs:
            assert_in_order(job.target)
        assert_watermarks_never_went_back(job_log_rows(self.cluster.layout.job_log))
