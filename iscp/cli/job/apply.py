"""`iscp-admin apply` and `iscp-admin export`: jobs as files say them."""

from __future__ import annotations

from typing import Any

import click

from iscp.cli.job.bulk import MATCHES_MAX
from iscp.cli.shell.arguments import files_option, invocation, jobs_arguments, matching, of_account
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import json_text, say, yaml_text


@click.command()
@files_option("A file, a directory of them, or -.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--prune", is_flag=True, help="Delete the jobs of the files' accounts that no file names.")
@click.option("--resync", is_flag=True, help="Rebuild targets where what they hold changes.")
@click.option("--yes", is_flag=True, help="Delete jobs without a question.")
@invocation
def apply(invocation: Invocation, /, paths: tuple[str, ...], **flags: Any) -> None:
    """Make the jobs as files say: create, update, and leave alone what is so already.

    All is checked before anything is written, but for a job on the target of a new one: it is registered once that
    target is built. Applying the same files again changes nothing.
    """
    from iscp.cli.job.apply_jobs import ApplyOptions, apply_jobs
    from iscp.cli.job.job_file import read_paths

    wanted = read_paths(paths)
    with invocation.client() as client:
        apply_jobs(invocation, client, wanted, ApplyOptions(**flags))


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
