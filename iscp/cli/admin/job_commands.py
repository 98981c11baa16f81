"""`iscp-admin job …`."""

from __future__ import annotations

from typing import IO, Any

import click

from iscp.cli import render
from iscp.cli.admin.bulk import Choice, change_matching, choosing
from iscp.cli.admin.spec_options import OBJECT, RUN_OPTIONS, run_changes, run_options
from iscp.cli.admin.verify_command import verify
from iscp.cli.arguments import COLUMNS, DURATION, TABLE, TABLES, Invocation, anywhere, invocation
from iscp.core.api_requests import ChangeVerb, JobFilter, JobName, RegisterRequest
from iscp.core.ids import DEFAULT_ACCOUNT
from iscp.core.job_row import JobState, Reason
from iscp.core.name_patterns import is_pattern
from iscp.core.spec import parse_spec
from iscp.core.spec_fields import to_spec_json

ADOPT_WAIT_S = 3_600.0
"""How long `register --adopt-from` waits for the comparison of two large tables; the job goes on after it."""

ALIASES = {"create": "register", "delete": "unregister"}

_account = click.option("--account", default=DEFAULT_ACCOUNT, show_default=True, help="The tenant.")
_table = click.argument("table", type=TABLE, metavar="T")
_name = click.argument("name", metavar="N")


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


@click.group(cls=AliasedGroup)
@anywhere
def job() -> None:
    """Create, watch and change jobs.

    T is a path or URI of a Delta table, or db.table of the configured catalog; N is the job's name.
    """


@job.command()
@click.option("-f", "--file", type=click.File(encoding="utf-8"), help="Jobs in YAML, one or many; - is stdin.")
@click.option("--table", type=TABLE, metavar="T", help="The source table.")
@click.option("--name", metavar="N", help="The job's name, unique on its table.")
@click.option("--consumer", metavar="KIND", help="What to keep.  [default: replica]")
@click.option("--target", type=TABLE, metavar="URI", help="Where to keep it.")
@click.option("--key", type=COLUMNS, metavar="a,b", help="The columns that identify a row; none: append-only.")
@click.option("--columns", type=COLUMNS, metavar="a,b", help="Only these columns.")
@click.option("--where", metavar="SQL", help="Only the rows for which this holds.")
@click.option("--options", type=OBJECT, metavar="JSON", help="What the consumer is given besides.")
@click.option("--shards", type=click.IntRange(1), metavar="N", help="With --consumer changefeed: the feed's shards.")
@run_options
@click.option("--adopt", is_flag=True, default=None, help="The target is there, and holds the source's rows already.")
@click.option("--from-version", type=click.IntRange(0), metavar="V", help="With --adopt: as of this source version.")
@click.option("--account", metavar="A", help="The tenant.  [default: default]")
@anywhere
@invocation
def register(invocation: Invocation, /, file: IO[str] | None, **given: object) -> None:
    """Create a job; one that is there already is left as it is.

    With --adopt an existing table becomes the target as it is: its rows are compared with the source's at
    --from-version. If they differ, nothing is written, the difference is shown, and the exit status is 1.
    """
    requests = _requests(file, _fold_shards({name: value for name, value in given.items() if value is not None}))
    with invocation.client() as client:
        results = client.register_many(requests)
        if given.get("adopt"):
            job = requests[0].job
            client.wait(
                job.table,
                job.name,
                parse_spec(requests[0].spec_json).adopt_from,
                timeout_s=ADOPT_WAIT_S,
                account=job.account,
            )
    rows = [render.register_row(request, result) for request, result in zip(requests, results, strict=True)]
    if render.show(rows if file else rows[0], invocation.output):
        return
    for row in rows:
        click.echo(f"{row['name']} on {row['table']}: {'created' if row['created'] else 'exists already'}")
        if row["warning"]:
            click.echo(f"warning: {row['warning']}")


def _fold_shards(given: dict[str, Any]) -> dict[str, Any]:
    """--shards is one of the options that a changefeed is given."""
    if (shards := given.pop("shards", None)) is not None:
        given["options"] = {**given.get("options", {}), "shards": shards}
    return given


