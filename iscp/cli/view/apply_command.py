"""`iscp-admin apply`: jobs as files of YAML and of SQL say them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from iscp.cli.shell.arguments import TARGET, account_option, files_option, invocation, timeout_option
from iscp.cli.shell.invocation import Invocation
from iscp.cli.view.view_apply import jobs_of_statements
from iscp.cli.view.view_options import TABLE_OPTION
from iscp.core.values.argument_checks import Refusals

if TYPE_CHECKING:
    from iscp.cli.view.sql_files import Statement
    from iscp.core.run.wanted import Wanted


@click.command()
@files_option("A file, a directory of them, or -.")
@TABLE_OPTION
@click.option(
    "--target-root",
    type=TARGET,
    metavar="DIR",
    help="What statements of SQL say no target of is kept in DIR, under its name.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--prune", is_flag=True, help="Delete the jobs of the files' accounts that no file names.")
@click.option("--resync", is_flag=True, help="Rebuild targets where what they hold changes.")
@click.option("--yes", is_flag=True, help="Delete jobs, and rebuild what is written CREATE OR REPLACE, unasked.")
@timeout_option("1h", "How long to wait for a new job whose target another one reads.")
@account_option
@invocation
def apply(
    invocation: Invocation,
    /,
    paths: tuple[str, ...],
    tables: Mapping[str, str],
    target_root: str | None,
    account: str,
    **flags: Any,
) -> None:
    """Make the jobs as files say: create, update, and leave alone what is so already.

    A file *.sql has statements: CREATE MATERIALIZED VIEW, and CREATE FULLTEXT, VECTOR or SEARCH INDEX; --table,
    --target-root and --account are for these. All others, and the files of a directory, are YAML or JSON.

    All is checked before anything is written, but for a job on the target of a new one: it is registered once that
    target is built. Applying the same files again changes nothing.
    """
    from iscp.cli.job.apply_jobs import ApplyOptions, apply_jobs
    from iscp.cli.job.job_file import read_paths
    from iscp.cli.view.sql_files import SQL_SUFFIX, read_statements

    written = [path for path in paths if path.endswith(SQL_SUFFIX)]
    refusals = Refusals()
    wanted: list[Wanted] = []
    statements: list[Statement] = []
    with refusals.collect():
        wanted = read_paths([path for path in paths if path not in written])
    with refusals.collect():
        statements = read_statements(written) if written else []
    refusals.raise_all()
    with invocation.client() as client:
        if statements:
            wanted += jobs_of_statements(invocation, client, statements, target_root or "", tables, account)
        apply_jobs(invocation, client, wanted, ApplyOptions(**flags))
