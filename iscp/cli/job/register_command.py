"""`iscp-admin job register`.

The options of `iscp-admin job …` that say when and how a job runs, one for each flat name of a job_spec.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from iscp.cli.job.apply_plan import changes_of
from iscp.cli.shell import render
from iscp.cli.shell.arguments import (
    ACCOUNT,
    ACCOUNT_VARIABLE,
    COLUMNS,
    DURATION,
    TABLE,
    TARGET,
    VERSION,
    WholeNumber,
    invocation,
)
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.root_group import ExitStatus, option_of, options_named, places_named, show_error
from iscp.cli.shell.terminal import say
from iscp.model.api.api_requests import Action, CheckedJob, JobName, RegisterRequest, RegisterResult
from iscp.model.spec.spec import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    SET,
    ChangeMode,
    OnDuplicate,
    OnReplace,
    OnSchemaChange,
    RunFields,
    TriggerType,
    nest,
    set_of,
    to_spec_json,
)
from iscp.model.spec.spec_parsing import OPTIONS_FIELD, parse_spec
from iscp.model.values.errors import InvalidRequest, IscpError, PermanentError
from iscp.model.values.ids import DEFAULT_ACCOUNT

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


F = TypeVar("F", bound=Callable[..., Any])


class ObjectType(click.ParamType):  # type: ignore[type-arg]
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            parsed = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError) as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail(f"{value!r} is not an object. Give it as in '{{\"name\": 1}}'", param, ctx)
        return parsed


class NamedValueType(click.ParamType):  # type: ignore[type-arg]
    """A name with a value: a number, true or false as JSON writes them, and a text otherwise."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not (name.strip() and equals):
            self.fail(f"{value!r} is not NAME=VALUE. Give it as in language=english", param, ctx)
        return name.strip(), _plain_value(text)


def _plain_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return json.loads(text) if _NUMBER.fullmatch(text) else text


