"""A cluster that is to stand still, or to be of one release, while a person works at its job log, and what its etcd
knows of the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.election import EtcdElection
from iscp.adapters.etcd.keys import Keys, snapshot_of
from iscp.adapters.etcd.log_marks import EtcdLogMarks
from iscp.adapters.etcd.server import EtcdServer
from iscp.adapters.etcd.values import EtcdSettings
from iscp.adapters.system.clock import SystemClock
from iscp.bootstrap.configuration.settings import load_settings
from iscp.cli.node.data_directory import Layout
from iscp.core.settings.config import NodeConfig
from iscp.core.values.errors import ConfigurationError, Unavailable
from iscp.core.values.members import WIRE_FORMAT


def layout_of(data: Path) -> Layout:
    """That of `iscp up`; raises ConfigurationError where it has never run there."""
    layout = Layout(data.absolute())
    if not layout.job_log.is_dir() and not layout.etcd.is_dir():
        raise ConfigurationError(
            f"there is no cluster in {data}", about="--data", remedy="Name the directory of `iscp up`"
        )
    return layout


def config_of(layout: Layout) -> NodeConfig | None:
    """Return the last configuration of the first node of `iscp up`; None if it has never run."""
    file = layout.config("iscp-0")
    return load_settings(file, os.environ) if file.is_file() else None


@contextmanager
def marks_of(layout: Layout) -> Iterator[EtcdLogMarks | None]:
    """Yield what etcd of a stopped `iscp up` knows of the log; None if it has never run, or its data is gone."""
    config = config_of(layout)
    if not layout.etcd.is_dir() or config is None:
        yield None
        return
    server = EtcdServer.start(layout.etcd, clock=SystemClock())
    try:
        endpoints = (f"127.0.0.1:{server.client_port}",)
        # Nothing renews the leases of a cluster that was killed, but they come back with all of their time.
        with marks_at(replace(config, etcd=replace(config.etcd, endpoints=endpoints)), stopped=True) as marks:
            yield marks
    finally:
        server.stop()


@contextmanager
def marks_at(config: NodeConfig, stopped: bool = False) -> Iterator[EtcdLogMarks]:
    """Yield what etcd knows of the log.

    Raises ConfigurationError if a node is registered or leads the cluster, unless all are known to have `stopped`;
    Unavailable.
    """
    clock, keys = SystemClock(), Keys(config.etcd_prefix)
    client = EtcdClient(EtcdSettings.of(config.etcd), clock)
    try:
        election = EtcdElection(client, keys, clock, lease_ttl_s=config.etcd.lease_ttl_s, margin_s=config.etcd.margin_s)
        if not stopped:
            _refuse_running(client, election, keys)
        yield EtcdLogMarks(client, election, keys)
    finally:
        client.close()


def refuse_earlier_nodes(config: NodeConfig) -> None:
    """Raise ConfigurationError where a node is registered that speaks an earlier wire format; Unavailable."""
    client = EtcdClient(EtcdSettings.of(config.etcd), SystemClock())
    try:
        nodes = snapshot_of(client.list_prefix(Keys(config.etcd_prefix).nodes).items)
    except Unavailable as error:
        raise Unavailable(
            f"etcd does not say which nodes run: {error.message}", about="etcd.endpoints", remedy="Start etcd"
        ) from error
    finally:
        client.close()
    if earlier := [node.node_id for node in nodes if node.wire_format < WIRE_FORMAT]:
        raise ConfigurationError(
            f"{', '.join(earlier)} of an earlier release could not be owner any more",
            about="--config",
            remedy="Upgrade all nodes first",
        )


def _refuse_running(client: EtcdClient, election: EtcdElection, keys: Keys) -> None:
    try:
        leader = election.leader()
        nodes = snapshot_of(client.list_prefix(keys.nodes).items)
    except Unavailable as error:
        raise Unavailable(
            f"etcd does not say whether a node runs: {error.message}",
            about="etcd.endpoints",
            remedy="Start etcd, an empty one if it is lost",
        ) from error
    why = f"{leader.node_id} leads the cluster" if leader else f"{nodes[0].node_id} is registered" if nodes else ""
    if why:
        raise ConfigurationError(why, about="--config", remedy="Stop all nodes, and wait for their leases")
