"""`iscp-admin consumer`: the kinds of consumer that jobs may name."""

from __future__ import annotations

import dataclasses

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import anywhere, invocation
from iscp.cli.shell.drawing import table
from iscp.cli.shell.invocation import Invocation


@click.group()
@anywhere
def consumer() -> None:
    """See what kinds of jobs there are."""


@consumer.command("list")
@invocation
def list_consumers(invocation: Invocation, /) -> None:
    """Show the kinds that `job register --consumer` takes, iscp's own and others, and what each does.

    They are those of the owner; all nodes of a cluster should have the same.
    """
    with invocation.client() as client:
        kinds = client.operator.consumers()
    if not render.show([dataclasses.asdict(each) for each in kinds], invocation.output):
        rows = [(each.name, each.fault or each.about, "" if each.own else each.package) for each in kinds]
        table(("KIND", "ABOUT", "PACKAGE"), rows, wide=invocation.wide)
