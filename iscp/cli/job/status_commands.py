"""Commands of `iscp-admin` that show how jobs are: `job describe`, `job check`, `job history`, `job verify`, and the
log lines of `job logs` and `node logs`.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

import click

from iscp.cli.job.change_commands import MATCHES_MAX, job_words
from iscp.cli.shell import render
from iscp.cli.shell.arguments import (
    DURATION,
    WholeNumber,
    account_option,
    invocation,
    job_arguments,
    jobs_arguments,
    matching,
    node_argument,
    of_account,
    timeout_option,
)
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.render import show_history, show_placement
from iscp.cli.shell.root_group import ExitStatus, show_error, watched
from iscp.cli.shell.terminal import pairs, say, table
from iscp.model.api.api_requests import LINES_MAX, EventView, JobName, JobView, LogLine, LogPage, LogPlace, PlacedShard
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobCondition, JobState, Reason
from iscp.model.job.start_rule import VerifyReport
from iscp.model.spec.cron_schedule import parse_cron
from iscp.model.spec.spec import JobSpec, TriggerType
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.errors import PERMANENT_FROM, InvalidRequest, JobNotFound, TableNotFound, TemporaryError
from iscp.model.values.ids import ShardId
from iscp.model.values.untrusted_values import LogLevel, escaped

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


# --- when a job starts next -------------------------------------------------------------------------------------------
# The sentence says what decides when a job's next iteration starts. It is made from the job's status and spec alone.


def next_start(job: JobView, now_s: float) -> str:
    """Return when and why the next iteration starts, in words. `now_s`: Unix seconds."""
    if job.reason is Reason.PAUSED:
        return _why_not(job)
    if job.reason is Reason.BUILDING:
        return "when the ranges of its first snapshot are built, which all nodes do"
    if job.state is JobState.RUNNING:
        return "an iteration is running"
    if job.state is JobState.PENDING:
        return "an iteration is queued, and starts when the node has a free slot"
    if job.state is JobState.ERROR and job.status.error_code >= PERMANENT_FROM:
        return "not before `iscp-admin job resume`, update or resync: the error is permanent"
    if job.reason in (Reason.RETRYING, Reason.QUARANTINED) and job.status.retry_at_s:
        return f"{render.next_retry(job.status, now_s)}; `iscp-admin job resume` retries now"
    if job.reason is Reason.QUARANTINED:
        return "a retry every backoff.quarantine_s, after many failures in a row; `iscp-admin job resume` retries now"
    if job.reason is Reason.RETRYING:
        return "a retry with growing pauses (backoff.*); `iscp-admin job resume` retries now"
    if not job.node_id:
        return "when a node has been given the table"
    if job.applied_version < 0:
        return "at once: the first iteration does not wait for the trigger"
    try:
        return _by_trigger(job, parse_spec(job.spec_json), now_s) + _by_time(job.status.due_at_s, now_s)
    except InvalidRequest as error:
        return f"never: the spec cannot be read: {error.sentence}"


def _why_not(job: JobView) -> str:
    """Return why a job that is paused starts nothing."""
    if not job.status.deletion:
        return "not before `iscp-admin job resume`: the job is paused"
    failed = job.state is JobState.ERROR
    return f"never: its target {'was not deleted, as its error says' if failed else 'is being deleted'}"


def _by_trigger(job: JobView, spec: JobSpec, now_s: float) -> str:
    if job.status.waits_for:
        return f"at {render.moment(job.status.waits_until_s)} at the latest; it waits for {job.status.waits_for}"
    outstanding = job.source_version > job.applied_version or job.lag_least_s > 0
    change = (
        "now, as the source is ahead" if outstanding else f"at the source's next commit after {job.applied_version}"
    )
    match spec.trigger.job_type:
        case TriggerType.DEFAULT if not spec.independent:
            return f"{change}, together with the table's other default jobs (trigger default)"
        case TriggerType.DEFAULT:
            return f"{change}, in an iteration of its own (trigger default, independent)"
        case TriggerType.GREEDY:
            return f"{change}, in an iteration of its own (trigger greedy)"
        case TriggerType.CUSTOM:
            when = "now" if outstanding else "once the source is ahead"
            return f"when the trigger {spec.trigger.name!r} says so; it is called {when}"
        case TriggerType.PERIODIC:
            if spec.trigger.cron:
                return _by_cron(spec, outstanding, now_s)
            return _by_period(spec, job.status.end_at_s, outstanding, now_s)
        case _:
            assert_never(spec.trigger.job_type)


def _by_time(due_at_s: float, now_s: float) -> str:
    if not due_at_s:
        return ""
    when = f"at {render.moment(due_at_s)} " if due_at_s > now_s else ""
    return f"; and {when}as time passes, on which its rows depend"


def _by_cron(spec: JobSpec, outstanding: bool, now_s: float) -> str:
    trigger = spec.trigger
    schedule = parse_cron(trigger.cron, trigger.time_zone)
    when = f"at {render.moment(schedule.next_after(now_s))}" + (
        "" if outstanding else ", if the source is ahead by then"
    )
    return f"{when} (trigger periodic, by cron {trigger.cron!r} in {schedule.time_zone})"


def _by_period(spec: JobSpec, last_s: float, outstanding: bool, now_s: float) -> str:
    interval_s = spec.trigger.interval_s or 0.0
    by_clock = spec.trigger.share and interval_s > 0
    due_s = (floor(last_s / interval_s) + 1) * interval_s if by_clock else last_s + interval_s
    when = "now" if due_s <= now_s else f"at {render.moment(due_s)}"
    if not outstanding:
        when = "at the source's next commit" if due_s <= now_s else f"not before {render.moment(due_s)}"
    shared = ", together with others that share it" if spec.trigger.share else ""
    return f"{when} (trigger periodic, every {render.seconds(interval_s)}{shared})"


# --- warnings ---------------------------------------------------------------------------------------------------------


def warnings_of(job: JobView, shards: Sequence[PlacedShard]) -> list[str]:
    """Return what of a job needs attention, the gravest first."""
    return list(_warnings(job, shards))


def _warnings(job: JobView, shards: Sequence[PlacedShard]) -> Iterator[str]:
    status = job.status
    if status.error_code:
        yield f"error {status.error_code}: {status.error_msg}"
    if status.doubted_at_s:
        yield f"whether the target holds what was applied to it is not known since {render.moment(status.doubted_at_s)}"
    if job.late:
        yield f"late: it lags by {render.lag_text(job.lag_s, job.lag_least_s)}, more than its target lag"
    if job.may_lose_history:
        retained, lag = render.seconds(job.retained_s), render.lag_text(job.lag_s, job.lag_least_s)
        yield f"its sources retain what was removed for {retained}, and it lags by {lag}: it may have to read all rows"
    if not job.node_id:
        yield "no node holds the table"
    if status.dead_letters:
        yield f"{render.dead_letters(job)}, and are left out of the target (dead-lettered)"
    if status.warning:
        yield status.warning
    for name, figures in (("refresh", job.upkeep.refresh), ("purge", job.upkeep.purge)):
        if figures is not None and figures.error_code:
            yield f"the last {name} failed with error {figures.error_code}: {figures.error_msg}"
    for shard in shards:
        if shard.why:
            yield f"range {shard.range_id} is on {shard.node_id or 'no node'} and not on {shard.target}: {shard.why}"


# --- describe: all that is known of one job ---------------------------------------------------------------------------

EVENTS_SHOWN_MAX = 5
"""Events of a job's table that `job describe` shows, the newest; `iscp-admin events` shows all."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobDescription:
    """The description of a job: `iterations` are the newest first; `events` are those of the job's shards, the oldest
    first.
    """

    job: JobView
    next_start: str
    warnings: tuple[str, ...]
    shards: tuple[PlacedShard, ...]
    iterations: tuple[HistoryEntry, ...]
    events: tuple[EventView, ...]


