"""`iscp-admin backup`: copies of the job log, and the way back; at the storage itself, not through nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iscp import __version__
from iscp.cli.node.node_commands import home_options, require_one_home
from iscp.cli.shell import render
from iscp.cli.shell.arguments import TARGET, anywhere, invocation
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.terminal import say
from iscp.model.values.errors import ConfigurationError

if TYPE_CHECKING:
    from iscp.delta.joblog.log_backup import BackupManifest
    from iscp.model.settings.config import NodeConfig

_home = home_options("The directory of `iscp up`.", "A node's configuration, which says where the job log is.")
_stopped = home_options(
    "The directory of `iscp up`, which must not run.", "A node's configuration; no node of the cluster may run."
)


@click.group()
@anywhere
def backup() -> None:
    """Back the job log up, and restore it."""


@backup.command()
@click.argument("destination", type=TARGET, metavar="DEST")
@_home
@invocation
def create(invocation: Invocation, /, destination: str, data: Path | None, file: Path | None) -> None:
    """Copy the job log to DEST, a directory or a prefix of S3 that holds no backup; nodes may run.

    It is that of one version, and read back before it counts: what has no manifest.json is no backup.
    The history of iterations is not in it.
    """
    from iscp.delta.joblog.log_backup import create_backup
    from iscp.delta.joblog.log_opening import LOG_TABLE

    uri, _ = _log_of(data, file)
    manifest = create_backup(f"{uri}/{LOG_TABLE}", destination, time.time(), __version__)
    if not render.show(_row(destination, manifest), invocation.output):
        say(f"{destination} holds the job log at version {manifest.version}, with {manifest.jobs} jobs")


@backup.command()
@click.argument("source", type=TARGET, metavar="SRC")
@_home
@invocation
def verify(invocation: Invocation, /, source: str, data: Path | None, file: Path | None) -> None:
    """Read the backup SRC whole, and say what is in it. --data or --config say where S3 is."""
    from iscp.delta.joblog.log_backup import read_backup

    _log_of(data, file)
    manifest = read_backup(source).manifest
    if not render.show(_row(source, manifest), invocation.output):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(manifest.taken_at_s))
        say(f"{source} is whole: the job log at version {manifest.version}, with {manifest.jobs} jobs, {at} UTC")


@backup.command()
@click.argument("source", type=TARGET, metavar="SRC")
@click.option("--pause", is_flag=True, help="With all jobs paused, to drop those that are to run no more.")
@_stopped
@invocation
def restore(invocation: Invocation, /, source: str, pause: bool, data: Path | None, file: Path | None) -> None:
    """Make the job log of the backup SRC, where none is and no node runs.

    Each job goes on from where its target is. What was requested after the backup is not known: see docs/recovery.md.
    """
    from iscp.delta.joblog.log_backup import read_backup, restore_backup, with_paused_jobs
    from iscp.delta.joblog.log_opening import LOG_TABLE

    uri, config = _log_of(data, file)
    found = read_backup(source)
    with _hold_still(data, config) as reached:
        cluster = config.cluster if config else ""
        wanted = with_paused_jobs(found) if pause else found
        restored = restore_backup(f"{uri}/{LOG_TABLE}", wanted, cluster, reached, int(time.time() * 1000))
    manifest = found.manifest
    row = _row(source, manifest) | {"restored_version": restored.version, "reached": reached}
    if render.show(row, invocation.output):
        return
    say(f"the job log has {manifest.jobs} jobs again, as of version {manifest.version}")
    if reached > manifest.version:
        say(f"given up: what was acknowledged after version {manifest.version}, up to {reached}")
    if pause:
        say("all jobs are paused: drop those that are to run no more, and resume the others")
    say(f"it goes on at version {restored.version}; start the nodes")


def _log_of(data: Path | None, file: Path | None) -> tuple[str, NodeConfig | None]:
    """Return where the job log is, and the configuration that says so; None for an `iscp up` that has none any more."""
    from iscp.app.settings import load_settings
    from iscp.storage.s3_settings import enter_s3

    require_one_home(data, file)
    if data is not None:
        from iscp.cli.node.local_cluster import config_of, layout_of

        layout = layout_of(data)
        uri, config = str(layout.job_log), config_of(layout)
    else:
        try:
            config = load_settings(file, os.environ)
        except ConfigurationError as error:
            error.field = error.field or "--config"
            raise
        uri = config.log.uri.rstrip("/")
    if config is not None:
        enter_s3(config.storage.s3)
    return uri, config


@contextmanager
def _hold_still(data: Path | None, config: NodeConfig | None) -> Iterator[int]:
    """Yield how far the log had come, as far as etcd knows (-1: nothing is known), for as long as no node may start.

    Raises ConfigurationError if one runs, Unavailable if nobody can say so.
    """
    from iscp.cli.node.local_cluster import hold_directory, layout_of, marks_at, marks_of

    if data is not None:
        layout = layout_of(data)
        with hold_directory(layout), marks_of(layout) as marks:
            yield marks.load() if marks else -1
    elif config is not None:
        with marks_at(config) as known:
            yield known.load()
    else:
        raise ConfigurationError("is not given", field="--config", remedy="Give --data or --config")


def _row(at: str, manifest: BackupManifest) -> render.Row:
    return {
        "id": at,
        "version": manifest.version,
        "jobs": manifest.jobs,
        "rows": manifest.rows,
        "bytes": manifest.size,
        "sha256": manifest.sha256,
        "taken_at_s": manifest.taken_at_s,
    }
