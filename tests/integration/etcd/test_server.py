"""Finding an etcd, starting it, and that it does not outlive its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from iscp.app.coordination_parts import Cluster
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings
from iscp.etcd.server import EtcdServer, find_etcd, release_fault, release_warning
from iscp.model.settings.config import EtcdConfig, JobLogConfig, NodeConfig
from iscp.model.values.errors import ConfigurationError, Unavailable
from iscp.ports.engine import NO_DEATHS
from iscp.ports.system import Clock
from tests.fakes.waiting import process_state

_PARENT = """
import sys, time
from pathlib import Path
from iscp.system.threads import SystemClock
from iscp.etcd.server import EtcdServer

print(EtcdServer.start(Path(sys.argv[1]), clock=SystemClock()).pid, flush=True)
time.sleep(60)
"""


def test_the_variable_wins_over_the_path_and_the_path_over_the_package(tmp_path: Path) -> None:
    packaged = find_etcd({})
    assert packaged.parent.name == "etcdbin"
    on_path = tmp_path / "etcd"
    on_path.symlink_to(packaged)
    assert find_etcd({"PATH": str(tmp_path)}) == on_path
    assert find_etcd({"PATH": str(tmp_path), "ISCP_ETCD": str(packaged)}) == packaged
    with pytest.raises(ConfigurationError, match="ISCP_ETCD"):
        find_etcd({"ISCP_ETCD": str(tmp_path / "none")})


def test_releases_that_can_damage_data_are_known() -> None:
    releases = ("3.5.0", "3.5.2", "3.5.3", "3.5.4", "3.5.5", "3.5.6", "3.4.21", "3.4.23", "3.5.12", "3.6.16")
    assert [version for version in releases if release_fault(version)] == ["3.5.0", "3.5.2", "3.5.3"]
    assert [version for version in releases if release_warning(version)] == ["3.5.4", "3.5.5", "3.4.21"]


def test_a_node_refuses_them_but_for_trials(shared_server: EtcdServer, clock: Clock) -> None:
    etcd = EtcdConfig(endpoints=(shared_server.endpoint,), prefix="/of-releases")
    config = NodeConfig(node_id="n", log=JobLogConfig(uri="/log"), etcd=etcd)
    trial = replace(config, etcd=replace(etcd, accept_faulty_release=True))
    Cluster.connect(trial, clock, NO_DEATHS).etcd.close()
    with EtcdClient(EtcdSettings.of(etcd), clock) as client:
        faulty = release_fault(client.status().version)
    if not faulty:  # another server than PyPI's is on the PATH
        Cluster.connect(config, clock, NO_DEATHS).etcd.close()
        return
    with pytest.raises(ConfigurationError, match="can corrupt its data") as refused:
        Cluster.connect(config, clock, NO_DEATHS)
    assert (refused.value.field, "accept_faulty_release" in refused.value.remedy) == ("etcd.endpoints", True)


def test_on_the_same_directory_it_goes_on_where_it_was_under_any_ports(
    tmp_path: Path, clock: Clock, connect: Callable[..., EtcdClient]
) -> None:
    first = EtcdServer.start(tmp_path, clock=clock)
    connect(first.endpoint).put("/k", b"1")
    first.stop()
    assert not first.alive
    second = EtcdServer.start(tmp_path, clock=clock)
    found = connect(second.endpoint).get("/k")
    assert found is not None
    second.stop()


def test_a_port_that_another_holds_is_refused(tmp_path: Path, clock: Clock, shared_server: EtcdServer) -> None:
    """The other one's answer must not pass for that of the new server."""
    with pytest.raises(Unavailable, match=str(shared_server.client_port)):
        EtcdServer.start(tmp_path, shared_server.client_port, clock=clock)


def test_one_that_cannot_start_says_why(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(Unavailable, match="no-such-flag"):
        EtcdServer.start(tmp_path, clock=clock, extra_args=("--no-such-flag",))


def test_it_ends_with_its_parent(tmp_path: Path, eventually: Callable[..., float]) -> None:
    """Also with one that is killed; and it stands apart from the terminal's Ctrl-C."""
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert os.getsid(pid) == pid
    parent.kill()
    parent.wait()
    eventually(lambda: process_state(pid) in ("", "Z"))
