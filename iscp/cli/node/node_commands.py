"""Commands that work on this machine beside the nodes: `iscp log` repairs or upgrades a job log, and `iscp certs` makes
an authority and certificates for development and trials.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import WholeNumber, anywhere_output
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.terminal import say
from iscp.model.values.errors import ConfigurationError

if TYPE_CHECKING:
    from iscp.etcd.owner_keys import EtcdLogMarks


# --- options that find a job log --------------------------------------------------------------------------------------
# Commands that work at the storage itself, beside or without nodes, find a cluster's job log by these options.

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


# --- the job log ------------------------------------------------------------------------------------------------------
# The commands `iscp log` are for a job log with which no owner can begin, and for the time after an upgrade.


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


# --- certificates -----------------------------------------------------------------------------------------------------

DAYS_MAX = 36_500
"""Days for which a certificate may be made; more are refused."""

_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("certs"),
    show_default=True,
    metavar="DIR",
    help="Where the authority and its certificates lie.",
)


@click.group()
def certs() -> None:
    """Make certificates for development: an authority, and what nodes, clients and etcd need of it.

    Whoever can read DIR/ca.key can become a node: production has an authority of its own.
    """


@certs.command()
@_directory
@click.option("--days", type=WholeNumber(1, DAYS_MAX), default=3650, show_default=True, metavar="N", help="Valid days.")
@anywhere_output
def init(invocation: Invocation, /, directory: Path, days: int) -> None:
    """Make an authority: ca.pem, which all trust, and ca.key, which signs."""
    from iscp.system.tls.development_authority import DevelopmentAuthority

    DevelopmentAuthority.init(directory, days)
    if not render.show({"directory": str(directory)}, invocation.output):
        say(f"the authority is in {directory}: give ca.pem to all, and ca.key to nobody")


@certs.command("issue")
@click.argument("kind", type=click.Choice(["node", "client", "etcd"]))
@click.argument("name", metavar="NAME")
@_directory
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="A name or address it is called by; repeatable.")
@click.option("--cluster", default="default", show_default=True, metavar="NAME", help="A node's cluster.")
@click.option("--days", type=WholeNumber(1, DAYS_MAX), default=365, show_default=True, metavar="N", help="Valid days.")
@anywhere_output
def make(
    invocation: Invocation,
    /,
    kind: str,
    name: str,
    directory: Path,
    hosts: tuple[str, ...],
    cluster: str,
    days: int,
) -> None:
    """Make a key and a certificate, NAME.key and NAME.pem, for a node, a client or a member of etcd.

    A node's names its cluster's nodes; localhost is among the hosts of a server.
    """
    from iscp.system.tls.development_authority import CertificateKind, CertificateRequest, DevelopmentAuthority

    wanted = CertificateRequest(CertificateKind(kind), name, hosts, f"node.{cluster}.iscp")
    _show(invocation, directory, name, DevelopmentAuthority(directory).make(wanted, days))


@certs.command()
@click.argument("name", metavar="NAME")
@_directory
@click.option("--days", type=WholeNumber(1, DAYS_MAX), default=365, show_default=True, metavar="N", help="Valid days.")
@click.option("--new-key", is_flag=True, help="Make another key too, as after the old one was seen by somebody.")
@anywhere_output
def renew(invocation: Invocation, /, name: str, directory: Path, days: int, new_key: bool) -> None:
    """Make another certificate of the same names in place of NAME.pem, which nodes and clients take up as they run."""
    from iscp.system.tls.development_authority import DevelopmentAuthority

    _show(invocation, directory, name, DevelopmentAuthority(directory).renew(name, days, new_key))


def _show(invocation: Invocation, directory: Path, name: str, end: datetime) -> None:
    stem = directory / name
    row = {"cert_file": f"{stem}.pem", "key_file": f"{stem}.key", "valid_until_s": end.timestamp()}
    if not render.show(row, invocation.output):
        say(f"{stem}.pem, with its key beside it, is valid until {end:%Y-%m-%d %H:%M} UTC")
