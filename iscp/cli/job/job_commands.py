"""The commands of `iscp-admin job` that show jobs and wait for them, with `iscp-admin job edit` and `iscp-admin
export`.

The other commands of the group lie in other modules of this package.
"""

from __future__ import annotations

import dataclasses
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from iscp.cli.job.change_commands import MATCHES_MAX, pause, resume, resync, unregister, update
from iscp.cli.job.register_command import register
from iscp.cli.job.status_commands import check, describe, history, verify
from iscp.cli.shell import render
from iscp.cli.shell.arguments import (
    LIMIT,
    TABLE,
    VERSION,
    Step,
    WholeNumber,
    absolute_table,
    account_option,
    anywhere,
    beginning,
    invocation,
    job_arguments,
    jobs_arguments,
    matching,
    of_account,
    parse_path,
    timeout_option,
    values_at,
)
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.render import show_left_out
from iscp.cli.shell.root_group import watched
from iscp.cli.shell.terminal import json_text, say, yaml_text
from iscp.model.api.api_requests import JobFilter, JobName, JobView, RegisterRequest
from iscp.model.job.job_row import JobCondition, JobState, JobStatus, Reason
from iscp.model.job.registration_id import is_pattern
from iscp.model.spec.spec import flatten
from iscp.model.values.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from iscp.client.admin_client import Client
    from iscp.model.api.api_requests import JobView


# --- edit and export --------------------------------------------------------------------------------------------------
# `iscp-admin job edit` opens a job, as a file says it, in the user's editor, and applies the text when the editor is
# closed. `iscp-admin export` prints jobs as files say them.

HEAD = """\
# The job is changed as this file says once it is stored and the editor is closed; a file that is left as it is changes
# nothing. `iscp-admin explain` explains the fields. A field that is not given has its default.
"""
"""What stands above the job in the editor."""


@click.command()
@job_arguments
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--yes", is_flag=True, help="Rebuild the target without a question, if what it holds changes.")
@account_option
@invocation
def edit(invocation: Invocation, /, table: str, name: str, account: str, dry_run: bool, yes: bool) -> None:
    """Change a job in an editor, that of VISUAL or EDITOR.

    It is there as `iscp-admin export` prints it, and is applied as by `iscp-admin apply`: what is wrong is refused, and
    a target is rebuilt only once that is confirmed. A text that was refused is kept, and the command names its file.
    """
    from iscp.cli.job.apply_jobs import ApplyOptions, apply_jobs
    from iscp.model.run.run_plan import Wanted

    with invocation.client() as client:
        job = client.status(table, name, account=account)
        with _file(_text_of(job)) as path:
            _open_editor(path)
            request = _changed(path, job)
            _refuse_if_changed_meanwhile(client, job)
            wanted = Wanted(request, str(path), rebuild=True)
            apply_jobs(invocation, client, [wanted], ApplyOptions(dry_run=dry_run, yes=yes, claim=True))


def _text_of(job: JobView) -> str:
    from iscp.cli.job.job_file import entry_of

    return HEAD + yaml_text(entry_of(job))


@contextmanager
def _file(text: str) -> Iterator[Path]:
    """Yield a file of the user's own with the text. It is removed at the end, unless what a person has made of it was
    refused.
    """
    handle, name = tempfile.mkstemp(prefix="iscp-job-", suffix=".yaml")
    path = Path(name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        yield path
    except BaseException:
        if _is_worth_keeping(path, text):
            say(f"your text is kept in {path}", err=True)
        raise
    path.unlink(missing_ok=True)


def _is_worth_keeping(path: Path, text: str) -> bool:
    """Return whether the file was changed; one that was not is removed."""
    try:
        if path.read_bytes() != text.encode():
            return True
        path.unlink()
    except OSError:  # the editor has removed it
        pass
    return False


def _open_editor(path: Path) -> None:
    try:
        click.edit(filename=str(path))
    except click.ClickException as error:
        raise InvalidRequest(
            error.message, about="EDITOR", remedy="Set VISUAL or EDITOR to an editor that ends once the file is closed"
        ) from error


def _changed(path: Path, job: JobView) -> RegisterRequest:
    """Return the job as the file says it. Raises InvalidRequest if that is wrong, another job, or as it was."""
    from iscp.cli.job.job_file import read_jobs

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"cannot be read: {error}", field=str(path), remedy="Store it as UTF-8") from error
    requests = read_jobs(io.StringIO(text), str(path))
    own = JobName(absolute_table(job.table), job.name, job.account)
    if [request.job for request in requests] != [own]:
        raise InvalidRequest(
            "says another job, or more than one",
            field=str(path),
            remedy="Leave table, name and account as they are; further jobs are made by `iscp-admin apply`",
        )
    if flatten(requests[0].spec_json) == flatten(job.spec_json):
        raise InvalidRequest("nothing was changed", about="N", remedy="Change the job in the editor, and store it")
    return requests[0]


