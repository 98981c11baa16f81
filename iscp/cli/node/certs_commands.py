"""The commands `iscp certs`: an authority and certificates for development and trials."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import WholeNumber, anywhere_output
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.terminal import say

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