def named_values(ctx: click.Context, param: click.Parameter | None, given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values by their names. Raises click.BadParameter for a name that is given twice."""
    values: dict[str, Any] = {}
    for name, value in given:
        if name in values:
            raise click.BadParameter(f"{name!r} is given twice", ctx, param)
        values[name] = value
    return values


_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?")

OBJECT = ObjectType()
OPTION = click.option(
    "--option",
    "named_options",
    type=NamedValueType(),
    multiple=True,
    metavar="NAME=VALUE",
    callback=named_values,
    help="One of --options, as language=english; again for each.",
)


def _choice(kind: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([each.value for each in kind])


_OPTIONS = (
    click.option("--trigger", type=_choice(TriggerType), help="When iterations start.  [default: default]"),
    click.option("--every", type=DURATION, metavar="D", help="With --trigger periodic: the interval, as in 10m."),
    click.option("--cron", metavar="CRON", help="Instead of --every: times, as in '30 6 * * *'."),
    click.option("--time-zone", metavar="ZONE", help="Of --cron, as Europe/Berlin.  [default: UTC]"),
    click.option("--share/--no-share", default=None, help="With --trigger periodic: go together with others due."),
    click.option("--trigger-name", metavar="NAME", help="With --trigger custom: an entry point of iscp.triggers."),
    click.option("--trigger-options", type=OBJECT, metavar="JSON", help="With --trigger custom: what it is given."),
    click.option("--independent/--no-independent", default=None, help="Share no iteration with the table's others."),
    click.option("--target-lag", type=DURATION, metavar="D", help="By how much the target may lie behind, as in 30s."),
    click.option("--priority", type=WholeNumber(PRIORITY_MIN, PRIORITY_MAX), metavar="P", help="Higher goes first."),
    click.option("--change-source", type=_choice(ChangeMode), help="How changes are read.  [default: auto]"),
    click.option("--on-replace", type=_choice(OnReplace), help="If the source is recreated.  [default: fail]"),
    click.option("--on-duplicate", type=_choice(OnDuplicate), help="If rows share a key.  [default: dead_letter]"),
    click.option(
        "--on-schema-change", type=_choice(OnSchemaChange), help="If columns change otherwise.  [default: evolve]"
    ),
    click.option("--enable-cdf/--no-enable-cdf", default=None, help="Alter a source without a change data feed."),
    click.option("--tags", type=COLUMNS, metavar="a,b", help="Words to find the job by, as team:sales."),
)


RUN_OPTIONS = tuple(name.replace("_", "-") for name in RunFields.__annotations__)


def run_changes(given: Mapping[str, object], defaults: Sequence[str]) -> dict[str, Any]:
    """Return a job_spec with the fields that are given, and null for those that are to go back to their defaults."""
    fields = {name: value for name, value in given.items() if value is not None}
    names = [name.replace("-", "_") for name in defaults]
    if both := [option for option, name in zip(defaults, names, strict=True) if name in fields]:
        raise click.UsageError(f"--default {both[0]} cannot go with --{both[0]}")
    return nest(fields | dict.fromkeys(names), null=True)


def run_options(command: F) -> F:
    """Give a command the options for the fields of `iscp.model.spec.spec.RunFields`; None where not given."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


ADOPT_WAIT_S = 3_600.0
"""Seconds that `register --adopt` waits for the comparison of two large tables; the job goes on after it."""


@click.command()
@click.option("-f", "--file", type=click.File(encoding="utf-8"), help="Jobs in YAML, one or many; - is stdin.")
@click.option("--table", type=TABLE, metavar="T", help="The source table.")
@click.option("--name", metavar="N", help="The job's name, unique on its table.")
@click.option("--consumer", metavar="KIND", help="What to keep.  [default: replica]")
@click.option("--target", type=TARGET, metavar="URI", help="Where to keep it.")
@click.option("--key", type=COLUMNS, metavar="a,b", help="The columns that identify a row; none: append-only.")
@click.option("--columns", type=COLUMNS, metavar="a,b", help="Only these columns.")
@click.option("--where", metavar="SQL", help="Only the rows for which this holds.")
@click.option("--options", type=OBJECT, metavar="JSON", help="What the consumer is given besides.")
@OPTION
@click.option("--shards", type=WholeNumber(1), metavar="N", help="With --consumer changefeed: the feed's shards.")
@run_options
@click.option("--adopt", is_flag=True, default=None, help="The target is there, and holds the source's rows already.")
@click.option("--from-version", type=VERSION, metavar="V", help="With --adopt: as of this source version.")
@click.option("--account", type=ACCOUNT, metavar="A", envvar=ACCOUNT_VARIABLE, help="The tenant.  [default: default]")
@invocation
def register(invocation: Invocation, /, file: IO[str] | None, **given: object) -> None:
    """Create a job; one that is there already is left as it is, and if it is another one, the exit status is 1.

    With --adopt an existing table becomes the target as it is: its rows are compared with the source's at
    --from-version. If they differ, nothing is written, the difference is shown, and the exit status is 1.
    """
    named = given.pop("named_options")
    assert isinstance(named, dict)
    requests = _requests(file, _fold_options({name: each for name, each in given.items() if each is not None}, named))
    own = {f"{OPTIONS_FIELD}.{name}": f"--option {name}" for name in named}
    places = [f"{file.name}[{number}]" for number in range(len(requests))] if file else []
    with invocation.client() as client, places_named(places) if file else options_named(own=own):
        results = _registered(client, requests)
        unlike = unlike_of(client, requests, results)
        if given.get("adopt") and not unlike:
            job = requests[0].job
            client.wait(
                job.table,
                job.name,
                parse_spec(requests[0].spec_json).adopt_from,
                timeout_s=ADOPT_WAIT_S,
                account=job.account,
            )
    show_registered(invocation, requests, results, unlike, listed=file is not None)


def _registered(client: Client, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
    """Register all jobs, or raise what is refused of each one: the node itself says only the first of it."""
    try:
        return list(client.register_many(requests))
    except InvalidRequest as error:
        with suppress(IscpError):  # what is known is said in any case
            checked = client.check_many(requests) if len(requests) > 1 else []
            refused = [(number, each.error) for number, each in enumerate(checked) if each.error is not None]
            for number, other in refused:
                other.field = f"requests[{number}].{other.field}"
            error.others = tuple(other for _, other in refused if other.field != error.field)
        raise


def show_registered(
    invocation: Invocation,
    requests: Sequence[RegisterRequest],
    results: Sequence[RegisterResult],
    unlike: Mapping[int, PermanentError],
    *,
    listed: bool,
) -> None:
    """Show what was registered, as a list or as the one job; the exit status is 1 if others have the names of some."""
    rows = [render.register_row(request, result) for request, result in zip(requests, results, strict=True)]
    if not render.show(rows if listed else rows[0], invocation.output):
        _show(rows, unlike)
    for error in unlike.values():
        show_error(error, invocation.output)
    if unlike:
        raise click.exceptions.Exit(ExitStatus.FAILED)


def _show(rows: Sequence[render.Row], unlike: Collection[int]) -> None:
    for number, row in enumerate(rows):
        if number in unlike:  # the error says more
            continue
        say(f"{row['name']} on {row['table']}: {'created' if row['created'] else 'exists already'}")
        if row["warning"]:
            say(f"warning: {row['warning']}")


def unlike_of(
    client: Client, requests: Sequence[RegisterRequest], results: Sequence[RegisterResult]
) -> dict[int, PermanentError]:
    """Return the errors of jobs whose name another job has, by their number: how that one differs, and what to do about
    it.
    """
    there = [number for number, result in enumerate(results) if not result.created]
    if not there:
        return {}
    checked = client.check_many([requests[number] for number in there])
    found = ((number, _difference(requests[number].job, each)) for number, each in zip(there, checked, strict=True))
    return {number: error for number, error in found if error is not None}


def _difference(job: JobName, checked: CheckedJob) -> PermanentError | None:
    exists = f"{job.name} on {job.table} exists already, and was left as it is"
    if checked.error is not None:
        refused = checked.error
        refused.field = option_of(refused.field)
        message = f"{exists}; as it was given it is refused: {refused.sentence}"
        return PermanentError(message, about=refused.field or "--name", remedy=refused.remedy)
    match checked.action:
        case Action.UPDATE:
            remedy = "Change it by `iscp-admin job update`, or name another"
        case Action.RESYNC:
            remedy = "Rebuild its target by `iscp-admin apply --resync` or `iscp-admin job resync`, or name another"
        case _:
            return None
    return PermanentError(f"{exists}; it differs ({'; '.join(changes_of(checked))})", about="--name", remedy=remedy)


def _fold_options(given: dict[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given with one --options, in which each --option is, and --shards, which changefeeds have.

    Raises click.UsageError for an option that is given twice.
    """
    options = dict(given.pop("options", {}))
    shards = {} if (number := given.pop("shards", None)) is None else {"shards": number}
    if twice := sorted((options.keys() & named.keys()) | (shards.keys() & (options.keys() | named.keys()))):
        raise click.UsageError(f"The option {twice[0]!r} is given twice")
    options |= {**named, **shards}
    return {**given, "options": options} if options else given


def _requests(file: IO[str] | None, given: dict[str, object]) -> list[RegisterRequest]:
    if file:
        if given:
            raise click.UsageError(f"-f cannot go with {', '.join(f'--{name}' for name in given)}".replace("_", "-"))
        from iscp.cli.job.job_file import read_jobs

        return _without_sets(read_jobs(file, file.name), file.name)
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


def _without_sets(requests: list[RegisterRequest], source: str) -> list[RegisterRequest]:
    """Raises InvalidRequest for a job of a set: what `apply --prune` deletes is what `apply` has made."""
    for number, each in enumerate(requests):
        if set_of(each.spec_json):
            raise InvalidRequest(
                "is given", field=f"{source}[{number}].{SET}", remedy="Leave it out, or use `iscp-admin apply`"
            )
    return requests