@click.command()
@job_arguments
@click.option("--limit", type=WholeNumber(1, 1_000), default=5, show_default=True, help="How many iterations.")
@account_option
@watched
@invocation
def describe(invocation: Invocation, /, table: str, name: str, limit: int, account: str) -> None:
    """Show all that is known of a job: spec, state, warnings, next start, place, iterations, events."""
    with invocation.client() as client:
        described = describe_job(client, client.status(table, name, account=account), limit)
    if not render.show(description_row(described), invocation.output):
        show_description(described, wide=invocation.wide)


def describe_job(client: Client, job: JobView, iterations: int) -> JobDescription:
    shards = client.operator.placement(job.table_id)
    mine = {_shard_name(shard) for shard in shards}
    # Looked through here too: a node of an earlier version sends those of all tables.
    events = [event for event in client.operator.events(table=job.table_id) if event.shard in mine]
    return JobDescription(
        job=job,
        next_start=next_start(job, time.time()),
        warnings=tuple(warnings_of(job, shards)),
        shards=tuple(shards),
        iterations=tuple(client.history(job.table_id, job.name, limit=iterations, account=job.account)),
        events=tuple(events[-EVENTS_SHOWN_MAX:]),
    )


def _shard_name(shard: PlacedShard) -> str:
    return str(ShardId(shard.table_id, shard.range_id))


