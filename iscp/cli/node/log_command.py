"""The commands `iscp log`: what a person does to a job log that no owner can begin with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iscp.core.errors import ConfigurationError

if TYPE_CHECKING:
    from iscp.adapters.etcd.log_marks import EtcdLogMarks
    from iscp.cli.node.data_directory import Layout
    from iscp.core.config import NodeConfig


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
    """End the job log before its last commit, if that is torn or lost and all else is whole.

    A damaged history of iterations is renamed too, and another begins: nothing is decided by it.
    After rows that somebody else removed it begins the log with a checkpoint, if commits of iscp follow.
    A torn commit is renamed, never deleted; nobody was answered for one that tore while it was written. Of one that was
    acknowledged, what it held is given up: the command says so.
    """
    from iscp.adapters.system.settings import load_settings
    from iscp.cli.node.data_directory import Layout, hold_directory

    if (data is None) == (file is None):
        raise click.UsageError("give either --data or --config")
    if data is not None:
        layout = Layout(data.absolute())
        if not layout.job_log.is_dir() and not layout.etcd.is_dir():
            raise ConfigurationError(
                f"there is no cluster in {data}", field="--data", remedy="Name the directory of `iscp up`"
            )
        with hold_directory(layout), _marks_of(layout) as marks:
            _repair(str(layout.job_log), marks)
    else:
        config = load_settings(file, os.environ)
        with _marks_at(config) as marks:
            _repair(config.log.uri, marks)


def _repair(uri: str, marks: EtcdLogMarks | None) -> None:
    from iscp.adapters.delta.joblog.delta_job_log import repair_job_log, set_damaged_history_aside

    if aside := set_damaged_history_aside(uri):
        click.echo(f"the history is renamed to {aside}; another begins")
    reached = marks.load() if marks else -1
    repaired = repair_job_log(uri, reached)
    if repaired is None:
        if not aside:
            raise ConfigurationError(f"nothing is wrong with the job log at {uri}")
        return
    if repaired.renamed:
        click.echo(f"renamed to {repaired.renamed}")
    if marks is not None and reached > repaired.version:
        marks.accept(repaired.version)
        click.echo(f"given up: what was acknowledged after version {repaired.version}, up to {reached}")
    click.echo(f"the job log ends at version {repaired.version} now")


@contextmanager
def _marks_of(layout: Layout) -> Iterator[EtcdLogMarks | None]:
    """What etcd of a stopped `iscp up` knows of the log; None where it has never run, or its data is gone."""
    from iscp.adapters.etcd.server import EtcdServer
    from iscp.adapters.system.clock import SystemClock
    from iscp.adapters.system.settings import load_settings

    file = layout.config("iscp-0")
    if not layout.etcd.is_dir() or not file.is_file():
        yield None
        return
    config = load_settings(file, os.environ)
    server = EtcdServer.start(layout.etcd, clock=SystemClock())
    try:
        endpoints = (f"127.0.0.1:{server.client_port}",)
        # Nothing renews the candidacies of a cluster that was killed, but they come back with all of their time.
        with _marks_at(replace(config, etcd=replace(config.etcd, endpoints=endpoints)), stopped=True) as marks:
            yield marks
    finally:
        server.stop()


@contextmanager
def _marks_at(config: NodeConfig, stopped: bool = False) -> Iterator[EtcdLogMarks]:
    """What etcd knows of the log.

    Raises ConfigurationError where a node leads the cluster, unless it is known to have `stopped`; Unavailable.
    """
    from iscp.adapters.etcd.client import EtcdClient
    from iscp.adapters.etcd.election import EtcdElection
    from iscp.adapters.etcd.keys import Keys
    from iscp.adapters.etcd.log_marks import EtcdLogMarks
    from iscp.adapters.etcd.values import EtcdSettings
    from iscp.adapters.system.clock import SystemClock

    clock, keys = SystemClock(), Keys(config.etcd_prefix)
    client = EtcdClient(EtcdSettings.of(config.etcd), clock)
    try:
        election = EtcdElection(client, keys, clock, lease_ttl_s=config.etcd.lease_ttl_s, margin_s=config.etcd.margin_s)
        leader = None if stopped else election.leader()
        if leader is not None:
            raise ConfigurationError(
                f"{leader.node_id} leads the cluster",
                field="--config",
                remedy="Stop all nodes, and wait for their leases",
            )
        yield EtcdLogMarks(client, election, keys)
    finally:
        client.close()
