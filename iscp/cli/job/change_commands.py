"""`iscp-admin job unregister`, `update`, `pause`, `resume` and `resync`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from iscp.cli.job.bulk import Choice, change_matching, choosing, held_by, target_words
from iscp.cli.job.spec_options import RUN_OPTIONS, run_changes, run_options
from iscp.cli.shell import render
from iscp.cli.shell.arguments import TABLE, account_option, invocation, job_arguments
from iscp.cli.shell.error_words import options_named
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import confirm, say
from iscp.core.api.api_requests import ChangeVerb, JobName
from iscp.core.api.api_views import JobView

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

_DONE = {
    ChangeVerb.PAUSE: ("is paused", "was paused already"),
    ChangeVerb.RESUME: ("is resumed", "is neither paused nor failing"),
}
"""What is printed of a job that was changed by the verb, and of one that was not."""

SPEC_CHARS_MAX = 1_000_000
"""Characters of a file that `job resync --spec @FILE` reads; a longer one is refused."""


DELETE_TARGET_OPTION = click.option(
    "--delete-target", is_flag=True, help="Delete its target too, with all that is stored beside it."
)


@click.command()
@choosing
@DELETE_TARGET_OPTION
@invocation
def unregister(invocation: Invocation, /, choice: Choice, delete_target: bool) -> None:
    """Delete a job; its target stays as it is, but for --delete-target.

    T and N may be patterns, as 'sales.*'; without N it is all jobs of T.
    """
    job = choice.one()
    if job is None:
        change_matching(invocation, choice, ChangeVerb.DELETE_TARGET if delete_target else ChangeVerb.UNREGISTER)
        return
    with invocation.client() as client:
        if delete_target:
            there = client.status(job.table, job.name, account=job.account)
            delete_with_target(invocation, client, there, yes=choice.yes)
            return
        deleted = client.unregister(job.table, job.name, account=job.account)
    if not render.show({"deleted": deleted}, invocation.output):
        say(f"{job.name} on {job.table} is deleted" if deleted else f"there is no job {job.name} on {job.table}")


def delete_with_target(invocation: Invocation, client: Client, job: JobView, *, yes: bool) -> None:
    """Put the question whether to delete one job with its target (`yes`: there is none), and do so."""
    if not yes:
        confirm(f"delete {job.name} on {job.table} with {target_words(job)}?")
    deleting = client.unregister(job.table_id, job.name, delete_target=True, account=job.account)
    if render.show({"deleting": deleting, **held_by(job)}, invocation.output):
        return
    shown = "it is there, paused, until its target is gone: `iscp-admin job status` says what is in the way"
    say(f"{job.name} on {job.table} is being deleted; {shown}" if deleting else f"there is no job {job.name}")


@click.command()
@job_arguments
@run_options
@click.option("--default", "defaults", type=click.Choice(RUN_OPTIONS), multiple=True, help="Give up what was set.")
@click.option("--interrupt", is_flag=True, help="Cancel what runs by the spec before, and start over.")
@account_option
@invocation
def update(
    invocation: Invocation,
    /,
    table: str,
    name: str,
    defaults: tuple[str, ...],
    interrupt: bool,
    account: str,
    **given: object,
) -> None:
    """Change when and how a job runs; what is not given stays as it is.

    An iteration that is under way ends first, unless it is to be interrupted. What the target holds (key, columns,
    where, target) cannot be changed so: see `job resync`.
    """
    changes = run_changes(given, defaults)
    if not changes:
        raise click.UsageError("Give what to change, as in --target-lag 30s")
    with invocation.client() as client, options_named("T"):
        changed = client.update(table, name, changes, interrupt=interrupt, account=account)
    if not render.show({"changed": changed}, invocation.output):
        say(f"{name} on {table} is {'updated' if changed else 'so already'}")


@click.command()
@choosing
@invocation
def pause(invocation: Invocation, /, choice: Choice) -> None:
    """Start no more iterations of a job until it is resumed.

    T and N may be patterns, as 'sales.*'; without N it is all jobs of T.
    """
    _change(invocation, choice, ChangeVerb.PAUSE)


@click.command()
@choosing
@invocation
def resume(invocation: Invocation, /, choice: Choice) -> None:
    """Go on with a job that is paused, quarantined or failed, or retry one at once.

    T and N may be patterns, as 'sales.*'; without N it is all jobs of T.
    """
    _change(invocation, choice, ChangeVerb.RESUME)


def _change(invocation: Invocation, choice: Choice, verb: ChangeVerb) -> None:
    job = choice.one()
    if job is None:
        change_matching(invocation, choice, verb)
        return
    with invocation.client() as client:
        pause_or_resume(invocation, client, job, verb, f"{job.name} on {job.table}")


def pause_or_resume(invocation: Invocation, client: Client, job: JobName, verb: ChangeVerb, shown: str) -> None:
    """Pause or resume one job, and print what has become of it, which is called `shown`."""
    call = client.pause if verb is ChangeVerb.PAUSE else client.resume
    changed = call(job.table, job.name, account=job.account)
    if not render.show({"changed": changed}, invocation.output):
        done, unchanged = _DONE[verb]
        say(f"{shown} {done if changed else unchanged}")


@click.command()
@choosing
@click.option("--table", "new_table", type=TABLE, metavar="T", help="Of one job: where its source is now.")
@click.option("--spec", metavar="JSON", help="Of one job: what its job_spec is to be; @FILE reads it from a file.")
@invocation
def resync(invocation: Invocation, /, choice: Choice, new_table: str | None, spec: str | None) -> None:
    """Rebuild a job's target from its source.

    Readers of the target see the old rows until the new ones are published, in one commit. A failed job is taken up
    again, a paused one is built when it is resumed. A source that was dropped and recreated is followed.

    T and N may be patterns, as 'sales.*'; without N it is all jobs of T.
    """
    job = choice.one()
    if job is None:
        if new_table or spec:
            raise click.UsageError("--table and --spec are for one job: name it in full")
        change_matching(invocation, choice, ChangeVerb.RESYNC)
        return
    with invocation.client() as client:
        result = client.resync(
            job.table, job.name, new_table=new_table or "", spec=_spec_text(spec), account=job.account
        )
    shown = {"job_id": result.job_id, "table_id": result.table_id, "warning": result.warning}
    if render.show(shown, invocation.output):
        return
    say(f"{job.name} on {job.table} is being rebuilt as {result.job_id}; `iscp-admin job wait` returns when it is done")
    if result.warning:
        say(f"warning: {result.warning}")


def _spec_text(spec: str | None) -> str:
    if not spec or not spec.startswith("@"):
        return spec or ""
    try:
        with open(spec[1:], encoding="utf-8") as file:
            text = file.read(SPEC_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--spec: cannot read {spec[1:]}: {error}") from error
    if len(text) > SPEC_CHARS_MAX:
        raise click.UsageError(f"--spec: {spec[1:]} has more than {SPEC_CHARS_MAX} characters")
    return text