def description_row(described: JobDescription) -> render.Row:
    return {
        "job": render.job_row(described.job),
        "next_start": described.next_start,
        "warnings": list(described.warnings),
        "shards": [dataclasses.asdict(each) for each in described.shards],
        "iterations": [render.history_row(each) for each in described.iterations],
        "events": [dataclasses.asdict(each) for each in described.events],
    }


def show_description(described: JobDescription, *, wide: bool = False) -> None:
    render.show_job(dataclasses.replace(described.job, spec_json=""))
    say("\nnext start")
    say(f"  {described.next_start}")
    say("\nspec")
    for line in _spec_lines(described.job.spec_json):
        say(f"  {line}")
    if described.warnings:
        say("\nwarnings")
        for warning in described.warnings:
            say(f"  {warning}")
    say("\nwhere it runs")
    show_placement(described.shards, ring=True, wide=wide)
    say("\nlast iterations")
    if described.iterations:
        show_history(described.iterations, wide=wide)
    else:
        say("none yet")
    if described.events:
        say("\nevents of its table")
        for event in described.events:
            say(render.event_line(event))


def _spec_lines(spec_json: str) -> list[str]:
    """Return the lines of a spec as a job file has them."""
    import yaml

    from iscp.model.spec.spec import flatten

    try:
        return str(yaml.safe_dump(flatten(spec_json), sort_keys=False, allow_unicode=True)).splitlines()
    except (ValueError, RecursionError, AttributeError):  # one that was damaged in the job log
        return [spec_json]


# --- check: whether jobs are fresh ------------------------------------------------------------------------------------
# The exit status of `iscp-admin job check` is for cron and CI.

UNPROBED_MAX_S = 600.0
"""Seconds since a source may have been probed last for `job check`, if --max-lag is not longer; then its jobs are
late.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A job that is not fresh, and why. `condition` is as everywhere, and `freshness` for scripts the same."""

    account: str
    table: str
    name: str
    condition: str
    freshness: str
    lag_s: float
    why: str


@click.command()
@jobs_arguments
@click.option("--max-lag", "max_lag_s", type=DURATION, metavar="D", help="As in 5m.  [default: each job's target lag]")
@of_account
@invocation
def check(invocation: Invocation, /, tables: str, names: str, max_lag_s: float | None, account: str) -> None:
    """Check that jobs, all or those that match, are fresh: for cron and CI.

    Exit status 0 if all are, 5 if one is late, building, quarantined or failed; 1 if none matches or no node can be
    reached. T and N may be patterns, as 'sales.*'.
    """
    with invocation.client() as client:
        jobs = client.jobs(**matching(tables, names), account=account, limit=MATCHES_MAX)
    now_s = time.time()
    findings = [found for job in jobs if (found := finding_of(job, max_lag_s, now_s))]
    known = {(found.account, found.table, found.name): found.condition for found in findings}
    counts = Counter(known.get((job.account, job.table, job.name), condition_within(job, max_lag_s)) for job in jobs)
    _show(invocation, findings, {"checked": len(jobs), **{each.value: counts[each] for each in JobCondition}})
    if not jobs:
        none = JobNotFound("no job matches", about="T", remedy="See `iscp-admin job list`")
        show_error(none, invocation.output)
        click.get_current_context().exit(ExitStatus.FAILED)
    if findings:
        click.get_current_context().exit(ExitStatus.NOT_FRESH)