def _requests(file: IO[str] | None, given: dict[str, object]) -> list[RegisterRequest]:
    if file:
        if given:
            raise click.UsageError(f"-f cannot go with {', '.join(f'--{name}' for name in given)}".replace("_", "-"))
        from iscp.cli.admin.job_file import read_jobs

        return read_jobs(file, file.name)
    # Some consumers can do without a target; those that cannot say so.
    own = given.get("consumer", "replica") == "replica"
    for name in ("table", "name", *(("target",) if own else ())):
        if not given.get(name):
            raise click.UsageError(f"Missing option '--{name}' (or give the jobs with -f job.yaml)")
    if bool(given.pop("adopt", False)) is not ("from_version" in given):
        raise click.UsageError("--adopt and --from-version go together")
    given["adopt_from"] = given.pop("from_version", None)
    account = str(given.pop("account", DEFAULT_ACCOUNT))
    job = JobName(str(given.pop("table")), str(given.pop("name")), account)
    return [RegisterRequest(job, to_spec_json({"consumer": "replica", **given}))]


_state = click.option("--state", type=click.Choice([state.value for state in JobState]))
_reason = click.option("--reason", type=click.Choice([reason.value for reason in Reason]))
_of_table = click.option("--table", type=TABLE, metavar="T", default=None, help="Only jobs on this table.")
_tables = click.argument("tables", type=TABLES, metavar="[T]", default="*")
_names = click.argument("names", metavar="[N]", default="*")
_of_account = click.option("--account", metavar="A", default="", help="Only jobs of this tenant.")


def _filter(tables: str, names: str, table: str | None, **wanted: Any) -> dict[str, Any]:
    """As `Client.jobs` takes it; T without a pattern is one table, by whichever of its names."""
    if not is_pattern(tables):
        if table:
            raise click.UsageError("Give the table once: as T, or by --table")
        table, tables = tables, "*"
    patterns = {"table_pattern": tables, "name_pattern": names}
    return {"table": table or "", **wanted, **{name: value for name, value in patterns.items() if value != "*"}}


@job.command(name="list")
@_tables
@_names
@_state
@_reason
@_of_table
@_of_account
@click.option("--limit", type=click.IntRange(1), default=JobFilter().limit, show_default=True)
@anywhere
@invocation
def list_jobs(invocation: Invocation, /, limit: int, **wanted: Any) -> None:
    """Show jobs, all or those that match; T and N may be patterns, as 'sales.*'."""
    with invocation.client() as client:
        jobs = client.jobs(**_filter(**wanted), limit=limit)
    if not render.show([render.job_row(one) for one in jobs], invocation.output):
        render.show_jobs(jobs)
    if len(jobs) == limit:
        click.echo(f"shown are the first {limit}; --limit raises it", err=True)


@job.command()
@_tables
@_names
@_state
@_reason
@_of_table
@_of_account
@anywhere
@invocation
def count(invocation: Invocation, /, **wanted: Any) -> None:
    """Count jobs, all or those that match; T and N may be patterns, as 'sales.*'."""
    with invocation.client() as client:
        number = client.count(**_filter(**wanted))
    if not render.show({"count": number}, invocation.output):
        click.echo(number)


@job.command()
@_table
@_name
@_account
@anywhere
@invocation
def status(invocation: Invocation, /, table: str, name: str, account: str) -> None:
    """Show how a job stands: what is applied, its lag, its last error."""
    with invocation.client() as client:
        found = client.status(table, name, account=account)
    if not render.show(render.job_row(found), invocation.output):
        render.show_job(found)


@job.command()
@choosing
@anywhere
@invocation
def unregister(invocation: Invocation, /, choice: Choice) -> None:
    """Delete a job; its target stays as it is.

    T and N may be patterns, as 'sales.*'; without N it is all jobs of T.
    """
    job = choice.one()
    if job is None:
        change_matching(invocation, choice, ChangeVerb.UNREGISTER)
        return
    with invocation.client() as client:
        deleted = client.unregister(job.table, job.name, account=job.account)
    if not render.show({"deleted": deleted}, invocation.output):
        click.echo("deleted" if deleted else f"there is no job {job.name} on {job.table}")


