"""A cluster goes from one release to the next and back, node by node: no row and no change is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from benchmarks.bare_cluster import BareCluster, until
from benchmarks.dispatch import depose
from iscp.cli.iscp import iscp
from iscp.client.admin_client import Client
from iscp.delta.joblog.log_opening import FORMAT_BEFORE
from iscp.delta.joblog.log_schema import FORMAT
from iscp.model.values.ids import WIRE_FORMAT
from tests.e2e.upgrading import (
    BARE_NODE,
    VIEWS,
    Derived,
    TwoReleases,
    log_formats,
    unpack_release_before,
    wire_formats,
)

SHARDS = 12
OLD, NEW = "n0", "n1"
STILL = {str(FORMAT_BEFORE)}


def upgrade_log(config: Path) -> str:
    """Return what `iscp log upgrade` says, its error too."""
    ended = CliRunner().invoke(iscp, ["log", "upgrade", "--config", str(config)])
    return ended.output


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BareCluster]:
    """A node of the release before, and one of this one; without engines."""
    made = BareCluster(tmp_path / "cluster", 2, SHARDS, ttl_s=3.0)
    log = DeltaTable(str(made.root / "joblog/iscp_log"))
    log.alter.set_table_properties({"iscp.format": str(FORMAT_BEFORE)}, raise_if_not_exists=False)
    before = unpack_release_before(tmp_path / "before")
    config = made.members[0].config
    config = replace(config, etcd=replace(config.etcd, accept_faulty_release=False))  # which it does not know
    made.members[0] = replace(made.members[0], config=config, environ=before, program=(str(BARE_NODE),))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def hand_over(cluster: BareCluster, owner: str, runs: str) -> None:
    """To these; the other one neither owns nor runs anything then."""
    while cluster.owner().name != owner:
        depose(cluster)
        until("there is an owner that all follow", cluster.settled)
    (other,) = {OLD, NEW} - {runs}
    with Client(cluster.members[1].config.address, timeout_s=30.0) as client:
        client.operator.uncordon(runs)
        client.operator.drain(other)
    counts = {node.name: node for node in cluster.members}
    until("it runs all", lambda: counts[runs].count("shards") == SHARDS and not counts[other].count("shards"))
    with Client(cluster.members[1].config.address, timeout_s=30.0) as client:
        client.operator.uncordon(other)
    until("both have their share", cluster.settled)


@pytest.mark.slow
def test_nodes_of_two_releases_take_over_from_each_other(cluster: BareCluster) -> None:
    """What they say to each other, in etcd and in the log; the rows are below."""
    assert wire_formats(cluster.etcd_settings, cluster.members[0].config.etcd_prefix) == {WIRE_FORMAT - 1, WIRE_FORMAT}
    file = cluster.root / f"{NEW}.toml"
    with Client(cluster.members[1].config.address, timeout_s=30.0) as client:
        for number, (owner, runs) in enumerate([(OLD, NEW), (NEW, OLD), (OLD, NEW)], start=1):
            hand_over(cluster, owner, runs)
            client.pause(f"/lake/{number}", "copy")
            assert client.count(reason="paused") == number, "what the other one wrote is not known"
        assert set(log_formats(cluster.root / "joblog")) == STILL
        assert "Upgrade all nodes first" in upgrade_log(file)
        old, _ = cluster.members
        assert old.child is not None
        old.child.terminate()
        assert old.child.wait(30.0) == 0
        until("the other one is owner", lambda: cluster.members[1].count("settled"))
        assert f"was of format {FORMAT_BEFORE}" in upgrade_log(file)
        client.resume("/lake/1", "copy")
        assert client.count(reason="paused") == 2
    assert log_formats(cluster.root / "joblog")[0] == str(FORMAT)


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(3_000)
def test_a_cluster_is_upgraded_and_goes_back_under_load(tmp_path: Path) -> None:
    """Node by node, the owner last and then first."""
    with TwoReleases(tmp_path, count=2) as nodes:
        nodes.start_etcd()
        for number in range(nodes.count):
            nodes.begin_before(f"iscp-{number}")
        for node_id in nodes.members:
            nodes.wait_ready(node_id)
        jobs = Derived(nodes, VIEWS)
        jobs.register()
        jobs.assert_right()
        for seed, before in enumerate((False, True, False), start=1):
            with jobs.load.writing(seed):
                owner = nodes.owner()
                for node_id in sorted(nodes.members, key=lambda each: (each == owner) != before):
                    nodes.replace(node_id, before=before)
                    nodes.settle(jobs.load.full)
            jobs.assert_right()
            assert nodes.wire_formats == {WIRE_FORMAT - before}
        assert set(log_formats(nodes.layout.job_log)) == STILL
        jobs.assert_done_once()
        with jobs.load.writing(9):
            assert f"was of format {FORMAT_BEFORE}" in upgrade_log(nodes.layout.config("iscp-0"))
            nodes.settle(jobs.load.full)
        jobs.change(50)
        jobs.assert_right()
        assert set(log_formats(nodes.layout.job_log)) == {str(FORMAT)}