def condition_within(job: JobView, max_lag_s: float | None) -> str:
    """Return the job's condition, or what it would be if this was its target lag."""
    return job.condition if max_lag_s is None else job.condition_if(late=job.lag_s > max_lag_s)


def finding_of(job: JobView, max_lag_s: float | None, now_s: float) -> Finding | None:
    """Return the finding, or None if the job is no fault. What is retried or paused is none as long as the job is not
    late by it.

    `max_lag_s` None: its own target lag is what counts.
    """
    condition, status = condition_within(job, max_lag_s), job.status

    def found(why: str) -> Finding:
        word = JobCondition.LATE if condition == JobCondition.FRESH else condition
        return Finding(job.account, job.table, job.name, word, word, job.lag_s, why)

    fault = f": {status.error_code} {status.error_msg}" if status.error_code else ""
    if condition == JobCondition.FAILED:
        return found(f"it waits for somebody to act{fault}")
    if condition == JobCondition.QUARANTINED:
        return found(f"it is quarantined{fault}")
    paused = ", and it is paused" if job.reason is Reason.PAUSED else fault
    if job.applied_version < 0:
        return found(f"it is not built yet{paused}")
    if job.lag_s < 0:
        return found(f"its lag is not known{paused}")
    if job.late if max_lag_s is None else job.lag_s > max_lag_s:
        return found(f"it lags by {render.lag_text(job.lag_s, job.lag_least_s)}{paused}")
    unprobed_s = now_s - job.checked_at_s
    if unprobed_s > max(max_lag_s or 0.0, UNPROBED_MAX_S):
        return found(f"its source was last probed {render.seconds(unprobed_s)} ago")
    return None


def _show(invocation: Invocation, findings: Sequence[Finding], counts: dict[str, int]) -> None:
    shown = {**counts, "findings": [asdict(found) for found in findings]}
    if render.show(shown["findings"] if invocation.output == "name" else shown, invocation.output):
        return
    if findings:
        rows = [(found.table, found.name, found.condition, found.why) for found in findings]
        table(("TABLE", "NAME", "STATE", "WHY"), rows, wide=invocation.wide)
    words = ", ".join(f"{counts[each]} {each}" for each in JobCondition if counts[each])
    say(f"{job_words(counts['checked'])}{': ' if words else ''}{words}")


# --- history: iterations of a job -------------------------------------------------------------------------------------

limit_option = click.option("--limit", type=WholeNumber(1, 10_000), default=20, show_default=True)
"""The option that says how many iterations are shown."""


@click.command()
@job_arguments
@limit_option
@account_option
@watched
@invocation
def history(invocation: Invocation, /, table: str, name: str, limit: int, account: str) -> None:
    """Show a job's iterations, the newest first."""
    with invocation.client() as client:
        show_iterations(invocation, client, JobName(table, name, account), limit)


def show_iterations(invocation: Invocation, client: Client, job: JobName, limit: int) -> None:
    entries = client.history(job.table, job.name, limit=limit, account=job.account)
    if not render.show([render.history_row(entry) for entry in entries], invocation.output):
        show_history(entries, wide=invocation.wide)


# --- verify: a target against its source ------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])


def comparing(command: F) -> F:
    """Give a command the options of a comparison, as `verify_job` takes them."""
    repair = click.option("--repair", is_flag=True, help="Make the target equal, by one commit of what differs.")
    return repair(timeout_option("10m", "As in 60s or 10m.")(command))


