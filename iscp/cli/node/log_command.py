"""The commands `iscp log`: what a person does to a job log that no owner can begin with, or after an upgrade.

The options by which commands that work at the storage itself, beside or without nodes, find a cluster's job log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import anywhere_output
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.terminal import say
from iscp.model.values.errors import ConfigurationError

if TYPE_CHECKING:
    from iscp.etcd.owner_keys import EtcdLogMarks


F = TypeVar("F", bound=Callable[..., Any])


def config_option(about: str, *, exists: bool = False) -> Callable[[F], F]:
    """Return the option --config, as `file`, which has to be there if `exists`."""
    path = click.Path(dir_okay=False, exists=exists, path_type=Path)
    return click.option("--config", "file", type=path, metavar="FILE", help=about)


def home_options(data: str, config: str) -> Callable[[F], F]:
    """Return --data and --config, of which a command needs one (`require_one_home`), with what their help says."""
    path = click.Path(file_okay=False, exists=True, path_type=Path)
    data_option = click.option("--data", type=path, metavar="DIR", help=data)
    return lambda command: data_option(config_option(config)(command))


def require_one_home(data: Path | None, file: Path | None) -> None:
    """Raises click.UsageError unless exactly one of both is given."""
    if (data is None) == (file is None):
        raise click.UsageError("give either --data or --config")


@click.group()
def log() -> None:
    """Repair the job log, or raise its format."""


@log.command()
@home_options(
    "The directory of `iscp up`, which must not run.", "A node's configuration; no node of the cluster may run."
)
@anywhere_output
def repair(invocation: Invocation, /, data: Path | None, file: Path | None) -> None:
    """End the job log before its last commit, if that is torn or lost and all else is whole.

    A damaged history of iterations is renamed too, and another begins: nothing is decided by it.
    After rows that somebody else removed it begins the log with a checkpoint, if commits of iscp follow.
    A torn commit is renamed, never deleted; nobody was answered for one that tore while it was written. Of one that was
    acknowledged, what it held is given up: the command says so.
    """
    from iscp.app.settings import load_settings
    from iscp.cli.node.local_cluster import hold_directory, layout_of, marks_at, marks_of
    from iscp.storage.s3_settings import enter_s3

    require_one_home(data, file)
    if data is not None:
        layout = layout_of(data)
        with hold_directory(layout), marks_of(layout) as marks:
            _repair(invocation, str(layout.job_log), marks)
    else:
        config = load_settings(file, os.environ)
        enter_s3(config.storage.s3)
        with marks_at(config) as marks:
            _repair(invocation, config.log.uri, marks)


@log.command()
@home_options(
    "The directory of `iscp up`, which must not run.", "A node's configuration; nodes may run, none of them earlier."
)
@anywhere_output
def upgrade(invocation: Invocation, /, data: Path | None, file: Path | None) -> None:
    """Raise the job log to the format of this release, once no node of the release before is to run any more.

    Until then it stays of the format before, which nodes of both releases read and write.
    """
    from iscp.app.settings import load_settings
    from iscp.cli.node.local_cluster import hold_directory, layout_of, refuse_earlier_nodes
    from iscp.delta.joblog.log_opening import upgrade_job_log
    from iscp.delta.joblog.log_schema import FORMAT
    from iscp.storage.s3_settings import enter_s3

    require_one_home(data, file)
    if data is not None:
        layout = layout_of(data)
        with hold_directory(layout):
            before = upgrade_job_log(str(layout.job_log))
    else:
        config = load_settings(file, os.environ)
        enter_s3(config.storage.s3)
        refuse_earlier_nodes(config)
        before = upgrade_job_log(config.log.uri)
    if render.show({"format_before": before, "format": FORMAT}, invocation.output):
        return
    text = f"is of format {FORMAT} already" if before == FORMAT else f"was of format {before}, and is of {FORMAT} now"
    say(f"the job log {text}")


def _repair(invocation: Invocation, uri: str, marks: EtcdLogMarks | None) -> None:
    """Repair the log, and say each step as it is done, for those who read no JSON; they get all of it at the end."""
    from iscp.delta.joblog.delta_job_log import repair_job_log, set_damaged_history_aside

    plain = invocation.for_people
    aside = set_damaged_history_aside(uri)
    if aside and plain:
        say(f"the history is renamed to {aside}; another begins")
    reached = marks.load() if marks else -1
    repaired = repair_job_log(uri, reached)
    if repaired is None:
        if not aside:
            raise ConfigurationError(f"nothing is wrong with the job log at {uri}")
        render.show({"history_renamed": aside, "renamed": "", "given_up_to": -1, "version": -1}, invocation.output)
        return
    if repaired.renamed and plain:
        say(f"renamed to {repaired.renamed}")
    given_up = marks is not None and reached > repaired.version
    if marks is not None and given_up:
        marks.accept(repaired.version)
        if plain:
            say(f"given up: what was acknowledged after version {repaired.version}, up to {reached}")
    row = {"history_renamed": aside, "renamed": repaired.renamed, "given_up_to": reached if given_up else -1}
    if not render.show({**row, "version": repaired.version}, invocation.output):
        say(f"the job log ends at version {repaired.version} now")
