"""Two real nodes and etcd, by certificates alone; everything is renewed while users call and nodes come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from benchmarks.bare_cluster import BareCluster, until
from iscp.client.admin_client import Client
from iscp.etcd.channels import EtcdUnavailable
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings
from iscp.model.values.errors import IscpError, NotAuthorized
from iscp.server.node.owner_streams import describe
from iscp.system.threads import SystemClock
from iscp.system.tls.certificate_watch import CHECK_S
from iscp.system.tls.development_authority import DevelopmentAuthority

SHARDS = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareCluster]:
    """Shared: the last test renews what it has."""
    made = BareCluster(tmp_path_factory.mktemp("cluster"), 2, SHARDS, tls=True)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_who_has_no_certificate_reaches_neither_nodes_nor_etcd(cluster: BareCluster) -> None:
    endpoint = cluster.members[0].config.etcd.endpoints[0]
    with (
        EtcdClient(EtcdSettings((endpoint,), timeout_s=1.0), SystemClock()) as etcd,
        pytest.raises(EtcdUnavailable, match="ca_file, cert_file and key_file"),
    ):
        etcd.get("/")
    with pytest.raises(NotAuthorized):
        describe(cluster.members[0].config.address, tls=cluster.files("client").read())


@pytest.mark.further  # each time: test_renewing_channel.py, and the secured cluster above
def test_renewals_disturb_neither_users_nor_nodes_nor_etcd(cluster: BareCluster) -> None:
    owner = cluster.owner()
    (other,) = (node for node in cluster.members if node is not owner)
    stop, failures, calls = threading.Event(), list[IscpError](), 0

    def use() -> None:
        nonlocal calls
        with Client(other.config.address, tls=cluster.files("client"), timeout_s=30) as client:
            while not stop.wait(0.005):
                try:
                    assert len(client.jobs()) == SHARDS  # by way of the owner, which alone knows them
                    calls += 1
                except IscpError as error:
                    failures.append(error)

    user = threading.Thread(target=use)
    user.start()
    until("calls are made", lambda: calls > 10)
    authority = DevelopmentAuthority(cluster.certs)
    for name in ("n0", "n1", "watcher", "client", "etcd"):
        authority.renew(name, new_key=True)
    done = calls
    assert not stop.wait(2 * CHECK_S)
    until("calls go on", lambda: calls > done + 10)
    cluster.restart_etcd()  # all connections to it are new
    until("all goes on with etcd", cluster.settled)
    for node in cluster.members:
        until(
            "new connections have the new certificate",
            lambda node=node: '"tls.renewed"' in node.log.read_text(),  # type: ignore[misc]
        )
    stop.set()
    user.join()
    assert failures == []
    other.kill()
    other.start()
    until("a node comes back, with the new certificate", cluster.settled)