@click.command()
@job_arguments
@comparing
@account_option
@invocation
def verify(invocation: Invocation, /, table: str, name: str, repair: bool, timeout_s: float, account: str) -> None:
    """Compare a job's target with its source.

    Exit status 0 if they are equal or were made so, 4 if they differ, 1 if they could not be compared, 3 if that takes
    longer than --timeout.
    """
    with invocation.client() as client:
        verify_job(invocation, client, JobName(table, name, account), repair, timeout_s)


def verify_job(invocation: Invocation, client: Client, job: JobName, repair: bool, timeout_s: float) -> None:
    """Compare one job's target with its source, and show the report; ends the command if they differ."""
    report = client.verify(job.table, job.name, repair=repair, timeout_s=timeout_s, account=job.account)
    if not render.show(report_row(report), invocation.output):
        show_report(report)
    if not (report.equal or report.repaired):
        click.get_current_context().exit(ExitStatus.DIFFERS)


def report_row(report: VerifyReport) -> render.Row:
    return {
        "version": report.version,
        "seq": report.seq,
        "equal": report.equal,
        "repaired": report.repaired,
        "void": report.void,
        **dataclasses.asdict(report.comparison),
    }


def show_report(report: VerifyReport) -> None:
    comparison = report.comparison
    verdict = "equal" if report.equal else "repaired" if report.repaired else "different"
    pairs(
        {
            "verdict": f"{verdict}, at version {report.version}",
            "rows": f"{comparison.rows_source} in the source, {comparison.rows_target} in the target",
            "ranges": f"{comparison.ranges_differing} of {comparison.ranges} differ",
            "missing": str(comparison.missing or ""),
            "too many": str(comparison.extra or ""),
            "different": str(comparison.different or ""),
            "sharing a key": f"{comparison.shared} keys of the source, left out" if comparison.shared else "",
            "in doubt before": report.void,
            "repaired by": f"iteration {report.seq}" if report.repaired else "",
        }
    )
    if comparison.samples:
        rows = [(sample.fault, sample.key, ", ".join(sample.columns)) for sample in comparison.samples]
        table(("FAULT", "KEY", "COLUMNS"), rows)


# --- logs: lines of a node or of a job, and those that follow ---------------------------------------------------------

Places = Mapping[str, LogPlace]
Read = Callable[["Client", Places], Sequence[LogPage]]

FOLLOW_EVERY_S = 1.0
"""Pause between two requests of `logs --follow` for further lines; between them it holds nothing at any node."""

TAIL = 1_000
"""Lines of each node that `logs` shows where --tail does not say how many."""

_LEADING = frozenset({"time", "level", "event", "logger", "node", "exception"})
"""Fields that a line of text has in front, behind, or not at all, as a node's own log has it as text."""


def selecting_lines(command: F) -> F:
    """Give a command the options that say which lines of a log are shown."""
    for option in (
        click.option(
            "--level",
            type=click.Choice([level.value for level in LogLevel]),
            default=LogLevel.DEBUG.value,
            show_default=True,
            help="Only lines of this level or a worse one.",
        ),
        click.option(
            "--tail",
            type=WholeNumber(1, LINES_MAX),
            default=TAIL,
            show_default=True,
            help="How many lines.",
        ),
        click.option(
            "--since", "since_s", type=DURATION, default="0", help="Only lines of so long ago at most, as in 10m."
        ),
        click.option("-f", "--follow", is_flag=True, help="Go on with new lines as they come, until Ctrl-C."),
    ):
        command = option(command)
    return command


@click.command("logs")
@node_argument
@selecting_lines
@invocation
def node_logs(invocation: Invocation, /, node_id: str, follow: bool, tail: int, **wanted: Any) -> None:
    """Show the newest lines of node N's log; with `-o json` one object a line."""
    _Printer(invocation).run(
        lambda client, after: client.operator.node_logs(node_id, after=after, tail=tail, **wanted), tail, follow
    )


@click.command("logs")
@job_arguments
@selecting_lines
@account_option
@invocation
def job_logs(
    invocation: Invocation, /, table: str, name: str, account: str, follow: bool, tail: int, **wanted: Any
) -> None:
    """Show the newest lines of all nodes' logs that are about a job, or about its table and no other job."""
    show_lines_of_job(invocation, JobName(table, name, account), follow, tail, **wanted)


