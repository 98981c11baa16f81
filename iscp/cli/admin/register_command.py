"""`iscp-admin job register`."""

from __future__ import annotations

from typing import IO, Any

import click

from iscp.cli import render
from iscp.cli.admin.spec_options import OBJECT, run_options
from iscp.cli.arguments import COLUMNS, TABLE, Invocation, anywhere, invocation
from iscp.core.api_requests import JobName, RegisterRequest
from iscp.core.ids import DEFAULT_ACCOUNT
from iscp.core.spec_fields import to_spec_json
from iscp.core.spec_parsing import parse_spec

ADOPT_WAIT_S = 3_600.0
"""How long `register --adopt` waits for the comparison of two large tables; the job goes on after it."""


@click.command()
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
