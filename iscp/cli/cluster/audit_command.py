"""`iscp-admin audit`: who changed what."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import DURATION, LIMIT, invocation
from iscp.cli.shell.completion import ACCOUNT
from iscp.cli.shell.drawing import table
from iscp.cli.shell.invocation import Invocation


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
