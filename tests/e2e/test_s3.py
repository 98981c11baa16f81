"""Targets and job log on S3: a node for which that is not safe does not start, one that is killed loses nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.delta.log.commits import table_exists
from iscp.system.http_exchange import free_port
from tests.e2e.evidence import assert_in_order
from tests.e2e.harness import Cluster, assert_equal, read, upsert, wait_for
from tests.e2e.load import Load
from tests.e2e.test_kills import survives_building_and_tailing
from tests.fakes.s3 import SECRET, FakeS3, asking, delete_all, s3_server


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[FakeS3]:
    server = FakeS3.with_keys(free_port(), tmp_path, {"acme": "acme"})
    with s3_server(tmp_path / "s3.log", server), asking(server):
        yield server


def rows(ids: range, text: str) -> pa.Table:
    return pa.table({"id": list(ids), "text": [text] * len(ids)})


@pytest.mark.further  # each time: tests/integration/test_selftest.py
@pytest.mark.spark
def test_refused_where_conditions_are_ignored(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_etcd()
    naive = FakeS3.with_keys(free_port(), tmp_path, {"acme": "acme"})
    with s3_server(tmp_path / "naive.log", naive, fault="ignore-conditions"):
        cluster.launch_node(**naive.settings, ISCP_STORAGE__SELF_TEST=naive.uri("derived", "acme"))
        assert cluster.node.wait_end() == 1
    told = cluster.node.log.read_text()
    assert "a commit in s3://acme/derived was overwritten by another\n  field: storage.self_test.0\n" in told
    assert "If-None-Match" in told
    assert not any(secret in told for secret in naive.settings.values() if "elsewhere" in secret)
    assert SECRET not in told


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(600)
def test_killed_once_everything_is_published(cluster: Cluster, s3: FakeS3) -> None:
    cluster.start_etcd()
    settings = s3.settings | {"ISCP_STORAGE__SELF_TEST": s3.uri("derived"), "ISCP_LOG__URI": s3.uri("joblog", "acme")}
    cluster.derived = s3.uri("derived")
    source = cluster.table("source", rows(range(50), "old"))
    cluster.start_node(**settings, ISCP_FAILPOINTS="publish.after=kill:1")
    job = cluster.replica("copy", source, key=("id",))
    assert cluster.node.wait_end() == -signal.SIGKILL
    upsert(source, rows(range(40, 60), "new"), ("id",))
    cluster.start_node(**settings)
    cluster.settle(job)
    assert_equal(job.target, read(source))
    assert_in_order(job.target)


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_target_that_is_gone_is_noticed_though_nobody_probes(cluster: Cluster, s3: FakeS3) -> None:
    cluster.start_etcd()
    cluster.derived = s3.uri("derived")
    source = cluster.table("source", rows(range(50), "old"))
    cluster.start_node(**s3.settings)
    job = cluster.replica("copy", source, key=("id",))
    cluster.settle(job)
    delete_all(job.target)
    wait_for("it is missed", lambda: cluster.node_events("target.doubted") > 0)
    wait_for("it is rebuilt", lambda: table_exists(job.target) and cluster.status(job).lag_least_s == 0)
    cluster.settle(job)
    assert_equal(job.target, read(source))


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_killed_before_and_after_each_write_under_load(
    cluster: Cluster, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.settings.items():
        monkeypatch.setenv(name, value)  # for all nodes that are started
    cluster.derived = s3.uri("derived")
    load = Load.make(cluster)
    cluster.start()
    cluster.node.kill()
    with ThreadPoolExecutor(1) as pool:
        survives_building_and_tailing(load, pool.submit(load.register))
