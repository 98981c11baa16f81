"""One node for all attacks: a process with everything but an engine, and its own etcd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.bare_cluster import BareCluster
from iscp.model.settings.config import GatewayConfig
from iscp.system.http_exchange import free_port
from tests.fakes.attacked_node import AttackedNode


@pytest.fixture(scope="package")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    cluster = BareCluster(tmp_path_factory.mktemp("attacked"), 1, 5)
    (node,) = cluster.members
    gateway = f"127.0.0.1:{free_port()}"
    node.config = replace(node.config, gateway=GatewayConfig(listen=gateway))
    try:
        cluster.start()
        child, told = node.child, node.told()
        assert child is not None
        assert told is not None
        yield AttackedNode(
            node.config.address,
            gateway,
            child.pid,
            lambda: child.poll() is None,
            node.log,
            node.config.etcd_prefix,
            node.name,
            told.epoch,
        )
    finally:
        cluster.stop()
