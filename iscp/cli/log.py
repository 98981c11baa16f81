"""The commands `iscp log`: what a person does to a job log that no owner can begin with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from iscp.core.errors import ConfigurationError


@click.group()
def log() -> None:
    """Repair the job log."""


@log.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="The directory of `iscp up`, which must not run.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="A node's configuration; no node of the cluster may run.",
)
def repair(data: Path | None, file: Path | None) -> None:
    """Put the job log's last commit aside, if it is torn and all else is whole.

    Nobody was answered for a commit that tore while it was written. It is kept under another name, never deleted.
    """
    from iscp.adapters.delta.joblog import put_torn_commit_aside
    from iscp.cli.stack import Layout, locked

    if (data is None) == (file is None):
        raise click.UsageError("give either --data or --config")
    if data is not None:
        layout = Layout(data.absolute())
        with locked(layout):
            aside = put_torn_commit_aside(str(layout.job_log))
    else:
        aside = put_torn_commit_aside(_log_of_stopped_cluster(file))
    click.echo(f"put aside as {aside}; the job log ends before it now")


def _log_of_stopped_cluster(file: Path | None) -> str:
    """The URI of its job log; raises ConfigurationError where a node leads the cluster, Unavailable without etcd."""
    from iscp.adapters.clock import SystemClock
    from iscp.adapters.etcd.client import EtcdClient
    from iscp.adapters.etcd.election import EtcdElection
    from iscp.adapters.etcd.keys import Keys
    from iscp.adapters.etcd.values import EtcdSettings
    from iscp.adapters.settings import load_settings

    config, clock = load_settings(file, os.environ), SystemClock()
    client = EtcdClient(EtcdSettings.of(config.etcd), clock)
    try:
        ttl_s, margin_s = config.etcd.lease_ttl_s, config.etcd.margin_s
        leader = EtcdElection(client, Keys(config.etcd_prefix), clock, ttl_s=ttl_s, margin_s=margin_s).leader()
    finally:
        client.close()
    if leader is not None:
        raise ConfigurationError(
            f"{leader.node_id} leads the cluster", field="--config", remedy="Stop all nodes, and wait for their leases"
        )
    return config.log.uri
