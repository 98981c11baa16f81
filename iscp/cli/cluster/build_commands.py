"""`iscp-admin build`: first snapshots of large tables, which all nodes build, and what operators want of them.

Builds as they are drawn: tables, a page of one build, its progress as a bar or a line.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import (
    JOB_NAME,
    account_option,
    any_table_argument,
    anywhere,
    invocation,
    range_option,
    table_argument,
)
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.root_group import repeat, watched
from iscp.cli.shell.terminal import pairs, say, table
from iscp.model.build.build_progress import (
    BuildNodeView,
    BuildStage,
    BuildTaskView,
    BuildView,
    TaskState,
    counts_by_node,
    counts_by_state,
)
from iscp.model.values.progress import UNKNOWN

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


TASKS_SHOWN_MAX = 20
"""Tasks that `build status` shows of a build, those in work first; `-o wide` and JSON have all."""

BAR_WIDTH = 40
"""Characters of the bar that shows how far a build is."""


def build_row(view: BuildView) -> render.Row:
    jobs, tasks = list(view.jobs), [dataclasses.asdict(task) for task in view.tasks]
    nodes = [dataclasses.asdict(node) for node in view.nodes]
    row = dataclasses.asdict(dataclasses.replace(view, tasks=(), nodes=()))
    return row | {"jobs": jobs, "tasks": tasks, "nodes": nodes}


def show_builds(views: Sequence[BuildView], *, wide: bool = False) -> None:
    more = ("ACCOUNT", "BEGAN") if wide else ()
    table(
        ("TABLE", "VERSION", "JOBS", "STATE", "DONE", "ROWS", "BYTES", "RATE", "LEFT", "NODES", "TASKS", *more),
        [
            (
                view.table,
                str(view.version),
                ", ".join(view.jobs),
                view.state.value,
                percent(view.done_share),
                _part(view.rows_done, view.rows_total, _number),
                _part(view.bytes_done, view.bytes_total, render.size),
                _rate(view),
                _left(view),
                str(len(counts_by_node(view.tasks)) or ""),
                _counts(view.tasks),
                *((view.account, render.moment(view.began_at_s)) if wide else ()),
            )
            for view in views
        ],
        spare=("NODES", "VERSION", "BYTES", "RATE", "ROWS", "TASKS"),
        wide=wide,
    )


def show_build(view: BuildView, *, wide: bool = False) -> None:
    pairs(
        {
            "table": view.table,
            "table id": view.table_id,
            "account": view.account,
            "jobs": ", ".join(view.jobs),
            "version": str(view.version),
            "state": view.state.value,
            "began": render.moment(view.began_at_s),
            "done": percent(view.done_share),
            "rows": _part(view.rows_done, view.rows_total, _number),
            "bytes": _part(view.bytes_done, view.bytes_total, render.size),
            "rate": _rate(view),
            "left": _left(view),
            "tasks": _counts(view.tasks),
        }
    )
    if view.tasks or view.nodes:
        say("\nby node")
        show_nodes(view, wide=wide)
    if view.tasks:
        say("\nby range")
        _show_tasks(view.tasks, wide=wide)


def show_nodes(view: BuildView, *, wide: bool = False) -> None:
    """Show what each node has built, as far as that is counted, and what tasks it has."""
    counts, done = counts_by_node(view.tasks), {node.node_id: node for node in view.nodes}
    rows = []
    for node_id in sorted({*counts, *done}):
        tasks = counts.get(node_id, Counter())
        node = done.get(node_id) or BuildNodeView(node_id, UNKNOWN, UNKNOWN)
        built = (_number(node.rows_done), render.size(node.bytes_done)) if node.bytes_done >= 0 else ("", "")
        rows.append((node_id, *built, *(str(tasks[state] or "") for state in TaskState)))
    table(("NODE", "ROWS", "BYTES", *(state.name for state in TaskState)), rows, wide=wide)


def _show_tasks(tasks: Sequence[BuildTaskView], *, wide: bool) -> None:
    in_work_first = sorted(tasks, key=lambda task: task.state is not TaskState.RUNNING)
    shown = in_work_first if wide else in_work_first[:TASKS_SHOWN_MAX]
    table(
        ("RANGE", "JOB", "NODE", "STATE"),
        [(str(task.range_id), task.job_name, task.node_id, task.state.value) for task in shown],
        wide=wide,
    )
    if len(shown) < len(tasks):
        say(f"and {len(tasks) - len(shown)} more; -o wide shows all")


def show_bar(view: BuildView) -> None:
    """Show a build as it is watched on a terminal."""
    say(f"{view.table}  version {view.version}  {', '.join(view.jobs)}")
    share, state, *more = _figures(view)
    say(f"{bar(view.done_share)}  {share}  {state}")
    if more:
        say("  ".join(more))
    if view.tasks:
        show_nodes(view)


def progress_line(view: BuildView) -> str:
    """Return a build's line as it is watched elsewhere."""
    return "  ".join((view.table, f"version {view.version}", ", ".join(view.jobs), *_figures(view)))


def bar(share: float, width: int = BAR_WIDTH) -> str:
    full = int(share * width)  # full only at the end
    return "█" * full + "░" * (width - full)


def percent(share: float) -> str:
    """Return the percentage, never rounded up: 100.0% is all."""
    return f"{int(share * 1_000) / 10:.1f}%"


def _figures(view: BuildView) -> list[str]:
    """Return how far it is, its state, and whatever else is known."""
    rows = bytes_ = ""
    if view.state is not BuildStage.WAITING:
        rows = _part(view.rows_done, view.rows_total, _number, " rows")
        bytes_ = _part(view.bytes_done, view.bytes_total, render.size)
    left = f"about {_left(view)} left" if _left(view) else ""
    known = (percent(view.done_share), view.state.value, rows, bytes_, _rate(view), left, _counts(view.tasks))
    return [each for each in known if each]


def _counts(tasks: Sequence[BuildTaskView]) -> str:
    counts = counts_by_state(tasks)
    return ", ".join(f"{counts[state]:,} {state.value}" for state in TaskState if counts[state])


def _part(done: int, total: int, shown: Callable[[int], str], unit: str = "") -> str:
    """Return how much is done, and of how much, as far as that is known."""
    parts = [shown(done)] if done >= 0 else []
    if total >= 0:
        parts.append(f"of {shown(total)}")
    return " ".join(parts) + unit if parts else ""


def _number(count: int) -> str:
    return f"{count:,}"


def _rate(view: BuildView) -> str:
    rows = f"{view.rows_per_s:,.0f} rows/s" if view.rows_per_s >= 0 else ""
    bytes_ = f"{render.size(view.bytes_per_s)}/s" if view.bytes_per_s >= 0 else ""
    return ", ".join(filter(None, (rows, bytes_)))


def _left(view: BuildView) -> str:
    return render.seconds(view.left_s) if view.left_s >= 0 else ""


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
