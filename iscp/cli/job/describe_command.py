"""`iscp-admin job describe`: all that is known of one job, on one page."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import click

from iscp.cli.job.next_start import next_start, warnings_of
from iscp.cli.shell import render
from iscp.cli.shell.arguments import WholeNumber, account_option, invocation, job_arguments
from iscp.cli.shell.cluster_tables import show_placement
from iscp.cli.shell.history_lines import show_history
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.cli.shell.watch_option import watched
from iscp.core.api.api_views import EventView, JobView, PlacedShard
from iscp.core.job.iteration import HistoryEntry
from iscp.core.values.ids import ShardId

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

EVENTS_SHOWN_MAX = 5
"""Events of a job's table that `job describe` shows, the newest; `iscp-admin events` shows all."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobDescription:
    """The description of a job: `iterations` are the newest first; `events` are those of the job's shards, the oldest
    first.
    """

    job: JobView
    next_start: str
    warnings: tuple[str, ...]
    shards: tuple[PlacedShard, ...]
    iterations: tuple[HistoryEntry, ...]
    events: tuple[EventView, ...]


@click.command()
@job_arguments
@click.option("--limit", type=WholeNumber(1, 1_000), default=5, show_default=True, help="How many iterations.")
@account_option
@watched
@invocation
def describe(invocation: Invocation, /, table: str, name: str, limit: int, account: str) -> None:
    """Show all that is known of a job: spec, state, warnings, next start, place, iterations, events."""
    with invocation.client() as client:
        described = describe_job(client, client.status(table, name, account=account), limit)
    if not render.show(description_row(described), invocation.output):
        show_description(described, wide=invocation.wide)


def describe_job(client: Client, job: JobView, iterations: int) -> JobDescription:
    shards = client.operator.placement(job.table_id)
    mine = {_shard_name(shard) for shard in shards}
    # Looked through here too: a node of an earlier version sends those of all tables.
    events = [event for event in client.operator.events(table=job.table_id) if event.shard in mine]
    return JobDescription(
        job=job,
        next_start=next_start(job, time.time()),
        warnings=tuple(warnings_of(job, shards)),
        shards=tuple(shards),
        iterations=tuple(client.history(job.table_id, job.name, limit=iterations, account=job.account)),
        events=tuple(events[-EVENTS_SHOWN_MAX:]),
    )


def _shard_name(shard: PlacedShard) -> str:
    return str(ShardId(shard.table_id, shard.range_id))


def description_row(described: JobDescription) -> render.Row:
    return {
        "job": render.job_row(described.job),
        "next_start": described.next_start,
        "warnings": list(described.warnings),
        "shards": [dataclasses.asdict(each) for each in described.shards],
        "iterations": [render.history_row(each) for each in described.iterations],
        "events": [dataclasses.asdict(each) for each in described.events],
    }


def show_description(described: JobDescription, *, wide: bool = False) -> None:
    render.show_job(dataclasses.replace(described.job, spec_json=""))
    say("\nnext start")
    say(f"  {described.next_start}")
    say("\nspec")
    for line in _spec_lines(described.job.spec_json):
        say(f"  {line}")
    if described.warnings:
        say("\nwarnings")
        for warning in described.warnings:
            say(f"  {warning}")
    say("\nwhere it runs")
    show_placement(described.shards, ring=True, wide=wide)
    say("\nlast iterations")
    if described.iterations:
        show_history(described.iterations, wide=wide)
    else:
        say("none yet")
    if described.events:
        say("\nevents of its table")
        for event in described.events:
            say(render.event_line(event))


def _spec_lines(spec_json: str) -> list[str]:
    """Return the lines of a spec as a job file has them."""
    import yaml

    from iscp.core.spec.spec_fields import flatten

    try:
        return str(yaml.safe_dump(flatten(spec_json), sort_keys=False, allow_unicode=True)).splitlines()
    except (ValueError, RecursionError, AttributeError):  # one that was damaged in the job log
        return [spec_json]
