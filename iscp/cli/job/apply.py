"""`iscp-admin apply` and `iscp-admin export`: jobs as files say them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import click

from iscp.cli.job.bulk import MATCHES_MAX, job_words
from iscp.cli.shell import render
from iscp.cli.shell.arguments import TABLES, anywhere, invocation, matching
from iscp.cli.shell.completion import ACCOUNT, JOB_NAME
from iscp.cli.shell.error_words import field_in_file, show_error
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import confirm, json_text, say, yaml_text
from iscp.core.api.api_requests import ChangeVerb, JobChange, UpdateRequest
from iscp.core.api.api_views import Action, CheckedJob
from iscp.core.values.errors import IscpError, PermanentError

if TYPE_CHECKING:
    from iscp.cli.job.apply_plan import PlanFault, Step, Wanted
    from iscp.client.admin_client import Client

T = TypeVar("T")

CHECK_TIMEOUT_S = 900.0
"""How long the check of a batch of jobs may take; then `apply` ends with an error, and nothing is changed."""

REGISTER_BATCH = 500
"""Jobs in one request to register; the others follow in further requests."""

CHANGE_BATCH = 2_000
"""Jobs in one request to update or drop; the others follow in further requests."""

RESYNCS_AT_ONCE = 8
"""Resyncs at a time; the others queue."""


@click.command()
@click.option(
    "-f",
    "--file",
    "paths",
    type=click.Path(allow_dash=True),
    multiple=True,
    required=True,
    metavar="PATH",
    help="A file, a directory of them, or -.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--prune", is_flag=True, help="Delete the jobs of the files' accounts that no file names.")
@click.option("--resync", is_flag=True, help="Rebuild targets where what they hold changes.")
@click.option("--yes", is_flag=True, help="Delete jobs without a question.")
@anywhere
@invocation
def apply(
    invocation: Invocation, /, paths: tuple[str, ...], dry_run: bool, prune: bool, resync: bool, yes: bool
) -> None:
    """Make the jobs as files say: create, update, and leave alone what is so already.

    All is checked before anything is written. Applying the same files again changes nothing.
    """
    from iscp.cli.job.job_file import read_paths

    wanted = read_paths(paths)
    with invocation.client() as client:
        steps = _plan(client, wanted, invocation, prune=prune, resync=resync)
        doomed = [step for step in steps if step.action == "delete"]
        if not dry_run and doomed and not yes:
            for step in doomed:
                say(f"  {step.job.name} on {step.table}", err=True)
            confirm(f"delete {job_words(len(doomed))} that no file names?")
        refused = [] if dry_run else carry_out(client, steps)
    show_steps(invocation, steps, refused, dry_run=dry_run)
    if refused:
        raise click.exceptions.Exit(1)


def _plan(client: Client, wanted: Sequence[Wanted], invocation: Invocation, *, prune: bool, resync: bool) -> list[Step]:
    from iscp.adapters.tls.endpoint import REGISTRATIONS_MAX
    from iscp.cli.job.apply_plan import prunable, steps_for

    checked: list[CheckedJob] = []
    for batch in _batches(wanted, REGISTRATIONS_MAX):
        requests = [each.request for each in batch]
        checked += client.check_many(requests, timeout_s=invocation.within_s(CHECK_TIMEOUT_S))
    steps, faults = steps_for(wanted, checked, resync=resync)
    if faults:
        refuse_faults(faults, invocation.output)
    if prune:
        for account in sorted({each.request.job.account for each in wanted}):
            steps += prunable(steps, client.jobs(account=account, limit=MATCHES_MAX))
    return steps


def refuse_faults(faults: Sequence[PlanFault], output: str) -> None:
    for fault in faults:
        error = fault.error
        error.field = field_in_file(error.field)
        if output == "json":
            error.message, error.field = error.sentence, f"{fault.place}.{error.field}".rstrip(".")
            show_error(error, output)
        else:
            say(f"{fault.place}: {error}", err=True)
    if output != "json":
        say(f"error: {job_words(len(faults))} refused; nothing was written", err=True)
    raise click.exceptions.Exit(1)


def carry_out(client: Client, steps: Sequence[Step]) -> list[tuple[Step, IscpError]]:
    """All steps, deletions last; those that were refused though they had been checked, and why."""
    from iscp.cli.job.apply_plan import DELETE, update_json

    def of(action: str) -> list[Step]:
        return [step for step in steps if step.action == action]

    refused: list[tuple[Step, IscpError]] = []
    for batch in _batches(of(Action.CREATE), REGISTER_BATCH):
        client.register_many([step.request for step in batch if step.request])
    for batch in _batches(of(Action.UPDATE), CHANGE_BATCH):
        updates = [UpdateRequest(step.job, update_json(step), request_id=uuid4().hex) for step in batch]
        refused += _refused(batch, client.update_many(updates))
    with ThreadPoolExecutor(RESYNCS_AT_ONCE) as pool:
        resyncs = of(Action.RESYNC)
        refused += _refused(resyncs, list(pool.map(lambda step: _resync(client, step), resyncs)))
    for batch in _batches(of(DELETE), CHANGE_BATCH):
        changes = [JobChange(ChangeVerb.UNREGISTER, step.job, uuid4().hex) for step in batch]
        refused += _refused(batch, client.change_many(changes))
    return refused


def _resync(client: Client, step: Step) -> bool | IscpError:
    try:
        client.resync(
            step.job.table, step.job.name, new_table=step.table, spec=step.checked.spec_json, account=step.job.account
        )
    except PermanentError as error:
        return error
    return True


def _refused(steps: Sequence[Step], outcomes: Sequence[bool | IscpError]) -> list[tuple[Step, IscpError]]:
    found = zip(steps, outcomes, strict=True)
    return [(step, outcome) for step, outcome in found if isinstance(outcome, IscpError)]


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def show_steps(
    invocation: Invocation,
    steps: Sequence[Step],
    refused: Sequence[tuple[Step, IscpError]],
    *,
    dry_run: bool,
    more: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """What is or would be done, and what was refused; `more` is in what programs read."""
    from iscp.cli.job.apply_plan import counts

    failed = [
        {"account": step.job.account, "table": step.table, "name": step.job.name, "error": str(error)}
        for step, error in refused
    ]
    done = [
        {
            "action": step.action,
            "account": step.job.account,
            "table": step.table,
            "name": step.job.name,
            "changes": list(step.changes),
        }
        for step in steps
        if step.action != Action.UNCHANGED
    ]
    if render.show(
        {"dry_run": dry_run, "counts": counts(steps), "steps": done, "refused": failed, **more}, invocation.output
    ):
        return
    for each in done:
        changes = f" ({'; '.join(each['changes'])})" if each["changes"] else ""
        say(f"{each['action']} {each['name']} on {each['table']}{changes}")
    for one in failed:
        say(f"{one['name']} on {one['table']}: {one['error']}", err=True)
    summary = ", ".join(f"{number} {action}" for action, number in counts(steps).items())
    say(f"{'would be ' if dry_run else ''}{summary}" + (f", {len(failed)} refused" if failed else ""))


@click.command()
@click.argument("tables", type=TABLES, metavar="[T]", default="*")
@click.argument("names", type=JOB_NAME, metavar="[N]", default="*")
@click.option("--account", type=ACCOUNT, metavar="A", default="", help="Only jobs of this tenant.")
@anywhere
@invocation
def export(invocation: Invocation, /, tables: str, names: str, account: str) -> None:
    """Print jobs as a file that `apply` takes; T and N may be patterns, as 'sales.*'."""
    from iscp.cli.job.job_file import entry_of

    with invocation.client() as client:
        jobs = client.jobs(**matching(tables, names), account=account, limit=MATCHES_MAX)
    entries = [entry_of(job) for job in sorted(jobs, key=lambda job: (job.account, job.table, job.name))]
    say(
        json_text(entries, indent=2) if invocation.output == "json" else yaml_text(entries),
        nl=invocation.output == "json",
    )
