"""Indexes on a real cluster: searched without it, read your writes, killed around commits, on a view too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import iscp
from iscp.model.api.api_requests import SearchWeights
from iscp.model.values.errors import InvalidRequest, IscpError
from tests.e2e.harness import SETTLE_WAIT_S, Cluster, Job, append, delete, read, upsert, wait_for
from tests.selection import in_full

WORDS = ("amber", "birch", "coral", "delta", "ember", "fjord", "grove", "heath")
KILLED_AT = ("index.fragments", "index.commit.before", "index.commit.after", "report.before")
"""Where the node is killed: rows are written and not committed, committed and not recorded."""

REST_BYTES_MAX = 16_384
"""Bytes of what a deleted index leaves, at most."""

PAUSE_S = 0.1
"""Between searches: enough of them fall into each second of a build, and the node has the processors."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node that serves all of these tests, each with a table of its own."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def documents(ids: range, turn: int = 0) -> pa.Table:
    texts = [" ".join(WORDS[(each + turn + place) % len(WORDS)] for place in range(3)) for each in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "body": texts, "turn": [turn] * len(ids)})


def found(job: Job, word: str, min_version: int | None = None) -> set[int]:
    """The ids that a search gives, from this process, without the cluster."""
    weights = SearchWeights(text=1.0, vector=0.0)  # the nearest vectors are those of all rows
    answer = iscp.search(job.target, word, k=1000, min_version=min_version, wait_s=SETTLE_WAIT_S, weights=weights)
    assert min_version is None or answer.version >= min_version
    return {hit.key["id"] for hit in answer.hits}


def expected(source: str, word: str) -> set[int]:
    return {row["id"] for row in read(source).to_pylist() if word in row["body"].split()}


class Searcher:
    """Searches all the time: versions never go back, and each answer is that of one version."""

    def __init__(self, job: Job, word: str) -> None:
        self._job, self._word = job, word
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.versions: list[int] = []
        self.turns: list[set[int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(PAUSE_S):
            try:
                answer = iscp.search(self._job.target, self._word, k=1000)
            except IscpError:
                continue  # it is being built
            self.versions.append(answer.version)
            self.turns.append({hit.columns["turn"] for hit in answer.hits})


def index(cluster: Cluster, source: str, kind: str) -> Job:
    name = f"{Path(source).name}_{kind}"
    job = Job(source, name, f"{cluster.derived}/{name}")
    options = {
        "fulltext": {"columns": "body", "stored": "turn"},
        "search": {"columns": "body", "text": "body", "embed": "hashed", "stored": "turn"},
    }[kind]
    cluster.client.register(source, name, kind, target=job.target, key=("id",), options=options)
    return job


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("killed_at", in_full(KILLED_AT, ["index.commit.after"]))
@pytest.mark.slow
def test_an_index_is_right_through_kills_around_its_commits(cluster: Cluster, killed_at: str) -> None:
    source = cluster.table(f"killed_at_{killed_at}", documents(range(60)))
    jobs = [index(cluster, source, kind) for kind in ("fulltext", "search")]
    for job in jobs:
        cluster.settle(job)
        assert found(job, "amber") == expected(source, "amber")

    version = upsert(source, documents(range(10, 30), turn=1), ("id",))
    for job in jobs:  # read your writes, without a word to the cluster
        assert found(job, "amber", min_version=version) == expected(source, "amber")

    cluster.node.kill()
    upsert(source, documents(range(40, 70), turn=2), ("id",))
    delete(source, "id < 5")
    cluster.launch_node(ISCP_FAILPOINTS=f"{killed_at}=kill:1")
    with Searcher(jobs[0], "amber") as searcher:
        assert cluster.node.wait_end() == -signal.SIGKILL
        cluster.start_node()
        version = int(DeltaTable(source).version())
        for job in jobs:
            assert found(job, "amber", min_version=version) == expected(source, "amber")
    assert searcher.versions == sorted(searcher.versions)
    for job in jobs:
        cluster.settle(job)
        assert cluster.client.verify(source, job.name).equal


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_an_index_of_a_view_follows_the_view(cluster: Cluster) -> None:
    source = cluster.table("documents", documents(range(20)))
    view = str(Path(cluster.derived) / "recent")
    sql = "SELECT id, max(body) AS body, max(turn) AS turn FROM documents WHERE id >= 10 GROUP BY id"
    cluster.client.create_view("recent", sql, target=view, tables={"documents": source})
    cluster.client.wait(source, "recent", timeout_s=SETTLE_WAIT_S)
    job = index(cluster, view, "fulltext")
    cluster.settle(job)
    assert found(job, "birch") == expected(view, "birch")

    append(source, documents(range(100, 120), turn=3))
    cluster.client.wait(source, "recent", timeout_s=SETTLE_WAIT_S)
    cluster.settle(job)
    assert found(job, "birch") == expected(view, "birch")
    assert any(each >= 100 for each in found(job, "birch"))


def is_gone(cluster: Cluster, job: Job) -> bool:
    return all(each.name != job.name for each in cluster.client.jobs())


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed_at", in_full(["", "index.commit.after", "deletion.rows_gone", "deletion.over"]))
def test_an_index_is_deleted_with_its_job_and_made_again(cluster: Cluster, killed_at: str) -> None:
    source = cluster.table(f"deleted_{killed_at}", documents(range(60)))
    job = index(cluster, source, "search")
    cluster.settle(job)
    if killed_at:
        cluster.node.stop()
        cluster.launch_node(ISCP_FAILPOINTS=f"{killed_at}=kill:1")
    with Searcher(job, "amber") as searcher:
        wait_for("it is searched", lambda: searcher.versions)
        with suppress(*[IscpError] if killed_at else []):  # the node may be gone before it answers
            cluster.client.unregister(source, job.name, delete_target=True)
        if killed_at:
            assert cluster.node.wait_end() == -signal.SIGKILL
            cluster.start_node()
        wait_for("it is gone", partial(is_gone, cluster, job))
    with pytest.raises(InvalidRequest, match="it was deleted with its job"):
        iscp.search(job.target, "amber")
    assert sum(path.stat().st_size for path in Path(job.target).rglob("*") if path.is_file()) < REST_BYTES_MAX
    again = index(cluster, source, "search")
    cluster.settle(again)
    assert found(again, "amber") == expected(source, "amber")
