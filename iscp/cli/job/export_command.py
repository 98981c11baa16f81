"""`iscp-admin export`: jobs as files say them."""

from __future__ import annotations

import click

from iscp.cli.job.bulk import MATCHES_MAX
from iscp.cli.shell.arguments import invocation, jobs_arguments, matching, of_account
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import json_text, say, yaml_text


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