@job.command()
@_table
@_name
@run_options
@click.option("--default", "defaults", type=click.Choice(RUN_OPTIONS), multiple=True, help="Give up what was set.")
@click.option("--interrupt", is_flag=True, help="Cancel what runs by the spec before, and start over.")
@_account
@anywhere
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
    with invocation.client() as client:
        changed = client.update(table, name, changes, interrupt=interrupt, account=account)
    if not render.show({"changed": changed}, invocation.output):
        click.echo("updated" if changed else "is so already")


@job.command()
@choosing
@anywhere
@invocation
def pause(invocation: Invocation, /, choice: Choice) -> None:
    """Start no more iterations of a job until it is resumed.

    T and N may be patterns, as 'sales.*'; without N it is all jobs of T.
    """
    job = choice.one()
    if job is None:
        change_matching(invocation, choice, ChangeVerb.PAUSE)
        return
    with invocation.client() as client:
        changed = client.pause(job.table, job.name, account=job.account)
    if not render.show({"changed": changed}, invocation.output):
        click.echo("paused" if changed else "was paused already")


@job.command()
@choosing
@anywhere
@invocation
def resume(invocation: Invocation, /, choice: Choice) -> None:
    """Go on with a job that is paused, quarantined or failed.

    T and N may be patterns, as 'sales.*'; without N it is all jobs of T.
    """
    job = choice.one()
    if job is None:
        change_matching(invocation, choice, ChangeVerb.RESUME)
        return
    with invocation.client() as client:
        changed = client.resume(job.table, job.name, account=job.account)
    if not render.show({"changed": changed}, invocation.output):
        click.echo("resumed" if changed else "was not paused")


@job.command()
@choosing
@click.option("--table", "new_table", type=TABLE, metavar="T", help="Of one job: where its source is now.")
@click.option("--spec", metavar="JSON", help="Of one job: what its job_spec is to be; @FILE reads it from a file.")
@anywhere
@invocation
def resync(invocation: Invocation, /, choice: Choice, new_table: str | None, spec: str | None) -> None:
    """Build a job's target anew from its source.

    Readers of the target see the old rows until the new ones are published, in one commit. A failed job is taken up
    again, a paused one is built when it is resumed. A source that was dropped and made anew is followed.

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
    click.echo(f"is made anew as {result.job_id}; `iscp-admin job wait` tells when it is done")
    if result.warning:
        click.echo(f"warning: {result.warning}")


def _spec_text(spec: str | None) -> str:
    if not spec or not spec.startswith("@"):
        return spec or ""
    try:
        with open(spec[1:], encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--spec: cannot read {spec[1:]}: {error}") from error


@job.command()
@_table
@_name
@click.option("--version", type=click.IntRange(0), help="The source version.  [default: the newest at the call]")
@click.option("--timeout", "timeout_s", type=DURATION, default="60s", show_default=True, help="As in 60s or 2m.")
@_account
@anywhere
@invocation
def wait(invocation: Invocation, /, table: str, name: str, version: int | None, timeout_s: float, account: str) -> None:
    """Wait until a job has applied a version of its table.

    Exit status 3 if that takes longer than --timeout.
    """
    with invocation.client() as client:
        found = client.wait(table, name, version, timeout_s=timeout_s, account=account)
    if not render.show(render.job_row(found), invocation.output):
        click.echo(f"version {found.applied_version} is applied")


job.add_command(verify)


@job.command()
@_table
@_name
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@_account
@anywhere
@invocation
def history(invocation: Invocation, /, table: str, name: str, limit: int, account: str) -> None:
    """Show a job's iterations, the newest first."""
    with invocation.client() as client:
        entries = client.history(table, name, limit=limit, account=account)
    if not render.show([render.history_row(entry) for entry in entries], invocation.output):
        render.show_history(entries)
