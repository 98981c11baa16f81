"""Applies jobs as files say: checks them all, carries the plan out, and shows what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import click

from iscp.adapters.tls.endpoint import REGISTRATIONS_MAX
from iscp.cli.job.apply_plan import DELETE, PlanFault, Step, counts, prunable, steps_for, update_json
from iscp.cli.job.bulk import BATCH_MAX, MATCHES_MAX, batches, job_words
from iscp.cli.shell import render
from iscp.cli.shell.error_words import ERROR_PREFIX, field_in_file, show_error
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import confirm, say
from iscp.core.api.api_requests import ChangeVerb, JobChange, JobName, UpdateRequest
from iscp.core.api.api_views import Action, CheckedJob
from iscp.core.run.wanted import Wanted
from iscp.core.values.errors import IscpError, PermanentError

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

CHECK_TIMEOUT_S = 900.0
"""Seconds that the check of a batch of jobs may take; then `apply` ends with an error, and nothing is changed."""

REGISTER_BATCH = 500
"""Jobs in one request to register; the others follow in further requests."""

RESYNCS_AT_ONCE = 8
"""Resyncs at a time; the others queue."""

Refused = list[tuple[Step, IscpError]]


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """The flags of the commands that apply files.

    `timeout_s`: how long a new job is awaited whose target another one reads, before that one can be registered.
    `more` is shown to programs beside what is done.
    """

    dry_run: bool = False
    prune: bool = False
    resync: bool = False
    yes: bool = False
    timeout_s: float = 3_600.0
    more: Mapping[str, object] = field(default_factory=dict)


def apply_jobs(invocation: Invocation, client: Client, wanted: Sequence[Wanted], options: ApplyOptions) -> None:
    """Make the jobs as they are wanted, or with `dry_run` show what would be done; exit with 1 if one is refused.

    All that can be is checked before anything is written.
    """
    check_timeout_s = invocation.within_s(CHECK_TIMEOUT_S)
    steps, faults = steps_for(wanted, _checked(client, wanted, check_timeout_s), resync=options.resync)
    if faults:
        _refuse_faults(faults, invocation.output)
    if options.prune:
        for account in sorted({each.request.job.account for each in wanted}):
            steps += prunable(steps, client.jobs(account=account, limit=MATCHES_MAX))
    if not options.dry_run and not options.yes:
        _confirm(steps, options.resync)
    done, refused = (steps, []) if options.dry_run else _carry_out(client, steps, options, check_timeout_s)
    _show_steps(invocation, done, refused, options)
    if refused:
        raise click.exceptions.Exit(1)


def _checked(client: Client, wanted: Sequence[Wanted], timeout_s: float) -> list[CheckedJob]:
    found: list[CheckedJob] = []
    for batch in batches(wanted, REGISTRATIONS_MAX):
        found += client.check_many([each.request for each in batch], timeout_s=timeout_s)
    return found


def _refuse_faults(faults: Sequence[PlanFault], output: str) -> None:
    for fault in faults:
        error = fault.error
        error.field = field_in_file(error.field)
        if output == "json":
            place = f"{fault.place}.{error.field}".rstrip(".")
            show_error(IscpError(error.sentence, about=place, remedy=error.remedy, code=error.code), output)
        else:
            say(f"{fault.place}: {error}", err=True)
    if output != "json":
        say(f"{ERROR_PREFIX}{job_words(len(faults))} refused; nothing was written", err=True)
    raise click.exceptions.Exit(1)


def _confirm(steps: Sequence[Step], resync: bool) -> None:
    rebuilt = [] if resync else _steps_of(steps, Action.RESYNC)
    for step in rebuilt:
        say(f"  {step.job.name}: {'; '.join(step.changes)}", err=True)
    if rebuilt:
        confirm(f"rebuild {job_words(len(rebuilt))}?")
    doomed = _steps_of(steps, DELETE)
    for step in doomed:
        say(f"  {step.job.name} on {step.table}", err=True)
    if doomed:
        confirm(f"delete {job_words(len(doomed))} that no file names?")


def _steps_of(steps: Sequence[Step], action: str) -> list[Step]:
    return [step for step in steps if step.action == action]


def _carry_out(
    client: Client, steps: Sequence[Step], options: ApplyOptions, check_timeout_s: float
) -> tuple[list[Step], Refused]:
    """Carry out all steps, deletions last.

    Return those that were carried out as they were found to be needed by then, and those that were refused though they
    had been checked, with the reasons.
    """
    refused = _carry_out_at_once(client, [step for step in steps if not step.awaits and step.action != DELETE])
    failed = {step.job for step, _ in refused}
    later: list[Step] = []
    for step in (each for each in steps if each.awaits):
        found = _carry_out_later(client, step, failed, options, check_timeout_s)
        if isinstance(found, IscpError):
            refused.append((step, found))
            failed.add(step.job)
        else:
            later += found
    for batch in batches(_steps_of(steps, DELETE), BATCH_MAX):
        changes = [JobChange(ChangeVerb.UNREGISTER, step.job, uuid4().hex) for step in batch]
        refused += _refused(batch, client.change_many(changes))
    kept = {id(step) for step, _ in refused}
    done = [step for step in steps if not step.awaits and id(step) not in kept]
    at_once = [step for step in done if step.action != DELETE]
    return [*at_once, *later, *_steps_of(done, DELETE)], refused


def _carry_out_at_once(client: Client, steps: Sequence[Step]) -> Refused:
    refused: Refused = []
    for batch in batches(_steps_of(steps, Action.CREATE), REGISTER_BATCH):
        refused += _register(client, batch)
    for batch in batches(_steps_of(steps, Action.UPDATE), BATCH_MAX):
        updates = [UpdateRequest(step.job, update_json(step), request_id=uuid4().hex) for step in batch]
        refused += _refused(batch, client.update_many(updates))
    with ThreadPoolExecutor(RESYNCS_AT_ONCE) as pool:
        resyncs = _steps_of(steps, Action.RESYNC)
        refused += _refused(resyncs, list(pool.map(lambda step: _resync(client, step), resyncs)))
    return refused


def _register(client: Client, steps: Sequence[Step]) -> Refused:
    """Register all jobs at once, or each by itself where that is refused."""
    try:
        client.register_many([step.wanted.request for step in steps if step.wanted])
    except PermanentError as error:
        return (
            [(steps[0], error)] if len(steps) == 1 else [each for step in steps for each in _register(client, [step])]
        )
    return []


def _resync(client: Client, step: Step) -> bool | IscpError:
    try:
        client.resync(
            step.job.table, step.job.name, new_table=step.table, spec=step.checked.spec_json, account=step.job.account
        )
    except PermanentError as error:
        return error
    return True


def _refused(steps: Sequence[Step], outcomes: Sequence[bool | IscpError]) -> Refused:
    found = zip(steps, outcomes, strict=True)
    return [(step, outcome) for step, outcome in found if isinstance(outcome, IscpError)]


def _carry_out_later(
    client: Client, step: Step, failed: set[JobName], options: ApplyOptions, check_timeout_s: float
) -> list[Step] | IscpError:
    """Wait for what the job reads, check it, and carry out what is to be done; return that, or why it was refused."""
    if missing := [job.name for job in step.awaits if job in failed]:
        return PermanentError(f"reads {', '.join(missing)}, which is not there", remedy="Apply again once it is")
    wanted = [step.wanted] if step.wanted else []
    try:
        for job in step.awaits:
            # Its target becomes a table with its first version; until then no job can be registered on it.
            client.wait(job.table, job.name, 0, timeout_s=options.timeout_s, account=job.account)
        found, faults = steps_for(wanted, _checked(client, wanted, check_timeout_s), resync=options.resync)
        refused = [fault.error for fault in faults] + [error for _, error in _carry_out_at_once(client, found)]
    except PermanentError as error:
        return error
    return refused[0] if refused else found


def _show_steps(
    invocation: Invocation, steps: Sequence[Step], refused: Sequence[tuple[Step, IscpError]], options: ApplyOptions
) -> None:
    """Show what was or would be done, and what was refused."""
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
    shown = {"dry_run": options.dry_run, "counts": counts(steps), "steps": done, "refused": failed, **options.more}
    if render.show(shown, invocation.output):
        return
    for each in done:
        changes = f" ({'; '.join(each['changes'])})" if each["changes"] else ""
        say(f"{each['action']} {each['name']} on {each['table']}{changes}")
    for one in failed:
        say(f"{one['name']} on {one['table']}: {one['error']}", err=True)
    summary = ", ".join(f"{number} {action}" for action, number in counts(steps).items())
    say(f"{'would be ' if options.dry_run else ''}{summary}" + (f", {len(failed)} refused" if failed else ""))
