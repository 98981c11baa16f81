"""Builds as they are drawn: tables, a page of one build, its progress as a bar or a line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import click

from iscp.cli import render
from iscp.cli.drawing import pairs, table
from iscp.core.api_builds import BuildStage, BuildTaskView, BuildView, TaskState, counts_by_node, counts_by_state

TASKS_SHOWN_MAX = 20
"""Tasks that `build status` shows of a build, those in work first; `-o wide` and JSON have all."""

BAR_WIDTH = 40
"""Characters of the bar that shows how far a build is."""


def build_row(view: BuildView) -> render.Row:
    jobs, tasks = list(view.jobs), [dataclasses.asdict(task) for task in view.tasks]
    return dataclasses.asdict(dataclasses.replace(view, tasks=())) | {"jobs": jobs, "tasks": tasks}


def show_builds(views: Sequence[BuildView], *, wide: bool = False) -> None:
    more = ("ACCOUNT", "BEGAN", "BYTES") if wide else ()
    table(
        ("TABLE", "VERSION", "JOBS", "STATE", "DONE", "ROWS", "RATE", "LEFT", "NODES", "TASKS", *more),
        [
            (
                view.table,
                str(view.version),
                ", ".join(view.jobs),
                view.state.value,
                percent(view.done_share),
                _count(view.rows_total),
                _rate(view),
                _left(view),
                str(len(counts_by_node(view.tasks)) or ""),
                _counts(view.tasks),
                *((view.account, render.moment(view.began_at_s), _size(view.bytes_total)) if wide else ()),
            )
            for view in views
        ],
        spare=("NODES", "VERSION", "RATE", "ROWS", "TASKS"),
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
            "snapshot": ", ".join(filter(None, (_rows(view.rows_total), _size(view.bytes_total)))),
            "done": percent(view.done_share),
            "rate": _rate(view),
            "left": _left(view),
            "tasks": _counts(view.tasks),
        }
    )
    if view.tasks:
        click.echo("\nby node")
        show_nodes(view.tasks, wide=wide)
        click.echo("\nby range")
        _show_tasks(view.tasks, wide=wide)


def show_nodes(tasks: Sequence[BuildTaskView], *, wide: bool = False) -> None:
    counts = counts_by_node(tasks)
    table(
        ("NODE", *(state.name for state in TaskState)),
        [(node_id, *(str(count[state] or "") for state in TaskState)) for node_id, count in counts.items()],
        wide=wide,
    )


def _show_tasks(tasks: Sequence[BuildTaskView], *, wide: bool) -> None:
    in_work_first = sorted(tasks, key=lambda task: task.state is not TaskState.RUNNING)
    shown = in_work_first if wide else in_work_first[:TASKS_SHOWN_MAX]
    table(
        ("RANGE", "JOB", "NODE", "STATE"),
        [(str(task.range_id), task.job_name, task.node_id, task.state.value) for task in shown],
        wide=wide,
    )
    if len(shown) < len(tasks):
        click.echo(f"and {len(tasks) - len(shown)} more; -o wide shows all")


def show_bar(view: BuildView) -> None:
    """As a build is watched on a terminal."""
    click.echo(f"{view.table}  version {view.version}  {', '.join(view.jobs)}")
    share, state, *more = _figures(view)
    click.echo(f"{bar(view.done_share)}  {share}  {state}")
    if more:
        click.echo("  ".join(more))
    if view.tasks:
        show_nodes(view.tasks)


def progress_line(view: BuildView) -> str:
    """As a build is watched elsewhere."""
    return "  ".join((view.table, f"version {view.version}", ", ".join(view.jobs), *_figures(view)))


def bar(share: float, width: int = BAR_WIDTH) -> str:
    full = int(share * width)  # full only at the end
    return "█" * full + "░" * (width - full)


def percent(share: float) -> str:
    """Never rounded up: 100.0% is all."""
    return f"{int(share * 1_000) / 10:.1f}%"


def _figures(view: BuildView) -> list[str]:
    """How far it is and its state, and of all else what is known."""
    staged = ""
    if view.rows_total >= 0 and view.state is not BuildStage.WAITING:
        staged = f"{int(view.done_share * view.rows_total):,} of {_rows(view.rows_total)}"
    left = f"about {_left(view)} left" if _left(view) else ""
    known = (percent(view.done_share), view.state.value, staged, _rate(view), left, _counts(view.tasks))
    return [each for each in known if each]


def _counts(tasks: Sequence[BuildTaskView]) -> str:
    counts = counts_by_state(tasks)
    return ", ".join(f"{counts[state]:,} {state.value}" for state in TaskState if counts[state])


def _count(number: int) -> str:
    return f"{number:,}" if number >= 0 else "-"


def _rows(number: int) -> str:
    return f"{number:,} rows" if number >= 0 else ""


def _size(number: int) -> str:
    return render.size(number) if number >= 0 else ""


def _rate(view: BuildView) -> str:
    rows = f"{view.rows_per_s:,.0f} rows/s" if view.rows_per_s >= 0 else ""
    return rows or (f"{render.size(view.bytes_per_s)}/s" if view.bytes_per_s >= 0 else "")


def _left(view: BuildView) -> str:
    return render.seconds(view.left_s) if view.left_s >= 0 else ""
