"""Changes of one job, or of all that a pattern matches: what is chosen, the question before, and the counts after."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import TABLES, account_option, matching
from iscp.cli.shell.completion import JOB_NAME
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import confirm, say
from iscp.core.api.api_requests import ChangeOutcome, ChangeVerb, JobChange, JobName
from iscp.core.api.api_views import JobView
from iscp.core.job.name_patterns import is_pattern
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.spec.view_fields import view_of
from iscp.core.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.core.values.errors import PermanentError

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
            tally.count(batch, client.change_many([_change(verb, job) for job in batch]))
        again = [job for job, _ in tally.refused]
        jobs = again if verb is ChangeVerb.DELETE_TARGET and len(again) < len(jobs) else ()


def _matching(client: Client, choice: Choice) -> list[JobView]:
    return client.jobs(**matching(choice.table, choice.name or "*"), account=choice.account, limit=MATCHES_MAX)


def _change(verb: ChangeVerb, job: JobView) -> JobChange:
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
