"""`iscp-admin token`: tokens by which clients are known."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import DURATION, anywhere, invocation
from iscp.cli.shell.completion import ACCOUNT
from iscp.cli.shell.drawing import table
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.core.values.access_roles import Role

if TYPE_CHECKING:
    from iscp.core.access.access_token import TokenRecord

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
    from iscp.core.access.access_token import id_of

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
