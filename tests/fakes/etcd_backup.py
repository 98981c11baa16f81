"""Backups of etcd as its operators take them: `etcdctl snapshot save`, and `etcdutl snapshot restore`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from iscp.etcd.server import HOST, EtcdServer, find_etcd
from iscp.ports.system import Clock

ETCD = find_etcd({})
"""The package's, which brings the tools of the same version; another version's may not read what they write."""

NAME, TOKEN = "iscp", "etcd-cluster"
"""Of a server, where nothing else is said."""


def save(endpoint: str, to: Path) -> Path:
    _run("etcdctl", f"--endpoints={endpoint}", "snapshot", "save", str(to))
    return to


def restore(snapshot: Path, data_dir: Path, peer_port: int, token: str = TOKEN) -> None:
    """In the place of what is in the directory of a server that has ended.

    With another `token` the cluster has another id.
    """
    member_data, peer_url = data_dir / "member-data", f"http://{HOST}:{peer_port}"
    shutil.rmtree(member_data)
    _run(
        "etcdutl",
        "snapshot",
        "restore",
        str(snapshot),
        f"--data-dir={member_data}",
        f"--name={NAME}",
        f"--initial-cluster={NAME}={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster-token={token}",
    )


def start_again(server: EtcdServer, clock: Clock) -> EtcdServer:
    """At the same address, and on what lies in its directory."""
    return EtcdServer.start(server.data_dir, server.client_port, server.peer_port, clock=clock, binary=ETCD)


def _run(tool: str, *arguments: str) -> None:
    done = subprocess.run([ETCD.with_name(tool), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
