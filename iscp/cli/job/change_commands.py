"""`iscp-admin job unregister`, `update`, `pause`, `resume` and `resync`.

Changes of one job, or of all that a pattern matches: what is chosen, the question before, and the counts after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import click

from iscp.cli.job.register_command import RUN_OPTIONS, run_changes, run_options
from iscp.cli.shell import render
from iscp.cli.shell.arguments import JOB_NAME, TABLE, TABLES, account_option, invocation, job_arguments, matching
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.root_group import options_named
from iscp.cli.shell.terminal import confirm, say
from iscp.model.api.api_requests import ChangeOutcome, ChangeVerb, JobChange, JobName, JobView
from iscp.model.job.registration_id import is_pattern
from iscp.model.spec.spec_parsing import parse_spec, view_of
from iscp.model.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.model.values.errors import PermanentError

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

MATCHES_MAX = 1_000_000
"""Jobs that a pattern of a command selects; more are neither shown nor changed."""

SHOWN_MAX = 10
"""Jobs shown before the question whether to change them all; of others their number is shown."""

BATCH = {ChangeVerb.RESYNC: 100}
"""Changes in one call where they cost more than a row of the job log."""
BATCH_MAX = 2_000
"""Jobs in one request to change; the others follow in further requests."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The jobs that T, N and the options name."""

    table: str
    name: str | None
    account: str
    yes: bool
    dry_run: bool

    def one(self) -> JobName | None:
        """Return the job if it is named in full, or None for all that match."""
        if self.name is None or self.dry_run or is_pattern(self.table) or is_pattern(self.name):
            return None
        return JobName(self.table, self.name, self.account)


_ARGUMENTS = (
    click.argument("table", type=TABLES, metavar="T"),
    click.argument("name", type=JOB_NAME, metavar="[N]", required=False),
    account_option,
    click.option("--yes", is_flag=True, help="Change them without a question, where there would be one."),
    click.option("--dry-run", is_flag=True, help="Only show which jobs match."),
)


def choosing(command: F) -> F:
    """Give a command the arguments T and N, and hand it a Choice."""

    @functools.wraps(command)
    def pack(*args: Any, table: str, name: str | None, account: str, yes: bool, dry_run: bool, **more: Any) -> Any:
        return command(*args, choice=Choice(table, name, account, yes, dry_run), **more)

    chosen: Any = pack
    for argument in reversed(_ARGUMENTS):
        chosen = argument(chosen)
    return chosen  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Tally:
    matched: int
    changed: int = 0
    unchanged: int = 0
    refused: list[tuple[JobView, PermanentError]] = field(default_factory=list)

    def count(self, jobs: Sequence[JobView], outcomes: Sequence[ChangeOutcome]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, PermanentError):
                self.refused.append((job, outcome))
            else:
                self.changed += outcome
                self.unchanged += not outcome


def change_matching(invocation: Invocation, choice: Choice, verb: ChangeVerb) -> None:
    """Ask, change all jobs that match, each for itself, and print the counts; exit status 1 if any was refused."""
    with invocation.client() as client:
        jobs = _matching(client, choice)
        if choice.dry_run or not jobs:
            _show_matching(invocation, jobs)
            return
        if not choice.yes:
            _confirm(verb, jobs)
        tally = _Tally(len(jobs))
        try:
            _change_all(client, jobs, verb, tally)
        finally:
            _show(invocation, tally, verb)
    if tally.refused:
        raise click.exceptions.Exit(1)


def _change_all(client: Client, jobs: Sequence[JobView], verb: ChangeVerb, tally: _Tally) -> None:
    """Change the jobs; those whose targets are not deleted as long as others read them, after these others."""
    while jobs:
        tally.refused = []
        for batch in batches(jobs, BATCH.get(verb, BATCH_MAX)):
            tally.count(batch, client.change_many([_change_each(verb, job) for job in batch]))
        again = [job for job, _ in tally.refused]
        jobs = again if verb is ChangeVerb.DELETE_TARGET and len(again) < len(jobs) else ()


def _matching(client: Client, choice: Choice) -> list[JobView]:
    return client.jobs(**matching(choice.table, choice.name or "*"), account=choice.account, limit=MATCHES_MAX)


def _change_each(verb: ChangeVerb, job: JobView) -> JobChange:
    # By the table's id: of one that was dropped and recreated there may be jobs under both.
    return JobChange(verb, JobName(job.table_id, job.name, job.account), uuid4().hex)


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _confirm(verb: ChangeVerb, jobs: Sequence[JobView]) -> None:
    with_targets = verb is ChangeVerb.DELETE_TARGET
    for job in jobs[:SHOWN_MAX]:
        target = f", with {target_words(job)}" if with_targets else ""
        say(f"  {job.name} on {job.table}{target}", err=True)
    if len(jobs) > SHOWN_MAX:
        say(f"  and {len(jobs) - SHOWN_MAX} more (--dry-run shows all)", err=True)
    if verb is ChangeVerb.UNREGISTER:
        say(_staying(jobs), err=True)
    confirm(f"delete {job_words(len(jobs))} with all targets?" if with_targets else f"{verb} {job_words(len(jobs))}?")


def target_words(job: JobView) -> str:
    """Return what goes with a job that is deleted with its target, in words."""
    target = parse_spec(job.spec_json).consumer.target
    beside = ", and what is kept beside it" if view_of(job.spec_json) is not None else ""
    held = held_by(job)
    size = f" ({held['rows']:,} rows, {render.size(held['bytes'])})" if held else ""
    return f"its target {target}{size}{beside}" if target else "no target"


def held_by(job: JobView) -> dict[str, int]:
    """Return the `rows` and `bytes` of a job's target; nothing where its view does not say both."""
    found = {name: int(job.figures[name]) for name in ("rows", "bytes") if name in job.figures}
    return found if len(found) == 2 else {}


def _staying(jobs: Sequence[JobView]) -> str:
    """Return what jobs leave behind when they are deleted, in words."""
    targets = "its target stays as it is" if len(jobs) == 1 else "their targets stay as they are"
    views = [view for view in (view_of(job.spec_json) for job in jobs[:SHOWN_MAX]) if view is not None]
    if not views:
        return targets
    places = ", ".join(f"{view.target}{VIEW_STATE_SUFFIX}" for view in views)
    return f"{targets}, and so does what is kept beside views, as {places}"


def _show_matching(invocation: Invocation, jobs: Sequence[JobView]) -> None:
    if not render.show([_named(job) for job in jobs], invocation.output):
        for job in jobs:
            say(f"{job.name} on {job.table}")
        say(f"{job_words(len(jobs))} match" + ("es" if len(jobs) == 1 else ""), err=True)


def _show(invocation: Invocation, tally: _Tally, verb: ChangeVerb) -> None:
    refused = [{**_named(job), "error": error.message, "remedy": error.remedy} for job, error in tally.refused]
    counts = {"matched": tally.matched, "changed": tally.changed, "unchanged": tally.unchanged}
    if render.show({**counts, "refused": refused}, invocation.output):
        return
    for each in refused:
        say(f"{each['name']} on {each['table']}: {each['error']}. {each['remedy']}", err=True)
    attempted = tally.changed + tally.unchanged + len(refused)
    left = f", {tally.matched - attempted} not attempted" if attempted < tally.matched else ""
    changed = f"{verb.replace('_', ' ')}: {job_words(tally.changed)} changed"
    say(f"{changed}, {tally.unchanged} were so already, {len(refused)} refused{left}")


def _named(job: JobView) -> dict[str, str]:
    return {"account": job.account, "table": job.table, "name": job.name}


def job_words(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"


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
