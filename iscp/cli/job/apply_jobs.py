"""Applies jobs as files say: checks them all, carries the plan out, and shows what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import click

from iscp.cli.job.apply_plan import DELETE, PlanFault, Step, counts, prunable, steps_for, update_json
from iscp.cli.job.change_commands import BATCH_MAX, MATCHES_MAX, SHOWN_MAX, batches, job_words
from iscp.cli.shell import render
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.root_group import ERROR_PREFIX, field_in_file, show_error
from iscp.cli.shell.terminal import confirm, say
from iscp.model.api.api_requests import Action, ChangeVerb, CheckedJob, JobChange, JobName, UpdateRequest
from iscp.model.run.run_plan import Wanted
from iscp.model.values.errors import Conflict, IscpError, PermanentError
from iscp.system.tls.tls_files import REGISTRATIONS_MAX

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

CHECK_TIMEOUT_S = 900.0
"""Seconds that the check of a batch of jobs may take; then `apply` ends with an error, and nothing is changed."""

REGISTER_BATCH = 500
"""Jobs in one request to register; the others follow in further requests."""

RESYNCS_AT_ONCE = 8
"""Resyncs at a time; the others queue."""

_KEPT, _AGAIN = "was kept, as another job was refused", "Apply again once that is settled"

Refused = list[tuple[Step, IscpError]]


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """The flags of the commands that apply files.

    `prune`: jobs that the same sets have made, and no file names any more, are deleted, but for those with the names in
    `left_out`. `claim`: jobs that are there become of the sets of their files. `timeout_s`: how long a new job is
    awaited whose target another one reads, before that one can be registered. `more` is shown to programs beside what
    is done.
    """

    dry_run: bool = False
    prune: bool = False
    claim: bool = False
    resync: bool = False
    yes: bool = False
    timeout_s: float = 3_600.0
    left_out: frozenset[str] = frozenset()
    more: Mapping[str, object] = field(default_factory=dict)


def apply_jobs(invocation: Invocation, client: Client, wanted: Sequence[Wanted], options: ApplyOptions) -> None:
    """Make the jobs as they are wanted, or with `dry_run` show what would be done; exit with 1 if one is refused.

    All that can be is checked before anything is written.
    """
    check_timeout_s = invocation.within_s(CHECK_TIMEOUT_S)
    checked = _checked(client, wanted, check_timeout_s)
    steps, faults = steps_for(wanted, checked, resync=options.resync, claim=options.claim)
    if options.prune and not faults:
        deletions, faults = _deletions(client, steps, options.left_out)
        steps += deletions
    if faults:
        _refuse_faults(faults, invocation.output)
    if not options.dry_run:
        _confirm(steps, options)
    done, refused = (steps, []) if options.dry_run else _carry_out(client, steps, options, check_timeout_s)
    _show_steps(invocation, done, refused, options)
    if refused:
        raise click.exceptions.Exit(1)


def _deletions(client: Client, steps: Sequence[Step], left_out: frozenset[str]) -> tuple[list[Step], list[PlanFault]]:
    accounts = sorted({step.job.account for step in steps})
    return prunable(steps, [job for each in accounts for job in client.jobs(account=each, limit=MATCHES_MAX)], left_out)


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


def _confirm(steps: Sequence[Step], options: ApplyOptions) -> None:
    """Say what is rebuilt, taken from other sets, and deleted, and have it confirmed; with `yes` only say what is
    deleted.
    """
    rebuilt = [] if options.resync else _steps_of(steps, Action.RESYNC)
    claimed = [step for step in steps if step.claims]
    doomed = _steps_of(steps, DELETE)
    questions = (
        (rebuilt, f"rebuild {job_words(len(rebuilt))}?"),
        (claimed, f"take {job_words(len(claimed))} into another set?"),
        (doomed, f"delete {job_words(len(doomed))} that no file names?"),
    )
    for concerned, question in questions:
        if options.yes and concerned is not doomed:
            continue
        for step in concerned:
            say(f"  {step.job.name} on {step.table}: {'; '.join(step.changes)}", err=True)
        if concerned and options.yes:
            say(f"deleting {job_words(len(doomed))} that no file names", err=True)
        elif concerned:
            confirm(question)


def _steps_of(steps: Sequence[Step], action: str) -> list[Step]:
    return [step for step in steps if step.action == action]


def _carry_out(
    client: Client, steps: Sequence[Step], options: ApplyOptions, check_timeout_s: float
) -> tuple[list[Step], Refused]:
    """Carry out all steps, deletions last.

    Return those that were carried out as they were found to be needed by then, and those that were refused though they
    had been checked, with the reasons.
    """
    made = [step for step in steps if step.action != DELETE]
    refused = _carry_out_at_once(client, [step for step in made if not step.awaits])
    failed = {step.job for step, _ in refused}
    later: list[Step] = []
    for step in (each for each in made if each.awaits):
        found = _carry_out_later(client, step, failed, options, check_timeout_s)
        if isinstance(found, IscpError):
            refused.append((step, found))
            failed.add(step.job)
        else:
            later += found
    refused += _delete(client, made, _steps_of(steps, DELETE), options.left_out, others_refused=bool(refused))
    kept = {id(step) for step, _ in refused}
    at_once = [step for step in made if not step.awaits and id(step) not in kept]
    deleted = [step for step in _steps_of(steps, DELETE) if id(step) not in kept]
    return [*at_once, *later, *deleted], refused


def _delete(
    client: Client, made: Sequence[Step], doomed: Sequence[Step], left_out: frozenset[str], *, others_refused: bool
) -> Refused:
    """Delete jobs, readers of a target before the job that keeps it, and return what was refused.

    A person may have taken time to confirm it, and new jobs to be built: what has changed since then is kept.
    """
    if not doomed:
        return []
    if others_refused:
        return [(step, PermanentError(_KEPT, remedy=_AGAIN)) for step in doomed]
    found, faults = _deletions(client, made, left_out)
    current = set() if faults else {(step.job, step.checked.job_id) for step in found}
    changed = Conflict("was changed by somebody else meanwhile, or is read by another job now", remedy=_AGAIN)
    refused: Refused = [(step, changed) for step in doomed if (step.job, step.checked.job_id) not in current]
    left = [step for step in doomed if (step.job, step.checked.job_id) in current]
    while left:
        failed, waiting = {step.job for step, _ in refused}, {step.job for step in left}
        ready = [step for step in left if waiting.isdisjoint(step.awaits)] or left
        kept = [step for step in ready if not failed.isdisjoint(step.awaits)]
        refused += [(step, PermanentError(_KEPT, remedy=_AGAIN)) for step in kept]
        for batch in batches([step for step in ready if failed.isdisjoint(step.awaits)], BATCH_MAX):
            changes = [JobChange(ChangeVerb.UNREGISTER, step.job, uuid4().hex) for step in batch]
            refused += _refused(batch, client.change_many(changes))
        done = {id(step) for step in ready}
        left = [step for step in left if id(step) not in done]
    return refused


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
        checked = _checked(client, wanted, check_timeout_s)
        found, faults = steps_for(wanted, checked, resync=options.resync, claim=options.claim)
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
    outside = [
        {"account": step.job.account, "table": step.table, "name": step.job.name} for step in steps if step.outside
    ]
    shown = {"dry_run": options.dry_run, "counts": counts(steps), "steps": done, "refused": failed, "outside": outside}
    shown |= options.more
    if render.show(shown, invocation.output):
        return
    for each in done:
        changes = f" ({'; '.join(each['changes'])})" if each["changes"] else ""
        say(f"{each['action']} {each['name']} on {each['table']}{changes}")
    for one in failed:
        say(f"{one['name']} on {one['table']}: {one['error']}", err=True)
    if outside:
        names = ", ".join(f"{one['name']} on {one['table']}" for one in outside[:SHOWN_MAX])
        more = ", …" if len(outside) > SHOWN_MAX else ""
        say(f"not of the set, which has not made them ({names}{more}); --claim takes them into it", err=True)
    summary = ", ".join(f"{number} {action}" for action, number in counts(steps).items())
    say(f"{'would be ' if options.dry_run else ''}{summary}" + (f", {len(failed)} refused" if failed else ""))
