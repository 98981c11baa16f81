"""`iscp-admin job edit`: a job as a file says it, in the user's editor, and applied when that is closed.

`iscp-admin export`: jobs as files say them.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iscp.cli.job.change_commands import MATCHES_MAX
from iscp.cli.shell.arguments import (
    absolute_table,
    account_option,
    invocation,
    job_arguments,
    jobs_arguments,
    matching,
    of_account,
)
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.terminal import json_text, say, yaml_text
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.spec.spec import flatten
from iscp.model.values.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from iscp.client.admin_client import Client
    from iscp.model.api.api_views import JobView


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
