"""`iscp-admin build`: first snapshots of large tables, which all nodes build, and what operators want of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from iscp.cli.cluster.build_shapes import build_row, progress_line, show_bar, show_build, show_builds
from iscp.cli.shell import render
from iscp.cli.shell.arguments import (
    account_option,
    any_table_argument,
    anywhere,
    invocation,
    range_option,
    table_argument,
)
from iscp.cli.shell.completion import JOB_NAME
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.cli.shell.watch_option import repeat, watched
from iscp.core.build.api_builds import BuildView

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

_name = click.argument("name", type=JOB_NAME, metavar="[N]", required=False, default="")
_range = range_option("Only this range; see `build status`.")


@click.group()
@anywhere
def build() -> None:
    """See the first snapshots of large tables, which all nodes build, and steer them."""


@build.command("list")
@any_table_argument
@watched
@invocation
def build_list(invocation: Invocation, /, table: str | None) -> None:
    """Show what is built of table T, or of all: how far it is, how fast, and what is left."""
    with invocation.client() as client:
        views = client.builds.list(table or "")
    if not render.show([build_row(view) for view in views], invocation.output):
        show_builds(views, wide=invocation.wide)


@build.command("status")
@table_argument
@_name
@account_option
@watched
@invocation
def build_status(invocation: Invocation, /, table: str, name: str, account: str) -> None:
    """Show the builds of table T, or those that job N is in, with their tasks by node and by range."""
    views = _builds_of(invocation, table, name, account)
    if render.show([build_row(view) for view in views], invocation.output):
        return
    for number, view in enumerate(views):
        say("\n" * bool(number), nl=False)
        show_build(view, wide=invocation.wide)
    if not views:
        say(_nothing_built(table, name))


@build.command("watch")
@table_argument
@_name
@account_option
@invocation
def build_watch(invocation: Invocation, /, table: str, name: str, account: str) -> None:
    """Follow the builds of table T, or those that job N is in, until nothing is left to be built, or Ctrl-C.

    On a terminal as bars, elsewhere as lines.
    """
    repeat(lambda: _show_progress(invocation, table, name, account), invocation, apart=False)


def _show_progress(invocation: Invocation, table: str, name: str, account: str) -> bool:
    """Show the progress, and return whether the build is over."""
    views = _builds_of(invocation, table, name, account)
    if render.show([build_row(view) for view in views], invocation.output):
        return not views
    for view in views:
        if sys.stdout.isatty():
            show_bar(view)
        else:
            say(progress_line(view))
    if not views:
        say(_nothing_built(table, name))
    return not views


@build.command()
@table_argument
@_name
@account_option
@invocation
def abort(invocation: Invocation, /, table: str, name: str, account: str) -> None:
    """Pause job N, or all jobs of table T that are being built; `job resume` goes on with what is staged."""
    with invocation.client() as client:
        tasks = client.builds.abort(table, name, account=account)
    answer = {"table": table, **({"name": name} if name else {}), "tasks": tasks}
    ended = "1 task has" if tasks == 1 else f"{tasks} tasks have"
    if not render.show(answer, invocation.output):
        say(f"{' '.join(filter(None, (table, name)))} is paused, and {ended} ended")


@build.command()
@table_argument
@invocation
def priority(invocation: Invocation, /, table: str) -> None:
    """Build table T before all others that wait; what is being built goes on."""
    with invocation.client() as client:
        changed = client.builds.prioritize(table)
    if not render.show({"table": table, "changed": changed}, invocation.output):
        say(f"{table} is built next" if changed else f"{table} is being built, or is next already")


@build.command()
@table_argument
@_range
@invocation
def split(invocation: Invocation, /, table: str, range_id: int) -> None:
    """Cut ranges of table T that are still to be built in two, so that more nodes build it."""
    _reshard(invocation, table, lambda client: client.builds.split(table, range_id=range_id))


@build.command()
@table_argument
@_range
@invocation
def merge(invocation: Invocation, /, table: str, range_id: int) -> None:
    """Put pairs of ranges of table T together that are still to be built: the smallest, or one with its other half."""
    _reshard(invocation, table, lambda client: client.builds.merge(table, range_id=range_id))


def _reshard(invocation: Invocation, table: str, change: Callable[[Client], int]) -> None:
    with invocation.client() as client:
        ranges = change(client)
    if not render.show({"table": table, "ranges": ranges}, invocation.output):
        say(f"{table} has {ranges} {'range' if ranges == 1 else 'ranges'} to be built")


def _builds_of(invocation: Invocation, table: str, name: str, account: str) -> list[BuildView]:
    """Raises JobNotFound for a job that is not there, in a build or not."""
    with invocation.client() as client:
        views = client.builds.list(table)
        mine = [view for view in views if not name or (view.account == account and name in view.jobs)]
        if name and not mine:
            client.status(table, name, account=account)
    return mine


def _nothing_built(table: str, name: str) -> str:
    return f"{' '.join(filter(None, (table, name)))} is not being built"
