"""What it takes to have the views of a project, and the doing of it: each after those that it reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from iscp.cli.job.apply import CHECK_TIMEOUT_S, carry_out, refuse_faults, show_steps
from iscp.cli.job.apply_plan import PlanFault, Step, Wanted, steps_for
from iscp.cli.job.bulk import job_words
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import confirm, say
from iscp.cli.view.view_order import PlacedView
from iscp.core.api.api_requests import JobName, RegisterRequest
from iscp.core.api.api_views import Action, CheckedJob, JobView
from iscp.core.spec.view_fields import ViewFields, view_of
from iscp.core.values.errors import InvalidRequest, IscpError, PermanentError, TableNotFound

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """`timeout_s`: how long a view is waited for that another one reads, before that one can be registered.
    `check_timeout_s`: how long checks may take. `more` is shown to programs beside what is done.
    """

    account: str
    dry_run: bool = False
    resync: bool = False
    yes: bool = False
    timeout_s: float = 3_600.0
    check_timeout_s: float = CHECK_TIMEOUT_S
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A view with the job that keeps it. `awaits`: the views that have to be built before it can be checked."""

    view: PlacedView
    wanted: Wanted
    step: Step
    awaits: tuple[str, ...] = ()


def apply_views(invocation: Invocation, client: Client, views: Sequence[PlacedView], options: PlanOptions) -> None:
    """Show what is to be done, or do it; exit status 1 where something is refused. All that can be is checked first.

    `views` come in their order.
    """
    there: dict[str, list[JobView]] = {}
    for job in client.views(account=options.account):
        there.setdefault(job.name, []).append(job)
    wanted = [_wanted(each, there.get(each.statement.name, []), options) for each in views]
    checked = client.check_many([each.request for each in wanted], timeout_s=options.check_timeout_s)
    planned, faults = _plan(views, wanted, checked, options)
    if faults:
        refuse_faults(faults, invocation.output)
    rebuilt = [each for each in planned if each.step.action == Action.RESYNC]
    if rebuilt and not (options.dry_run or options.resync or options.yes):
        for each in rebuilt:
            say(f"  {each.view.statement.name}: {'; '.join(each.step.changes)}", err=True)
        confirm(f"rebuild {job_words(len(rebuilt))}?")
    refused = [] if options.dry_run else _carry_out_in_order(client, planned, options)
    show_steps(invocation, [each.step for each in planned], refused, dry_run=options.dry_run, more=options.more)
    if refused:
        raise click.exceptions.Exit(1)


def _wanted(view: PlacedView, there: Sequence[JobView], options: PlanOptions) -> Wanted:
    """On the table that the view of this name is on already, if the query reads it still."""
    statement = view.statement
    fields = ViewFields(statement.sql, view.tables, view.target, statement.refresh, statement.run)
    on = [job for job in there if {job.table, job.table_id} & set(view.tables.values())]
    if there and not on:
        raise InvalidRequest(
            f"{statement.name!r} is a view on {there[0].table}, which the query does not read",
            field=statement.place,
            remedy=f"Delete it first: `iscp-admin view drop {statement.name}`",
        )
    table = on[0].table if on else fields.table
    return Wanted(RegisterRequest(JobName(table, statement.name, options.account), fields.spec_json()), statement.place)


def _plan(
    views: Sequence[PlacedView], wanted: Sequence[Wanted], checked: Sequence[CheckedJob], options: PlanOptions
) -> tuple[list[PlannedView], list[PlanFault]]:
    planned: list[PlannedView] = []
    faults: list[PlanFault] = []
    created: set[str] = set()
    for view, want, found in zip(views, wanted, checked, strict=True):
        if found.there_id and view.statement.if_missing:
            found = dataclasses.replace(
                found, action=Action.UNCHANGED, table_id=found.there_id, spec_json=found.there_json, error=None
            )
        awaits: tuple[str, ...] = ()
        if isinstance(found.error, TableNotFound):
            awaits = tuple(name for name in view.reads if name in created)
            found = CheckedJob() if awaits else found
        steps, refused = steps_for([want], [found], resync=options.resync or view.statement.replace)
        faults += refused
        for step in steps:
            if step.action == Action.CREATE:
                created.add(view.statement.name)
                step = dataclasses.replace(step, changes=_until(awaits))
            planned.append(PlannedView(view, want, step, awaits if step.action == Action.CREATE else ()))
    return planned, faults


def _until(awaits: Sequence[str]) -> tuple[str, ...]:
    return (f"once built: {', '.join(awaits)}",) if awaits else ()


def _carry_out_in_order(
    client: Client, planned: Sequence[PlannedView], options: PlanOptions
) -> list[tuple[Step, IscpError]]:
    """Those that were refused, and why; what reads one of them is refused with it."""
    refused: list[tuple[Step, IscpError]] = []
    tables = {each.view.statement.name: each.wanted.request.job.table for each in planned}
    failed: set[str] = set()
    for each in planned:
        outcome = _carry_out_one(client, each, tables, failed, options)
        if outcome is not None:
            failed.add(each.view.statement.name)
            refused.append((each.step, outcome))
    return refused


def _carry_out_one(
    client: Client, planned: PlannedView, tables: Mapping[str, str], failed: set[str], options: PlanOptions
) -> IscpError | None:
    if missing := [name for name in planned.awaits if name in failed]:
        return PermanentError(f"reads {', '.join(missing)}, which is not there", remedy="Apply again once it is")
    try:
        for name in planned.awaits:
            # Its target becomes a table with its first version; until then no view can be registered on it.
            client.wait(tables[name], name, 0, timeout_s=options.timeout_s, account=options.account)
        steps, faults = ([planned.step], []) if not planned.awaits else _check_again(client, planned, options)
        if faults:
            return faults[0].error
        for _, error in carry_out(client, steps):
            return error
    except PermanentError as error:
        return error
    return None


def _check_again(client: Client, planned: PlannedView, options: PlanOptions) -> tuple[list[Step], list[PlanFault]]:
    """What was not known while a view that it reads was not there."""
    found = client.check_many([planned.wanted.request], timeout_s=options.check_timeout_s)
    return steps_for([planned.wanted], found, resync=options.resync or planned.view.statement.replace)


def targets_of_views(client: Client, account: str) -> dict[str, str]:
    """Of all views that are registered, by their names as queries may write them."""
    found = ((job.name, view_of(job.spec_json)) for job in client.views(account=account))
    return {name.casefold(): view.target for name, view in found if view is not None}
