"""One installation from its beginning to its end, under load: after each step every row is where it belongs, once.

Tests follow each other, and each needs the one before. One machine is all that there is: a drain empties it alone.
"""

from __future__ import annotations

import io
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from subprocess import CalledProcessError

import pytest
from rich.console import Console

from iscp.cli.demo.command import View, play
from tests.e2e.harness import wait_for
from tests.kubernetes.changing_tables import ChangingTables
from tests.kubernetes.machine import MACHINE
from tests.kubernetes.release import HELM_WAIT_S, IMAGE, NEXT_IMAGE, NODES, RELEASE, Release
from tests.kubernetes.timed import timed

LOADED_S = 5.0
DRAIN_S = 30
DEMO_DAYS = 45
"""Of two seconds each: a rolling restart of three nodes takes about as long."""
OF_THREE_NODES = 2
"""The revision of the release: the one before had one node."""

pytestmark = pytest.mark.timeout(1_500)


def test_it_is_installed_and_passes_its_own_test(release: Release, tables: ChangingTables, report: list[str]) -> None:
    with timed(report, "install"):
        release.install(1)
    release.helm("test", RELEASE, "--timeout=300s")
    with release.connect() as client:
        tables.create(client)
        with tables.changing(client):
            time.sleep(LOADED_S)
        report.append(tables.settle(client))


def test_one_node_becomes_three(release: Release, tables: ChangingTables, report: list[str]) -> None:
    with release.connect() as client:
        with tables.changing(client):
            with timed(report, "upgrade to three replicas"):
                release.upgrade(3)
            time.sleep(LOADED_S)
        report.append(tables.settle(client))
    assert len(release.ready()) == 3
    release.helm("test", RELEASE, "--timeout=300s")


def test_only_clients_reach_nodes_and_none_of_them_etcd(release: Release) -> None:
    """Nodes and members reach each other, or the tests before had failed."""
    assert release.reached("stranger", {}) == {"nodes": False, "each node": False, "etcd": False}
    known = release.reached("client", {f"{NODES}-client": "true"})
    assert known == {"nodes": True, "each node": True, "etcd": False}


def test_nodes_are_upgraded_one_after_the_other(release: Release, tables: ChangingTables, report: list[str]) -> None:
    with release.connect() as client:
        with tables.changing(client):
            with timed(report, "upgrade of three nodes"):
                release.upgrade(3, NEXT_IMAGE)
            time.sleep(LOADED_S)
        report.append(tables.settle(client))
    assert release.images() == {f"localhost/iscp:{NEXT_IMAGE}"}


def test_a_killed_node_comes_back(release: Release, tables: ChangingTables, report: list[str]) -> None:
    with release.connect() as client:
        with tables.changing(client):
            time.sleep(LOADED_S)
            with timed(report, "from the kill to three nodes that are ready"):
                release.signal(f"{NODES}-1", signal.SIGKILL)
                wait_for("its container was started again", lambda: restarts(release, f"{NODES}-1") == 1, HELM_WAIT_S)
                wait_for("three nodes are ready", lambda: len(release.ready()) == 3, HELM_WAIT_S)
        report.append(tables.settle(client))


def test_an_upgrade_is_rolled_back(release: Release, tables: ChangingTables, report: list[str]) -> None:
    with release.connect() as client:
        with tables.changing(client):
            with timed(report, "rollback of three nodes"):
                release.rollback(OF_THREE_NODES)
            time.sleep(LOADED_S)
        report.append(tables.settle(client))
    assert release.images() == {f"localhost/iscp:{IMAGE}"}


def test_a_frozen_node_is_started_again(release: Release, tables: ChangingTables, report: list[str]) -> None:
    frozen = f"{NODES}-2"
    with release.connect() as client:
        with tables.changing(client):
            time.sleep(LOADED_S)
            with timed(report, "from the freeze until the service leaves it out"):
                release.signal(frozen, signal.SIGSTOP)
                wait_for("it is not ready", lambda: frozen not in release.ready(), HELM_WAIT_S)
            with timed(report, "from then to three nodes that are ready"):
                wait_for("its container was started again", lambda: restarts(release, frozen) == 1, HELM_WAIT_S)
                wait_for("three nodes are ready", lambda: len(release.ready()) == 3, HELM_WAIT_S)
        report.append(tables.settle(client))


def test_the_demo_comes_out_equal_though_nodes_are_replaced(release: Release, report: list[str]) -> None:
    before = {each["metadata"]["uid"] for each in release.pods()}
    view = View(Console(file=io.StringIO()), DEMO_DAYS)
    with release.connect() as client:
        results = play(release.lake.parent, client, view, restarting(release))
    assert len(release.ready()) == 3
    assert not before & {each["metadata"]["uid"] for each in release.pods()}
    assert [each.name for each in results if not each.equal] == []
    report.append(
        f"{sum(each.rows for each in results)} rows in {len(results)} targets, all as computed from the sources"
    )


def test_three_nodes_become_two(release: Release, tables: ChangingTables, report: list[str]) -> None:
    with release.connect() as client:
        with tables.changing(client):
            with timed(report, "upgrade to two replicas"):
                release.upgrade(2)
                wait_for("the third has gone", lambda: len(release.pods()) == 2)
            time.sleep(LOADED_S)
        report.append(tables.settle(client))


def test_a_drain_takes_one_node_and_leaves_the_other(
    release: Release, tables: ChangingTables, report: list[str]
) -> None:
    """There is no machine for the first to go to: so the second, and a second member of etcd, stay."""
    with release.connect() as client:
        with tables.changing(client):
            with pytest.raises(CalledProcessError) as refused:
                release.kubectl(
                    *("drain", MACHINE, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_S}s")
                )
            assert "disruption budget" in str(refused.value.stderr)
            assert len(release.ready()) == 1
            assert len(release.ready("etcd")) == 2
            release.kubectl("uncordon", MACHINE)
            with timed(report, "from uncordon to two nodes and three members that are ready"):
                wait_for("both nodes are ready", lambda: len(release.ready()) == 2, HELM_WAIT_S)
                wait_for("etcd is whole", lambda: len(release.ready("etcd")) == 3, HELM_WAIT_S)
        report.append(tables.settle(client))


def test_what_is_uninstalled_leaves_the_tables_and_goes_on_when_it_is_back(
    release: Release, tables: ChangingTables, report: list[str]
) -> None:
    release.helm("uninstall", RELEASE, "--wait", f"--timeout={HELM_WAIT_S}s")
    wait_for("no pod is left", lambda: not release.pods() and not release.pods("etcd"))
    claims = json.loads(release.kubectl("get", "persistentvolumeclaims", "--output", "json"))["items"]
    assert len(claims) == 4
    for each in tables.tables:
        each.check()
    with tables.changing():
        time.sleep(LOADED_S)
    with timed(report, "install again"):
        release.install(1)
    with release.connect() as client:
        report.append(tables.settle(client))


@contextmanager
def restarting(release: Release) -> Iterator[None]:
    """Every node is replaced in the meantime."""
    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(release.restart)
        yield
        restarted.result()


def restarts(release: Release, pod: str) -> int:
    (found,) = (each for each in release.pods() if each["metadata"]["name"] == pod)
    return int(found["status"]["containerStatuses"][0]["restartCount"])
