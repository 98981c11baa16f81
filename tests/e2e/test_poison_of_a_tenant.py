"""For each poison that one account writes, the commits of another are applied in time, and lag is the truth."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.values.errors import IscpError
from iscp.system.http_exchange import free_port
from tests.e2e.harness import append, wait_for
from tests.e2e.tenants import Tenants
from tests.fakes.hung_mount import can_hang, hung
from tests.fakes.s3 import FakeS3, asking, s3_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COMMITS = 10
TABLES = 24
"""Poisoned tables: more than there are threads for probes, or for iterations."""

LAG_S = 3.0
"""What the lag of a table whose storage hangs has to have come to."""


@dataclass
class Store:
    """A store on S3, whose process can be stopped."""

    server: FakeS3
    pid: int = 0

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It takes connections, and answers none."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(FakeS3(free_port()))
    log = tmp_path_factory.mktemp("s3") / "s3.log"
    with s3_server(log, made.server, on_start=partial(setattr, made, "pid")), asking(made.server):
        yield made


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Iterator[Tenants]:
    with Tenants(tmp_path_factory.mktemp("tenants"), store.server) as made:
        yield made


def mine(number: int) -> pa.Table:
    return pa.table({"id": [number], "text": ["mine"]})


def follow(tenants: Tenants, name: str) -> str:
    """A new table of the hostile account, with a replica that is up to date."""
    root = tenants.roots["evil"]
    source = tenants.cluster.table(f"evil/{name}", mine(0))
    tenants.evil.register(source, "copy", target=f"{root}/{name}_copy", key=["id"])
    tenants.evil.wait(source, "copy", timeout_s=60)
    return source


def lag_s(tenants: Tenants, source: str) -> float:
    return tenants.evil.status(source, "copy").lag_s


def next_commit(source: str) -> Path:
    return Path(source, "_delta_log", f"{DeltaTable(source).version() + 1:020}.json")


@pytest.mark.slow
def test_queries_that_end_a_jvm_or_never_end(tenants: Tenants) -> None:
    table = follow(tenants, "queried")
    for sql in (
        "SELECT id, length(repeat('a', 2000000000)) AS n FROM t",
        "SELECT id, size(sequence(1, 2000000000)) AS n FROM t",
        "WITH "
        + ", ".join(f"c{n} AS (SELECT a.id FROM {f'c{n - 1}' if n else 't'} a)" for n in range(200))
        + " SELECT id FROM c199",
        "SELECT id FROM t QUALIFY " + " AND ".join(["row_number() OVER (ORDER BY id) > 0"] * 4_000),
    ):
        with suppress(IscpError):  # what Spark can do within its bounds is taken
            tenants.evil.explain_view(sql, {"t": table})
        tenants.neighbour.commits(3)
    tenants.assert_unharmed()


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 6 << 30)


FILES: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a sparse file": sparse,
    "nested": lambda path: path.write_text('{"metaData":' + '{"a":' * 100_000),
}


@pytest.mark.parametrize("poison", FILES)
@pytest.mark.slow(but=2)
def test_a_commit_that_is_no_commit(tenants: Tenants, poison: str) -> None:
    sources = [follow(tenants, f"{poison.replace(' ', '_')}_{number}") for number in range(3)]
    for source in sources:
        FILES[poison](next_commit(source))
    tenants.neighbour.commits(COMMITS)
    for source in sources:
        wait_for("it says what is wrong", lambda source=source: tenants.evil.status(source, "copy").status.error_msg)  # type: ignore[misc]
    tenants.neighbour.commits(COMMITS)
    tenants.assert_unharmed()


@pytest.mark.skipif(not can_hang(), reason="a file system that hangs is mounted by root on Linux, with /dev/fuse")
@pytest.mark.slow
def test_a_mount_that_hangs_holds_up_its_own_tables_alone(tenants: Tenants) -> None:
    mount = tenants.roots["evil"] / "mount"
    mount.mkdir()
    sources = [follow(tenants, f"mount/{number}") for number in range(TABLES)]
    began_s, before_s = time.monotonic(), max(lag_s(tenants, source) for source in sources)
    with hung(mount):
        tenants.neighbour.commits(COMMITS)
        wait_for("its lag grows", lambda: min(lag_s(tenants, source) for source in sources) >= LAG_S)
        longest_s = max(lag_s(tenants, source) for source in sources)
        assert longest_s <= before_s + time.monotonic() - began_s + LAG_S
        tenants.neighbour.commits(COMMITS)
    tenants.assert_unharmed()  # which looks at what lies below the mount
    for source in sources:
        version = append(source, mine(1))
        tenants.evil.wait(source, "copy", version, timeout_s=60)
    tenants.assert_unharmed()


@pytest.mark.slow
def test_a_store_that_does_not_answer_holds_up_its_own_tables_alone(tenants: Tenants, store: Store) -> None:
    sources = [store.server.uri(f"evil/{number}") for number in range(TABLES)]
    for number, source in enumerate(sources):
        write_deltalake(source, mine(0))
        tenants.evil.register(source, "copy", target=f"{tenants.roots['evil']}/of_s3_{number}", key=["id"])
    for source in sources:
        tenants.evil.wait(source, "copy", timeout_s=120)
    with store.stopped():
        tenants.neighbour.commits(COMMITS)
        wait_for("its lag grows", lambda: min(lag_s(tenants, source) for source in sources) >= LAG_S)
        tenants.neighbour.commits(COMMITS)
    tenants.assert_unharmed()
    for source in sources:
        version = append(source, mine(1))
        tenants.evil.wait(source, "copy", version, timeout_s=120)
    tenants.assert_unharmed()
