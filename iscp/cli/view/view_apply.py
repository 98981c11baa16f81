"""`iscp-admin view apply` and `view import`: views and indexes of SQL files, and views of projects of other tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from iscp.cli.shell.arguments import TARGET, account_option, files_option, invocation, timeout_option
from iscp.cli.shell.invocation import Invocation
from iscp.cli.view.view_options import TABLE_OPTION

if TYPE_CHECKING:
    from iscp.cli.view.sql_files import Statement
    from iscp.client.admin_client import Client
    from iscp.core.run.wanted import Wanted

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    TABLE_OPTION,
    click.option(
        "--target-root", type=TARGET, required=True, metavar="DIR", help="Each view is kept in DIR, under its name."
    ),
    click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
    click.option("--resync", is_flag=True, help="Rebuild targets where a query has changed."),
    click.option("--yes", is_flag=True, help="Rebuild what is written CREATE OR REPLACE without a question."),
    timeout_option("1h", "How long to wait for a new view that another one reads, before that one is registered."),
    account_option,
)


def project_options(command: F) -> F:
    """Give a command the options that say where the tables and targets of views are, and what may be done."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(name="apply")
@files_option("A file of CREATE MATERIALIZED VIEW and CREATE … INDEX statements, a directory of *.sql, or -.")
@project_options
@invocation
def apply_views_of_files(invocation: Invocation, /, paths: tuple[str, ...], **options: Any) -> None:
    """Make the views and indexes as files of SQL say: create, update, and leave alone what is so already.

    A view may read another one by its name, and an index may be on one. All is checked before anything is written, but
    for what reads a new view: it is registered once that one is built. Applying the same files again changes nothing.
    """
    from iscp.cli.view.definition_files import sql_files_of
    from iscp.cli.view.sql_files import read_statements

    _apply(invocation, read_statements(sql_files_of(paths)), **options)


@click.command(name="import")
@click.argument("project", type=click.Path(), metavar="PATH")
@project_options
@invocation
def import_views(invocation: Invocation, /, project: str, **options: Any) -> None:
    """Take over the materialized views of a Spark Declarative Pipelines project or a dbt project.

    PATH is a directory with a spark-pipeline.yml or a target/manifest.json, or such a file. Of a pipeline it is the
    views in SQL, and functions of Python that do nothing but return spark.sql("…"); of dbt the compiled models that
    have iscp in their meta. Nothing of the project is run. What cannot be taken over is listed.
    """
    from iscp.cli.view.definition_files import read_project, refuse_empty, warn_of_project

    found = read_project(project)
    if invocation.output != "json":
        warn_of_project(found)
    refuse_empty(project, found)
    more = {"left_out": [dataclasses.asdict(each) for each in found.left_out]}
    _apply(invocation, found.views, found.aliases, more=more, **options)


def _apply(
    invocation: Invocation,
    statements: Sequence[Statement],
    aliases: Mapping[str, str] = MappingProxyType({}),
    *,
    tables: Mapping[str, str],
    target_root: str,
    account: str,
    **flags: Any,
) -> None:
    from iscp.cli.job.apply_jobs import ApplyOptions, apply_jobs

    with invocation.client() as client:
        wanted = jobs_of_statements(invocation, client, statements, target_root, tables, account, aliases)
        apply_jobs(invocation, client, wanted, ApplyOptions(**flags))


def jobs_of_statements(
    invocation: Invocation,
    client: Client,
    statements: Sequence[Statement],
    target_root: str,
    tables: Mapping[str, str],
    account: str,
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> list[Wanted]:
    """Return the jobs that statements want, and warn of what has no effect in them. Raises InvalidRequest."""
    from iscp.cli.view.definition_files import warn_of_ignored
    from iscp.cli.view.view_order import wanted_jobs

    wanted = wanted_jobs(statements, client.views(account=account), target_root, tables, aliases, account)
    if invocation.output != "json":
        warn_of_ignored(statements)
    return wanted
