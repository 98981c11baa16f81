"""The commands `iscp-admin token`, by which clients become known to a cluster, and `iscp-admin audit`, which shows who
changed what.

`iscp-admin token bootstrap` makes the first token of a cluster. The command writes to etcd itself and calls no node, as
no caller is known yet whom a node would let make a token.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from iscp.cli.node.node_commands import config_option
from iscp.cli.shell import render
from iscp.cli.shell.arguments import ACCOUNT, DURATION, LIMIT, anywhere, anywhere_output, invocation
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.terminal import say, table
from iscp.model.access.service_table import Role
from iscp.model.values.errors import ConfigurationError

if TYPE_CHECKING:
    from iscp.model.access.authorization import TokenRecord


TTL_DEFAULT = "90d"
"""The time that a token is valid if `--ttl` does not say it."""

_account = click.option("--account", type=ACCOUNT, metavar="A", default="", help="The tenant.  [default: the caller's]")


@click.group()
@anywhere
def token() -> None:
    """Make and revoke tokens, by which clients are known; for admins of an account."""


@token.command()
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.VIEWER.value,
    show_default=True,
    help="What its bearer may do.",
)
@click.option("--ttl", "ttl_s", type=DURATION, default=TTL_DEFAULT, show_default=True, help="How long it is valid.")
@click.option("--note", metavar="TEXT", default="", help="What it is for.")
@_account
@invocation
def create(invocation: Invocation, /, role: str, ttl_s: float, note: str, account: str) -> None:
    """Make a token, and print it: it is kept nowhere, and cannot be shown again."""
    with invocation.client() as client:
        secret, record = client.access.create_token(role, ttl_s=ttl_s, account=account, note=note)
    if render.show({"token": secret, **token_row(record)}, invocation.output):
        return
    say(f"{record.token_id} is {record.role} of {record.account} until {render.moment(record.expires_at_s)}", err=True)
    say(secret)


@token.command("list")
@_account
@invocation
def list_tokens(invocation: Invocation, /, account: str) -> None:
    """Show the tokens of an account, and of the cluster-wide account all, without their secrets."""
    with invocation.client() as client:
        records = client.access.tokens(account=account)
    if render.show([token_row(record) for record in records], invocation.output):
        return
    columns = ("ID", "ACCOUNT", "ROLE", "STATE", "CREATED", "ENDS", "CREATED BY", "NOTE")
    rows = [
        (
            *(record.token_id, record.account, record.role.value, _state(record)),
            *(render.moment(record.created_at_s), render.moment(record.expires_at_s)),
            *(record.created_by, record.note),
        )
        for record in records
    ]
    table(columns, rows, spare=("CREATED BY", "CREATED", "NOTE"), wide=invocation.wide)


@token.command()
@click.argument("token_id", metavar="ID")
@_account
@invocation
def revoke(invocation: Invocation, /, token_id: str, account: str) -> None:
    """Revoke the token ID: within seconds all nodes refuse it, and calls of its bearer that wait are ended.

    ID may be the token itself, of which nothing else is sent or shown.
    """
    from iscp.model.access.authorization import id_of

    token_id = id_of(token_id) or token_id
    with invocation.client() as client:
        revoked = client.access.revoke_token(token_id, account=account)
    if not render.show({"id": token_id, "revoked": revoked}, invocation.output):
        say(f"{token_id} is revoked" if revoked else f"there is no token {token_id}, or no longer")


def token_row(record: TokenRecord) -> dict[str, Any]:
    """Return a token without its secret, as JSON has it."""
    return {
        "id": record.token_id,
        "account": record.account,
        "role": record.role.value,
        "state": _state(record),
        "created_at_s": record.created_at_s,
        "expires_at_s": record.expires_at_s,
        "created_by": record.created_by,
        "note": record.note,
    }


def _state(record: TokenRecord) -> str:
    return "ready" if time.time() < record.expires_at_s else "ended"


@click.command()
@click.option("--account", type=ACCOUNT, metavar="A", default="", help="The tenant.  [default: the caller's, or all]")
@click.option("--since", "since_s", type=DURATION, default=None, help="Only calls of so long until now, as 2h.")
@click.option("--method", metavar="M", default="", help="Only calls of this method, as Register.")
@click.option("--limit", type=LIMIT, default=100, show_default=True, metavar="N", help="The newest N calls.")
@invocation
def audit(invocation: Invocation, /, account: str, since_s: float | None, method: str, limit: int) -> None:
    """Show calls that changed something, newest first: who made them, from where, and how they ended.

    Admins see those of their account; those of the cluster-wide account see all.
    """
    since_at_s = 0.0 if since_s is None else max(0.0, time.time() - since_s)
    with invocation.client() as client:
        entries = client.access.audit(account=account, since_s=since_at_s, method=method, limit=limit)
    if render.show([asdict(entry) for entry in entries], invocation.output):
        return
    columns = ("AT", "ACCOUNT", "CALLER", "ROLE", "METHOD", "RESULT", "WHAT", "BY", "FROM", "NODE", "REQUEST")
    rows = [
        (
            *(render.moment(each.at_s), each.account, f"{each.caller_account}/{each.caller}", each.caller_role),
            *(each.method.rpartition("/")[2], each.result, each.what, each.known_by, each.peer, each.node_id),
            each.request_id,
        )
        for each in entries
    ]
    table(columns, rows, spare=("REQUEST", "NODE", "FROM", "BY", "WHAT", "ROLE"), wide=invocation.wide)


@click.command()
@config_option("A node's configuration; ISCP_* variables win over it.", exists=True)
@click.option("--ttl", "ttl_s", type=DURATION, default="1d", show_default=True, help="How long it is valid.")
@anywhere_output
def bootstrap(invocation: Invocation, /, file: Path | None, ttl_s: float) -> None:
    """Print the first token, of an admin of the cluster-wide account, kept in etcd with the rights of a node.

    It is for machines that reach etcd, and calls no node.
    """
    import secrets

    from iscp.app.settings import load_settings
    from iscp.etcd.client import EtcdClient
    from iscp.etcd.keys import EtcdSettings, Keys
    from iscp.etcd.watched_keys import EtcdTokens
    from iscp.server.access.known_callers import create_token
    from iscp.system.threads import SystemClock

    try:
        config, clock = load_settings(file, os.environ), SystemClock()
    except ConfigurationError as error:
        if error.field:
            raise
        remedy = "Give the configuration of a node by --config, or its variables"  # several settings are wrong
        raise ConfigurationError(error.message, about="--config", remedy=remedy) from error
    account = config.security.cluster_account
    with EtcdClient(EtcdSettings.of(config.etcd), clock) as etcd:
        store = EtcdTokens(etcd, Keys(config.etcd_prefix), account)
        token, record = create_token(
            store, account, Role.ADMIN, ttl_s, "made by iscp-admin token bootstrap", "", clock, secrets.token_hex
        )
    if render.show({"token": token, **token_row(record)}, invocation.output):
        return
    say(f"{record.token_id} is {record.role} of {account}; revoke it once there are others", err=True)
    say(token)


@click.group("token", hidden=True)
def node_token() -> None:
    """Make the first token of a cluster, as `iscp-admin token bootstrap` does, which was here before."""


node_token.add_command(bootstrap)