def _refuse_if_changed_meanwhile(client: Client, job: JobView) -> None:
    now = client.status(job.table_id, job.name, account=job.account)
    if (now.job_id, now.spec_json) != (job.job_id, job.spec_json):
        raise Conflict(
            f"{job.name} on {job.table} was changed by somebody else meanwhile", about="N", remedy="Edit it again"
        )


@click.command()
@jobs_arguments
@of_account
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


# --- order ------------------------------------------------------------------------------------------------------------
# `--sort-by` puts jobs in the order of a field that `-o json` shows.


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """An order by the value at `path` in a job's row, the greatest first if `descending`."""

    path: tuple[Step, ...]
    descending: bool


class SortType(click.ParamType):  # type: ignore[type-arg]
    name = "field"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Order:
        if isinstance(value, Order):
            return value
        try:
            return Order(parse_path(value.removeprefix("-")), value.startswith("-"))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [each.name for each in dataclasses.fields(JobView)]
        names += [f"status.{each.name}" for each in dataclasses.fields(JobStatus)]
        return beginning(incomplete, names)


def sorted_jobs(jobs: Sequence[JobView], order: Order) -> list[JobView]:
    """Return the jobs in order; those without a value there come last. Raises click.UsageError if no job has one."""
    keyed = [(job, _value(job, order)) for job in jobs]
    known = [(job, value) for job, value in keyed if value is not None]
    if jobs and not known:
        raise click.UsageError("--sort-by: no job has such a field; see `iscp-admin job list -o json`")
    # Numbers before texts, if a field of specs holds both.
    known.sort(key=lambda each: (isinstance(each[1], str), each[1]), reverse=order.descending)
    return [job for job, _ in known] + [job for job, value in keyed if value is None]


def _value(job: JobView, order: Order) -> float | str | None:
    try:
        found = values_at(render.job_row(job), order.path)
    except LookupError:
        return None
    value = found[0] if len(found) == 1 else None
    return value if isinstance(value, (int, float, str)) else None


# --- the group `iscp-admin job` ---------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])

ALIASES = {"create": "register", "delete": "unregister"}


