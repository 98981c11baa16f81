"""`iscp-admin apply`: jobs as files define them.

`iscp-admin view apply` and `view import`: views and indexes of SQL files, and views of projects of other tools.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from iscp.cli.shell.arguments import TARGET, account_option, files_option, invocation, timeout_option
from iscp.cli.shell.context_file import Invocation
from iscp.cli.view.view_options import TABLE_OPTION
from iscp.model.values.errors import InvalidRequest

if TYPE_CHECKING:
    from iscp.cli.view.definition_files import Statement
    from iscp.cli.view.sql_statements import LeftOutView
    from iscp.client.admin_client import Client
    from iscp.model.run.run_plan import Wanted


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
@click.option("--set", "set_name", metavar="NAME", default="", help="Whose jobs they are, of several sets of files.")
@click.option("--prune", is_flag=True, help="Delete the jobs that the same set has made and no file names any more.")
@click.option("--claim", is_flag=True, help="Take jobs that are there, of no set or of another, into this one.")
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
    set_name: str,
    **flags: Any,
) -> None:
    """Make the jobs as files say: create, update, and leave alone what is so already.

    They are the files of `iscp run`: YAML or JSON of jobs; *.sql with CREATE MATERIALIZED VIEW, and CREATE FULLTEXT,
    VECTOR or SEARCH INDEX; a Spark pipeline, or a manifest or project of dbt. --table, --target-root and --account are
    for what is not YAML. Of a directory a file that is not understood is refused.

    All is checked before anything is written, but for a job on the target of a new one: it is registered once that
    target is built. Applying the same files again changes nothing.
    """
    from iscp.cli.job.apply_jobs import ApplyOptions, apply_jobs
    from iscp.cli.view.definition_files import in_set, read_definitions
    from iscp.model.spec.spec import set_of
    from iscp.model.spec.spec_parsing import check_set

    check_set(set_name, "--set")
    found = read_definitions(paths, quiet=invocation.output == "json")
    set_name = found.set_name(set_name)
    in_set(found.wanted, set_name)
    sets = {set_of(each.request.spec_json) for each in found.wanted} | {set_name}
    if flags["prune"]:
        _refuse_to_prune(sets - {""}, found.left_out)
    left_out = {each.name for each in found.left_out}
    options = ApplyOptions(**flags, left_out=frozenset(left_out), more=_more(found.left_out))
    with invocation.client() as client:
        registered = client.views(account=account) if found.statements else []
        wanted = in_set(found.jobs(registered, tables, target_root or "", account), set_name)
        if flags["claim"] and not all(set_of(each.request.spec_json) for each in wanted):
            raise _without_set("--claim")
        apply_jobs(invocation, client, wanted, options)


def _more(left_out: Sequence[LeftOutView]) -> dict[str, Any]:
    return {"left_out": [dataclasses.asdict(each) for each in left_out]} if left_out else {}


def _refuse_to_prune(sets: Collection[str], left_out: Sequence[LeftOutView]) -> None:
    """Raise InvalidRequest where it is not known what may be deleted."""
    if not sets:
        raise _without_set("--prune")
    for each in left_out:
        if not each.name:
            raise InvalidRequest(
                f"is given, and {each.place} has a view whose name is not known, as {each.why}",
                field="--prune",
                remedy="Correct it there, or apply without --prune",
            )


def _without_set(option: str) -> InvalidRequest:
    return InvalidRequest(
        "needs the name of the set that the jobs are of",
        field=option,
        remedy="Give --set NAME, or write a document `set: NAME` into one of the files",
    )


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
    from iscp.cli.view.definition_files import read_statements, sql_files_of

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
    from iscp.cli.view.definition_files import wanted_jobs, warn_of_ignored

    wanted = wanted_jobs(statements, client.views(account=account), target_root, tables, aliases, account)
    if invocation.output != "json":
        warn_of_ignored(statements)
    return wanted
