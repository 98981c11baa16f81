"""Three nodes build a table of millions of rows while they and their owner are killed every few seconds.

Each time: `test_builds.py`, with a small table and one kill.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.cli.demo.command import Chaos
from iscp.cluster.builds.builder import RANGES_AT_ONCE_MAX
from iscp.model.build.build_progress import BuildStage, BuildView
from iscp.model.values.errors import IscpError
from tests.e2e.harness import Job, append, assert_equal, delete, read, upsert, wait_for
from tests.e2e.many_nodes import ManyNodes
from tests.e2e.test_builds import attempts

pytestmark = [pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(3_000)]

ROWS, FILES = 5_000_000, 40
RANGE_BYTES = 4 * 1024**2
"""Some 64 ranges: each takes a node a second or two, and so every kill meets some in work."""

BUILDS = {"ISCP_BUILD__TABLE_BYTES_MIN": "1", "ISCP_BUILD__RANGE_BYTES": str(RANGE_BYTES)}
KILLING_S, SETTLE_WAIT_S, STEP_S, POLL_S = 300.0, 900.0, 2.0, 0.1
"""How long nodes are killed if it takes so long: where a start takes longer than the pause between two kills, hardly
one is ever there to work. How long the rest may take then, for each job; pause between two changes of the source.
"""

CHANGED = 20_000
"""Rows of a commit."""

KINDS = 7
COMMITS_MAX = 2 * KINDS
"""Of the source while it is built: jobs tail them afterwards."""

CUTS = ("merge", "split")
"""All ranges at once, so that a few make very many; there are more of them than files, which none is split beyond."""


def orders(ids: np.ndarray[tuple[int], np.dtype[np.int64]], chance: np.random.Generator) -> pa.Table:
    table = {
        "id": pa.array(ids, pa.int64()),
        "amount": pa.array(chance.random(len(ids))),
        "state": pa.array([f"s{each}" for each in ids % 50]),
        "day": pa.array((ids % 3650).astype(np.int32)).cast(pa.date32()),
        "text": pa.array([f"{each:x}" for each in chance.integers(0, 2**60, len(ids))]),
    }
    return pa.table(table)


@dataclass
class Source:
    """A table whose commits are of all kinds, one after another."""

    uri: str
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))
    commits: list[str] = field(default_factory=list)

    def write(self) -> None:
        configuration = {"delta.enableChangeDataFeed": "true"}
        for part in range(FILES):
            rows = orders(np.arange(part, ROWS, FILES), self.draw)
            write_deltalake(self.uri, rows, mode="append", configuration=configuration)

    def change(self) -> None:
        """The next commit."""
        kinds: tuple[Callable[[], object], ...] = (
            self._append, self._update, self._delete, self._merge, self._optimize, self._add_column, self._restore,
        )  # fmt: skip
        assert len(kinds) == KINDS
        kind = kinds[len(self.commits) % KINDS]
        kind()
        self.commits.append(kind.__name__)

    def _append(self) -> None:
        first = ROWS + len(self.commits) * CHANGED
        append(self.uri, self._padded(orders(np.arange(first, first + CHANGED), self.draw)))

    def _update(self) -> None:
        DeltaTable(self.uri).update({"amount": "amount + 1"}, predicate=f"id % {FILES} = {self._part()}")

    def _delete(self) -> None:
        delete(self.uri, f"id % {FILES} = {self._part()} AND id % 7 = 3")

    def _merge(self) -> None:
        first = int(self.draw.integers(0, ROWS))
        upsert(self.uri, self._padded(orders(np.arange(first, first + CHANGED), self.draw)), ("id",))

    def _optimize(self) -> None:
        DeltaTable(self.uri).optimize.compact(target_size=16 * 1024**2)

    def _add_column(self) -> None:
        rows = orders(np.arange(ROWS * 2, ROWS * 2 + 10) + len(self.commits), self.draw)
        rows = self._padded(rows).append_column(f"more_{len(self.commits)}", pa.array(range(10)))
        write_deltalake(self.uri, rows, mode="append", schema_mode="merge")

    def _restore(self) -> None:
        table = DeltaTable(self.uri)
        table.restore(table.version() - 1)  # the column that was just added is gone again

    def _part(self) -> int:
        return int(self.draw.integers(0, FILES))

    def _padded(self, rows: pa.Table) -> pa.Table:
        """With all columns that the table has by now."""
        for name in pa.schema(DeltaTable(self.uri).schema().to_arrow()).names:
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(len(rows), pa.int64()))
        return rows


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ManyNodes]:
    with ManyNodes(tmp_path, count=3) as made:
        yield made


@pytest.fixture
def source(cluster: ManyNodes) -> Source:
    made = Source(str(cluster.lake / "orders"))
    made.write()
    return made


@contextmanager
def killing(cluster: ManyNodes) -> Iterator[Chaos]:
    addresses = ",".join(cluster.address(f"iscp-{number}") for number in range(cluster.count))
    chaos = Chaos(addresses, random.Random(5))
    chaos.start()
    try:
        yield chaos
    finally:
        chaos.stop()


def builds_of(cluster: ManyNodes, source: str) -> list[BuildView]:
    with suppress(IscpError):  # nobody answers for a moment
        return cluster.client.builds.list(source)
    return []


def built(cluster: ManyNodes, jobs: list[Job]) -> bool:
    with suppress(IscpError):
        return all(cluster.status(job).applied_version >= 0 for job in jobs)
    return False


def cut(cluster: ManyNodes, source: str, how: str) -> bool:
    """Split all ranges that are still to be built, or merge some."""
    if not any(build.state is BuildStage.BUILDING for build in builds_of(cluster, source)):
        return False
    with suppress(IscpError):  # nothing is left that can be cut, or nobody answers
        getattr(cluster.client.builds, how)(source)
        return True
    return False


def restart_the_dead(cluster: ManyNodes) -> None:
    for node_id, member in cluster.members.items():
        if not member.alive:
            cluster.begin(node_id, **BUILDS)


def test_it_ends_equal_though_nodes_are_killed_all_the_time_and_the_source_changes(
    cluster: ManyNodes, source: Source
) -> None:
    cluster.start(**BUILDS)
    jobs = [
        cluster.replica("whole", source.uri, key=("id",)),
        cluster.replica("part", source.uri, key=("id",), columns=("id", "amount", "state"), where="state <> 's7'"),
    ]
    cuts, until_s = 0, time.monotonic() + KILLING_S
    with killing(cluster) as chaos:
        while not built(cluster, jobs) and time.monotonic() < until_s:
            restart_the_dead(cluster)
            if len(source.commits) < COMMITS_MAX:
                source.change()
            pause_until_s = time.monotonic() + STEP_S
            while time.monotonic() < pause_until_s:  # a build may be past what can be cut in less than a change takes
                if cuts < len(CUTS) and cut(cluster, source.uri, CUTS[cuts]):
                    cuts += 1
                time.sleep(POLL_S)
    restart_the_dead(cluster)
    print(f"{cuts} cuts, {len(source.commits)} commits, killed: {chaos.kills}")  # noqa: T201
    assert len(chaos.kills) >= 3, chaos.kills
    assert any("owner" in kill for kill in chaos.kills), chaos.kills
    assert cuts >= 1
    while len(source.commits) < KINDS:
        source.change()
    for job in jobs:
        cluster.settle(job, timeout_s=SETTLE_WAIT_S)
    rows = read(source.uri)
    assert_equal(jobs[0].target, rows)
    kept = rows.filter(pc.not_equal(rows["state"], "s7")).select(["id", "amount", "state"])
    assert_equal(jobs[1].target, kept)


@pytest.mark.parametrize("which", ["the owner", "another node"])
def test_after_one_kill_no_more_than_the_batches_in_work_are_done_again(
    cluster: ManyNodes, source: Source, which: str
) -> None:
    cluster.start(**BUILDS)
    job = cluster.replica("whole", source.uri, key=("id",))
    wait_for("a part is built", lambda: any(build.done_share > 0.2 for build in builds_of(cluster, source.uri)))
    owner = cluster.owner()
    victim = owner if which == "the owner" else next(name for name in cluster.members if name != owner)
    (build,) = cluster.client.builds.list(source.uri)
    assert build.state is BuildStage.BUILDING
    cluster.members[victim].kill()
    cluster.begin(victim, **BUILDS)
    cluster.settle(job, timeout_s=SETTLE_WAIT_S)
    assert_equal(job.target, read(source.uri))
    again = {range_id: count for range_id, count in attempts(job).items() if count > 1}
    assert set(again.values()) <= {2}
    assert len(again) <= RANGES_AT_ONCE_MAX, f"{again} of {len(attempts(job))} ranges"
