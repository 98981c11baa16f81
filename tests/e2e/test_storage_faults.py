"""A directory that is away, a disk that is full: faults that pass. They are reported and retried; nothing is lost."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from tests.e2e.evidence import admin, assert_in_order
from tests.e2e.harness import QUICK, Cluster, Job, append, assert_equal, leftovers, read, upsert, wait_for

BASE_S = float(QUICK["ISCP_BACKOFF__BASE_S"])
CAP_S = float(QUICK["ISCP_BACKOFF__CAP_S"])
SHORTENED = 0.75
"""By how much a wait may be shortened, so that what failed together does not come back together."""

ATTEMPTS = 4
"""As many failures are waited for: enough for the wait to have reached its cap."""

DISK_BYTES = 8 << 20
TOLD_S = 60.0


@dataclass
class Disk:
    """A file system of its own at `path`, that can be made full.

    Only root may mount one. For anyone else no file of the cluster may grow while the "disk" is full.
    """

    path: Path
    cluster: Cluster
    mounted: bool = field(init=False)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.path)]
        self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0

    @contextmanager
    def full(self) -> Iterator[None]:
        """No room is left on it meanwhile."""
        if self.mounted:
            filler = self.path / "filler"
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4_096))
            try:
                yield
            finally:
                filler.unlink()
        else:
            # The history is shared with what is on other disks: it must be there to be read.
            wait_for("there is a history", (self.cluster.layout.job_log / "iscp_history" / "_delta_log").exists)
            self._limit_files(0)
            try:
                yield
            finally:
                self._limit_files(resource.RLIM_INFINITY)

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def _limit_files(self, bytes_max: int) -> None:
        for pid in leftovers(self.cluster.mark):
            hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (bytes_max, hard))


@dataclass(frozen=True, slots=True)
class Stand:
    """A cluster whose job log is on a disk of its own, and another disk for targets."""

    cluster: Cluster
    log_disk: Disk
    target_disk: Disk

    @property
    def log(self) -> Path:
        """Where the job log really lies."""
        return self.log_disk.path / "joblog"

    def job(self, name: str, target: Path) -> Job:
        """A replica of a table of its own, built."""
        source = self.cluster.table(name, rows(0, 50))
        made = Job(source, f"{name}_copy", str(target))
        self.cluster.client.register(source, made.name, target=made.target, key=["id"])
        self.cluster.settle(made)
        return made

    def register(self, source: str, name: str) -> tuple[int, str]:
        """By `iscp-admin`: its exit status, and what it says on stderr."""
        target = str(self.cluster.lake / "derived" / name)
        options = ("--table", source, "--name", name, "--target", target, "--key", "id")
        answer = admin(self.cluster.endpoint, "job", "register", *options)
        return answer.status, answer.err


def rows(first: int, count: int, text: str = "a") -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "text": [text] * count})


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    disks = [Disk(cluster.root / name, cluster) for name in ("log_disk", "target_disk")]
    made = Stand(cluster, *disks)
    try:
        made.log.mkdir()
        cluster.layout.job_log.rmdir()
        cluster.layout.job_log.symlink_to(made.log)
        cluster.start(ISCP_BACKOFF__QUARANTINE_AFTER="1000")
        yield made
    finally:
        cluster.stop()
        for disk in disks:
            disk.unmount()


def assert_told(stand: Stand, job: Job, *words: str) -> None:
    """The job's status shows a temporary error that is retried, with growing waits, and what it is."""
    cluster = stand.cluster

    def failed() -> list[float]:
        history = cluster.client.history(job.source, job.name)
        return sorted(entry.end_at_s for entry in history if entry.error_code)

    wait_for(f"{ATTEMPTS} attempts fail", lambda: len(failed()) >= ATTEMPTS, TOLD_S)
    waits_s = [later - before for before, later in pairwise(failed())]
    for doublings, wait_s in enumerate(waits_s):
        assert wait_s >= SHORTENED * min(CAP_S, BASE_S * 2**doublings), waits_s
    assert_status(stand, job, *words)


def assert_status(stand: Stand, job: Job, *words: str) -> None:
    shown = admin(stand.cluster.endpoint, "job", "status", job.source, job.name, "-o", "json").json
    # An attempt may be under way at the moment.
    assert (shown["state"], shown["reason"]) in {("error", "retrying"), ("running", "retrying")}
    assert 1 <= shown["status"]["error_code"] <= 9_999
    for word in words:
        assert word in shown["status"]["error_msg"]