def show_lines_of_job(invocation: Invocation, job: JobName, follow: bool, tail: int, **wanted: Any) -> None:
    """Show what all nodes have logged of one job; `wanted` is what `selecting_lines` hands on besides."""
    _Printer(invocation, of_nodes=True).run(
        lambda client, after: client.operator.job_logs(
            job.table, job.name, account=job.account, after=after, tail=tail, **wanted
        ),
        tail,
        follow,
    )


class _Printer:
    """Lines go to stdout; what is missing, and why, to stderr, once."""

    def __init__(self, invocation: Invocation, *, of_nodes: bool = False) -> None:
        self._invocation = invocation
        self._of_nodes = of_nodes
        self._places: dict[str, LogPlace] = {}
        self._notices: dict[str, str] = {}

    def run(self, read: Read, tail: int, follow: bool) -> None:
        with self._invocation.client() as client:
            self._show(read(client, self._places), tail)
            try:
                while follow:
                    self._invocation.pause(FOLLOW_EVERY_S)
                    follow = self._go_on(client, read)
            except KeyboardInterrupt:
                return

    def _go_on(self, client: Client, read: Read) -> bool:
        """Show what is new, and return whether more lines may come."""
        try:
            pages = read(client, self._places)
        except (JobNotFound, TableNotFound):
            self._say("", "the job was dropped: no more lines are about it")
            return False
        except (TemporaryError, InvalidRequest) as error:  # the owner is changing, or the node is not back yet
            self._say("", f"{error.sentence}; trying again")
            return True
        self._notices.pop("", None)
        self._show(pages)
        return True

    def _show(self, pages: Sequence[LogPage], tail: int = 0) -> None:
        for page in pages:
            self._note(page)
        lines = sorted((line for page in pages for line in page.lines), key=lambda line: line.at_s)
        for line in lines[-tail:]:
            self._print(line)

    def _note(self, page: LogPage) -> None:
        if page.fault:
            self._say(page.node_id, f"{page.node_id} does not answer: {page.fault}")
            return
        self._notices.pop(page.node_id, None)
        self._places[page.node_id] = page.place
        if page.restarted:
            say(f"{page.node_id} was restarted: its log starts over", err=True)
        if page.lost:
            say(f"{page.node_id} no longer keeps {page.lost} lines of its log", err=True)

    def _say(self, subject: str, sentence: str) -> None:
        if self._notices.get(subject) != sentence:
            self._notices[subject] = sentence
            say(sentence, err=True)

    def _print(self, line: LogLine) -> None:
        fields = _fields(line.text)
        if not render.show_line(fields, self._invocation.output):
            for each in _text(fields, self._of_nodes):
                say(each)


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of a line, with nothing in them that a terminal obeys."""
    try:
        found = _clean(json.loads(text))
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"event": escaped(text)}


def _clean(value: Any) -> Any:
    match value:
        case str():
            return escaped(value)
        case list():
            return [_clean(each) for each in value]
        case dict():
            return {escaped(name): _clean(each) for name, each in value.items()}
        case _:
            return value


def _text(fields: Mapping[str, Any], of_nodes: bool) -> Iterable[str]:
    """Yield the line as a node writes its log as text, except that no field begins another line."""
    time, level = _one_line(fields.get("time", "")), _one_line(fields.get("level", ""))
    yield " ".join((time, f"{level:7}", *_event(fields, of_nodes)))
    for each in str(fields.get("exception", "")).splitlines():
        yield f"    {_one_line(each)}"


def _event(fields: Mapping[str, Any], of_nodes: bool) -> Iterable[str]:
    if of_nodes:
        yield _one_line(fields.get("node", ""))
    yield _one_line(fields.get("event", ""))
    for name, value in fields.items():
        if name not in _LEADING:
            yield f"{_one_line(name)}={_one_line(value)}"


def _one_line(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("\n", "\\n").replace("\t", "\\t")