class AliasedGroup(click.Group):
    """Knows some commands by a second name, which its help names beside the first."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(name, name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = {first: alias for alias, first in ALIASES.items()}
        rows = []
        for name in self.list_commands(ctx):
            if command := self.get_command(ctx, name):
                shown = f"{name}, {others[name]}" if name in others else name
                rows.append((shown, command.get_short_help_str(80)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class StateType(click.Choice[str]):
    """A condition, or for scripts of before the state that the job log has."""

    def __init__(self) -> None:
        super().__init__([each.value for each in (*JobCondition, *JobState)])


@click.group(cls=AliasedGroup)
@anywhere
def job() -> None:
    """Create, watch and change jobs.

    T is a path or URI of a Delta table, or db.table of the configured catalog; N is the job's name.
    """


def _filtered(command: F) -> F:
    """Give a command the arguments and options that say which jobs are meant, as `_filter` takes them."""
    options = (
        jobs_arguments,
        click.option("--state", type=StateType(), metavar="STATE", help=f"One of {', '.join(JobCondition)}."),
        click.option("--reason", type=click.Choice([reason.value for reason in Reason])),
        click.option("--table", type=TABLE, metavar="T", default=None, help="Only jobs on this table."),
        of_account,
        click.option("--late", is_flag=True, help="Only jobs that lag by more than their target lag."),
        click.option("--failed", is_flag=True, help="Only jobs that wait for somebody: --state failed."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _filter(
    tables: str, names: str, table: str | None, failed: bool, state: str | None, **wanted: Any
) -> dict[str, Any]:
    """Return the filter that `Client.jobs` takes; what it says of conditions is left to `_matching`."""
    if failed and state not in (None, JobCondition.FAILED):
        raise click.UsageError(f"--failed is --state {JobCondition.FAILED}: it cannot go with --state {state}")
    wanted["state"] = state if state in {*JobState} else None
    if table and not is_pattern(tables):
        raise click.UsageError("Give the table once: as T, or by --table")
    return {**wanted, **matching(tables, names), **({"table": table} if table else {})}


def _condition(*, failed: bool, state: str | None, **_: Any) -> str:
    """Return the condition that jobs are to have; empty: any. The words of the job log are left to the node."""
    return JobCondition.FAILED if failed else state if state and state in {*JobCondition} else ""


@job.command(name="list")
@_filtered
@click.option("--sort-by", type=SortType(), metavar="[-]FIELD", help="As in lag_s, or -status.rows: greatest first.")
@click.option("--limit", type=LIMIT, default=JobFilter().limit, show_default=True)
@watched
@invocation
def list_jobs(invocation: Invocation, /, limit: int, sort_by: Order | None, **wanted: Any) -> None:
    """Show jobs, all or those that match; T and N may be patterns, as 'sales.*'."""
    with invocation.client() as client:
        condition = _condition(**wanted)
        jobs = client.jobs(**_filter(**wanted), limit=MATCHES_MAX if sort_by or condition else limit)
    jobs = [each for each in jobs if condition in ("", each.condition)]
    jobs = (sorted_jobs(jobs, sort_by) if sort_by else jobs)[:limit]
    if not render.show([render.job_row(one) for one in jobs], invocation.output):
        render.show_jobs(jobs, wide=invocation.wide)
    if len(jobs) == limit:
        say(f"shown are the first {limit}; --limit raises it", err=True)


@job.command()
@_filtered
@watched
@invocation
def count(invocation: Invocation, /, **wanted: Any) -> None:
    """Count jobs, all or those that match; T and N may be patterns, as 'sales.*'."""
    with invocation.client() as client:
        if condition := _condition(**wanted):
            jobs = client.jobs(**_filter(**wanted), limit=MATCHES_MAX)
            number = sum(each.condition == condition for each in jobs)
        else:
            number = client.count(**_filter(**wanted))
    if not render.show({"count": number}, invocation.output):
        say(number)


@job.command()
@job_arguments
@account_option
@watched
@invocation
def status(invocation: Invocation, /, table: str, name: str, account: str) -> None:
    """Show a job's status: what is applied, its lag, its last error."""
    with invocation.client() as client:
        found = client.status(table, name, account=account)
    if not render.show(render.job_row(found), invocation.output):
        render.show_job(found)


@job.command()
@job_arguments
@click.option("--version", type=VERSION, help="The source version.  [default: the newest at the call]")
@timeout_option("60s", "As in 60s or 2m.")
@account_option
@invocation
def wait(invocation: Invocation, /, table: str, name: str, version: int | None, timeout_s: float, account: str) -> None:
    """Wait until a job has applied a version of its table.

    Exit status 3 if that takes longer than --timeout.
    """
    with invocation.client() as client:
        found = client.wait(table, name, version, timeout_s=timeout_s, account=account)
    if not render.show(render.job_row(found), invocation.output):
        say(f"version {found.applied_version} is applied")


for command in (register, unregister, update, pause, resume, resync, verify, describe, check, history, edit):
    job.add_command(command)


@job.command()
@job_arguments
@click.option("--limit", type=WholeNumber(1, 100), default=20, show_default=True)
@account_option
@watched
@invocation
def dead_letters(invocation: Invocation, /, table: str, name: str, limit: int, account: str) -> None:
    """Show rows that a job leaves out of its target, and why."""
    with invocation.client() as client:
        found = client.dead_letters(table, name, limit=limit, account=account)
    if not render.show(dataclasses.asdict(found), invocation.output):
        show_left_out(found, wide=invocation.wide)