def assert_goes_on(stand: Stand, job: Job) -> None:
    stand.cluster.settle(job)
    assert_equal(job.target, read(job.source))
    assert_in_order(job.target)
    wait_for("the error is gone", lambda: stand.cluster.status(job).reason.value == "none", 20.0)


@pytest.mark.further  # each time: a full disk below
@pytest.mark.spark
def test_the_directory_of_a_target_is_away(stand: Stand) -> None:
    place = stand.cluster.lake / "mounted"
    place.mkdir()
    job = stand.job("target_away", place / "copy")
    place.rename(place.with_name("elsewhere"))
    upsert(job.source, rows(40, 20, "b"), ["id"])
    assert_told(stand, job, str(place))
    place.with_name("elsewhere").rename(place)
    assert_goes_on(stand, job)


@pytest.mark.spark
def test_the_source_is_away(stand: Stand) -> None:
    job = stand.job("source_away", stand.cluster.lake / "derived" / "source_away")
    source = Path(job.source)
    upsert(job.source, rows(40, 20, "b"), ["id"])
    away = source.rename(source.with_name("source_gone"))
    stand.cluster.client.notify(job.source)
    wait_for("it is reported", lambda: stand.cluster.status(job).state.value == "error", TOLD_S)
    assert_status(stand, job, str(source))
    upsert(str(away), rows(60, 20, "c"), ["id"])
    away.rename(source)
    assert_goes_on(stand, job)


@pytest.mark.spark
def test_the_disk_of_a_target_is_full(stand: Stand) -> None:
    job = stand.job("target_full", stand.target_disk.path / "copy")
    with stand.target_disk.full():
        upsert(job.source, rows(40, 20, "b"), ["id"])
        append(job.source, rows(1_000, 5))
        assert_told(stand, job, *(["No space left"] if stand.target_disk.mounted else []))
    assert_goes_on(stand, job)


@pytest.mark.spark
def test_the_disk_of_a_target_is_full_from_the_start(stand: Stand) -> None:
    source = stand.cluster.table("never_built", rows(0, 5_000))
    job = Job(source, "never_built", str(stand.target_disk.path / "never_built"))
    if stand.target_disk.mounted:
        with stand.target_disk.full():
            stand.cluster.client.register(source, job.name, target=job.target, key=["id"])
            assert_told(stand, job)
    else:
        # The job log is on the same "disk" then: it has to take the registration first.
        stand.cluster.client.register(source, job.name, target=job.target, key=["id"])
        with stand.target_disk.full():
            assert_told(stand, job)
    assert_goes_on(stand, job)


@pytest.mark.spark
def test_the_disk_of_the_job_log_is_full(stand: Stand) -> None:
    job = stand.job("log_full", stand.cluster.lake / "derived" / "log_full")
    with stand.log_disk.full():
        status, said = stand.register(job.source, "refused")
        assert status == 1
        if stand.log_disk.mounted:
            assert "remedy: Free space on the disk that holds the table" in said
            # Nothing waits for the log: the sink is the truth about progress.
            upsert(job.source, rows(40, 20, "b"), ["id"])
            stand.cluster.settle(job)
            assert_equal(job.target, read(job.source))
    wait_for("registrations are taken again", lambda: stand.register(job.source, "refused")[0] == 0, 60.0)
    assert_goes_on(stand, job)


@pytest.mark.further  # each time: a missing directory in tests/integration/joblog/test_delta_job_log.py
@pytest.mark.spark
def test_the_directory_of_the_job_log_is_away(stand: Stand) -> None:
    job = stand.job("log_away", stand.cluster.lake / "derived" / "log_away")
    known = sorted(each.name for each in stand.cluster.client.jobs())
    away = stand.log.rename(stand.log.with_name("elsewhere"))
    status, said = stand.register(job.source, "late")
    assert status == 1
    assert "job log" in said
    upsert(job.source, rows(40, 20, "b"), ["id"])
    stand.cluster.settle(job)
    assert_equal(job.target, read(job.source))

    # A node that is started now waits for it, and begins no new log.
    stand.cluster.node.kill()
    stand.cluster.launch_node()
    wait_for("it waits", lambda: stand.cluster.node_events("owner.claim_failed") > 0)
    assert not stand.log.exists()
    time.sleep(1.0)
    away.rename(stand.log)
    stand.cluster.wait_serving()
    assert sorted(each.name for each in stand.cluster.client.jobs()) == known
    assert_goes_on(stand, job)
    wait_for("registrations are taken again", lambda: stand.register(job.source, "late")[0] == 0, 60.0)
