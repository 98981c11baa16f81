"""Answers as commands show them: plain values with stable snake_case names, as JSON, YAML or a table.

The shapes given here are an interface: scripts read them. Names may be added, never changed. The module draws jobs, the
cluster with its nodes and shards, iterations, and rows that a job leaves out.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from iscp.cli.shell.arguments import JSONPATH, parse_path, values_at
from iscp.cli.shell.terminal import json_text, pairs, say, table, yaml_text
from iscp.model.api.api_requests import (
    ClusterView,
    EventView,
    JobView,
    LeftOutRows,
    PlacedShard,
    RegisterRequest,
    RegisterResult,
)
from iscp.model.job.iteration import HistoryEntry, MaintenanceFigures, Usage
from iscp.model.job.job_row import JobStatus, Reason
from iscp.model.spec.spec import flatten
from iscp.model.values.progress import RunProgress
from iscp.model.values.untrusted_values import one_line

Row = dict[str, Any]


# --- rows of answers --------------------------------------------------------------------------------------------------


def job_row(job: JobView) -> Row:
    row = dataclasses.asdict(job)
    row["state"], row["reason"] = job.state.value, job.reason.value
    spec_json = row.pop("spec_json")
    try:
        row["spec"] = json.loads(spec_json or "{}")
    except (ValueError, RecursionError):  # one that was damaged in the job log hides no other
        row["spec"] = spec_json
    return row


def history_row(entry: HistoryEntry) -> Row:
    return dataclasses.asdict(entry)


def register_row(request: RegisterRequest, result: RegisterResult) -> Row:
    return {
        "account": request.job.account,
        "table": request.job.table,
        "name": request.job.name,
        "created": result.created,
        "job_id": result.job_id,
        "table_id": result.table_id,
        "warning": result.warning,
    }


def cluster_row(cluster: ClusterView) -> Row:
    """Return the row of the cluster; `queue` holds what waits and runs over all nodes, beside the executors'
    counters.
    """
    nodes = [{"id": node.node_id, **dataclasses.asdict(node)} for node in cluster.nodes]
    for node in nodes:
        del node["node_id"]
    return {
        "owner": cluster.owner,
        "owner_rev": cluster.owner_rev,
        "nodes": nodes,
        "shards": [dataclasses.asdict(shard) for shard in cluster.shards],
        "jobs": cluster.jobs,
        "lag_max_s": cluster.lag_max_s,
        "lag_max_least_s": cluster.lag_max_least_s,
        "moving": cluster.moving,
        "checkpoint_at_s": cluster.checkpoint_at_s,
        "checkpoint_lag_s": checkpoint_lag_s(cluster),
        "left_out": [dataclasses.asdict(each) for each in cluster.left_out],
        "left_out_count": cluster.left_out_count,
        "queue": {
            "waiting": sum(max(0, node.queue_waiting) for node in cluster.nodes),
            "running": sum(max(0, node.queue_running) for node in cluster.nodes),
            **dict(sorted(cluster.counters.items())),  # on the wire they have no order
        },
    }


def checkpoint_lag_s(cluster: ClusterView) -> float:
    """Return how far the global checkpoint lies behind this machine's clock, in seconds; -1 while there is none."""
    return max(0.0, time.time() - cluster.checkpoint_at_s) if cluster.checkpoint_at_s else -1.0


# --- JSON, YAML and names ---------------------------------------------------------------------------------------------


def show(value: Any, output: str) -> bool:
    """Print `value` as JSON, as YAML, by name or in part; False where a table is wanted, which is the caller's to draw.

    Raises click.UsageError where it has no names, or no such part.
    """
    if output.startswith(JSONPATH):
        _show_part(value, output.removeprefix(JSONPATH))
    elif output == "name":
        for row in value if isinstance(value, list) else [value]:
            say(_name_of(row))
    elif output == "json":
        say(json_text(value, indent=2))
    elif output == "yaml":
        say(yaml_text(json.loads(json.dumps(value))), nl=False)  # YAML knows no states and kinds, only their texts
    else:
        return False
    return True


def show_line(row: Row, output: str) -> bool:
    """Print a row that others follow as `show` does, but as JSON on one line, and as YAML as an item of a list."""
    if output == "json":
        say(json.dumps(row))
        return True
    return show([row] if output == "yaml" else row, output)


def _show_part(value: Any, path: str) -> None:
    try:
        found = values_at(value, parse_path(path))
    except LookupError as error:
        raise click.UsageError(f"-o {JSONPATH}{path}: {error.args[0]}") from error
    for each in found:
        say(each if isinstance(each, str) else json_text(each))


def _name_of(row: Row) -> str:
    """Return what commands name it by: T and N of a job, with a tab between; N of a node; T of a shard; a name."""
    if "table" in row and "name" in row:
        return f"{row['table']}\t{row['name']}"
    for field in ("id", "table", "name"):
        if field in row:
            return str(row[field])
    raise click.UsageError("-o name: the answer is of no job, node or table")


# --- jobs, and what owners have decided -------------------------------------------------------------------------------


def lag(job: JobView) -> str:
    found = lag_text(job.lag_s, job.lag_least_s)
    return f"{found} late" if job.late else found


def lag_text(most_s: float, least_s: float) -> str:
    """Return a lag as text; one of which only the most is known has `≤` before it."""
    return f"≤ {seconds(most_s)}" if most_s >= 0.0 and least_s < most_s else seconds(most_s)


def show_jobs(jobs: Sequence[JobView], *, wide: bool = False) -> None:
    def in_wide(job: JobView) -> tuple[str, ...]:
        spec = _spec_of(job)
        of_run = (job.account, job.node_id, str(job.seq), moment(job.checked_at_s))
        return (*of_run, _tags(spec), str(spec.get("target", "")))

    more = ("ACCOUNT", "NODE", "ITERATIONS", "CHECKED", "TAGS", "TARGET") if wide else ()
    table(
        ("TABLE", "NAME", "STATE", "REASON", "APPLIED", "SOURCE", "LAG", "DEAD", *more, "ERROR"),
        [
            (
                job.table,
                job.name,
                job.condition,
                reason(job),
                version(job.applied_version),
                version(job.source_version),
                lag(job),
                str(job.status.dead_letters or ""),
                *(in_wide(job) if wide else ()),
                job.status.error_msg,
            )
            for job in jobs
        ],
        spare=("SOURCE", "APPLIED", "DEAD", "REASON"),
        wide=wide,
    )


def reason(job: JobView) -> str:
    """Return what holds a job up besides what its condition says; empty if there is nothing to say."""
    if job.status.deletion:
        return "deleting"
    said = (Reason.NONE, Reason.RETRYING, Reason.QUARANTINED)
    return "" if job.reason in said or job.reason == job.condition else job.reason.value


def _spec_of(job: JobView) -> Row:
    """Return the fields of a job's spec by their flat names; of one that was damaged, which hides no other, none."""
    try:
        return flatten(job.spec_json or "{}")
    except (ValueError, RecursionError, AttributeError):
        return {}


def _tags(spec: Row) -> str:
    tags = spec.get("tags", ())
    return ", ".join(map(str, tags)) if isinstance(tags, list) else ""


def show_job(job: JobView) -> None:
    status = job.status
    pairs(
        {
            "table": job.table,
            "table id": job.table_id,
            "name": job.name,
            "account": job.account,
            "job id": job.job_id,
            "state": job.condition,
            "reason": reason(job),
            "applied version": f"{version(job.applied_version)}  {moment(job.applied_at_s)}",
            "source version": f"{version(job.source_version)}  seen {moment(job.checked_at_s)}",
            "lag": lag(job),
            "iterations": str(job.seq),
            "last iteration": f"({status.from_version}, {status.to_version}]  {moment(status.end_at_s)}  "
            f"{status.rows} rows, {status.bytes} bytes",
            "progress": "\n".join(progress_lines(job.progress)) if job.progress else "",
            "dead letters": dead_letters(job),
            "figures": "\n".join(figure_lines(job)),
            "warning": status.warning,
            "waits for": status.waits_for and f"{status.waits_for}, until {moment(status.waits_until_s)} at most",
            "error": f"{status.error_code} {status.error_msg}" if status.error_code else "",
            "next retry": next_retry(status, time.time()) if _awaits_retry(job) else "",
            "refreshes": _maintenance(job.upkeep.refresh),
            "purges": _maintenance(job.upkeep.purge),
            "created": moment(job.create_at_s),
            "node": job.node_id,
            "ranges": f"{job.ranges}, of which this is the one that lags most" if job.ranges > 1 else "",
            "spec": job.spec_json,
        }
    )


def dead_letters(job: JobView) -> str:
    """Return how many rows are left out of the target, and why; empty for none."""
    count = job.status.dead_letters
    if not count:
        return ""
    return f"{count} rows cannot be indexed" if "faults" in job.figures else f"{count} rows share a key"


def figure_lines(job: JobView) -> list[str]:
    """Return the figures of the target, those of one part in a line; or why they are not known."""
    if job.figures_fault:
        return [f"not known: {job.figures_fault}"]
    lines: dict[str, list[str]] = {}
    for name, value in job.figures.items():
        part, _, figure = name.rpartition(".")
        shown = size(value) if figure == "bytes" else f"{value:,.15g} {figure.replace('_', ' ')}"
        lines.setdefault(part, []).append(shown)
    return [f"{part}: {', '.join(each)}" if part else ", ".join(each) for part, each in lines.items()]


def _awaits_retry(job: JobView) -> bool:
    return job.reason in (Reason.RETRYING, Reason.QUARANTINED) and job.status.retry_at_s > 0


def next_retry(status: JobStatus, now_s: float) -> str:
    """Return when a job is retried that waits for that; `now_s` is in Unix seconds."""
    left_s = status.retry_at_s - now_s
    due = f"at {moment(status.retry_at_s)} (in {seconds(left_s)})" if left_s > 0 else "due now"
    return f"{due}, after {status.failures} {'failure' if status.failures == 1 else 'failures in a row'}"


def progress_lines(progress: RunProgress) -> list[str]:
    """Return what was measured of an iteration that runs, and no more."""
    what = {"verify": "comparing", "repair": "comparing, to repair"}.get(progress.purpose, "applying")
    lines = [f"{what} for {seconds(progress.elapsed_s)}"]
    if progress.tasks:
        lines.append(f"{progress.tasks_done} of {progress.tasks} tasks of Spark that are known so far")
    if progress.rows_read or progress.bytes_read:
        read = f"{progress.rows_read:,} rows, {size(progress.bytes_read)} read"
        if progress.rows_per_s >= 0 and progress.bytes_per_s >= 0:
            read += f", {progress.rows_per_s:,.0f} rows/s, {size(progress.bytes_per_s)}/s"
        lines.append(read)
    if progress.rows_written:
        total = f" of {progress.rows_total:,}" if progress.rows_total >= progress.rows_written else ""
        lines.append(f"{progress.rows_written:,}{total} rows, {size(progress.bytes_written)} written")
    elif progress.bytes_total >= 0:
        rows = f"{progress.rows_total:,} rows, " if progress.rows_total >= 0 else ""
        lines.append(f"{rows}{size(progress.bytes_total)} to be read")
    if progress.left_s >= 0:
        lines.append(f"about {seconds(progress.left_s)} left")
    return lines


def size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _maintenance(figures: MaintenanceFigures | None) -> str:
    if figures is None:
        return ""
    counts = {"completed": figures.completed, "failed": figures.failed, "timeout": figures.timeout}
    parts = [f"{count} {name}" for name, count in (counts | {"rejected": figures.rejected}).items() if count]
    parts += [name for name in ("running", "waiting", "hanging", "quarantined") if getattr(figures, name)]
    parts += [f"next {moment(figures.next_at_s)}"] if figures.next_at_s else []
    fault = f"  error {figures.error_code} {figures.error_msg}" if figures.error_code else ""
    return ", ".join(parts) + fault


def event_line(event: EventView) -> str:
    number = f"{event.owner_rev}.{event.number}"
    _, cut, range_id = event.shard.partition("/")
    shard = f"{event.table} range {range_id}" if event.table and cut else event.table or event.shard
    subject = " ".join(each for each in (event.node_id, shard) if each)
    return f"{moment(event.at_s)}  {number:8} {event.what:8} {subject}  {event.why}"


# --- numbers and times ------------------------------------------------------------------------------------------------


def version(number: int) -> str:
    return "-" if number < 0 else str(number)


def seconds(span_s: float) -> str:
    return "-" if span_s < 0 else f"{span_s:.1f} s"


def moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at_s > 0 else "-"


# --- a cluster, its nodes and its shards ------------------------------------------------------------------------------

LEFT_OUT_SHOWN_MAX = 5
"""Jobs shown that the global checkpoint leaves out; of others their number is shown."""


def show_cluster(cluster: ClusterView, *, wide: bool = False) -> None:
    row = cluster_row(cluster)
    pairs(
        {
            "owner": f"{cluster.owner}  (owner_rev {cluster.owner_rev})",
            "jobs": str(cluster.jobs),
            "shards": _shards_by_state(cluster),
            "greatest lag": lag_text(cluster.lag_max_s, cluster.lag_max_least_s),
            "checkpoint": f"{moment(cluster.checkpoint_at_s)}  {seconds(row['checkpoint_lag_s'])} behind",
            "left out of it": _left_out(cluster),
            "queue": ", ".join(f"{count} {name}" for name, count in row["queue"].items()),
        }
    )
    show_nodes(cluster, wide=wide)


def _shards_by_state(cluster: ClusterView) -> str:
    states = Counter(shard.state for shard in cluster.shards)
    parts = [f"{count} {state}" for state, count in sorted(states.items())]
    return ", ".join([*parts, *([f"{cluster.moving} of them moving"] if cluster.moving else [])]) or "0"


def _left_out(cluster: ClusterView) -> str:
    some = ", ".join(f"{job.table} {job.name} ({job.why})" for job in cluster.left_out[:LEFT_OUT_SHOWN_MAX])
    more = cluster.left_out_count - min(len(cluster.left_out), LEFT_OUT_SHOWN_MAX)
    return f"{some} and {more} more" if more else some


def show_nodes(cluster: ClusterView, *, wide: bool = False) -> None:
    table(
        ("NODE", "STATE", "ADDRESS", "PID", "EPOCH", "VERSION", "LEASE", "SHARDS", "IN FLIGHT", "WAITING", "RUNNING"),
        [
            (
                node.node_id + (" *" if node.node_id == cluster.owner else ""),
                node.state,
                node.address,
                str(node.pid),
                str(node.epoch),
                node.version,
                seconds(node.lease_age_s),
                str(node.shards),
                str(node.in_flight),
                version(node.queue_waiting),
                version(node.queue_running),
            )
            for node in cluster.nodes
        ],
        spare=("VERSION", "EPOCH", "PID", "IN FLIGHT", "LEASE", "ADDRESS"),
        wide=wide,
    )


def show_placement(shards: Sequence[PlacedShard], *, ring: bool, wide: bool = False) -> None:
    """Show where shards are; with `ring` also where they should be."""
    columns = ("TABLE", "RANGE", "STATE", "NODE", *(("PREFERRED", "PINNED", "WHY") if ring else ()))
    rows = [
        (
            shard.table or shard.table_id,
            str(shard.range_id),
            shard.state,
            shard.node_id or "-",
            *((shard.preferred, shard.pinned, shard.why) if ring else ()),
        )
        for shard in shards
    ]
    table(columns, rows, spare=("RANGE", "PREFERRED", "STATE"), wide=wide)


# --- iterations of a job ----------------------------------------------------------------------------------------------

COLUMNS = (
    "SEQ",
    "KIND",
    "FROM",
    "TO",
    "ENDED",
    "TOOK",
    "READ",
    "ROWS",
    "BYTES",
    "USAGE",
    "PARTS",
    "NODE",
    "WHY",
    "ERROR",
)
OFTEN_EMPTY = ("READ", "USAGE", "PARTS", "WHY")
"""Columns that are left out if no iteration has anything in them."""

EMPTY = {"READ": "-"}
"""The text that stands where nothing is known."""

SHOWN_LEAST_S = 0.005
"""Seconds of a part that are shown at the least: less would be 0.00."""


def show_history(entries: Sequence[HistoryEntry], *, wide: bool = False) -> None:
    rows = [_cells_of(entry) for entry in entries]
    left_out = {name for name in OFTEN_EMPTY if not any(row[name] for row in rows)}
    shown = [name for name in COLUMNS if name not in left_out]
    spare = ("BYTES", "NODE", "FROM", "PARTS", "KIND", "USAGE", "TOOK", "READ")
    table(shown, [[row[name] or EMPTY.get(name, "") for name in shown] for row in rows], spare=spare, wide=wide)


def usage_words(usage: Usage | None) -> str:
    """Return what an iteration has cost, in words; empty where nothing took long, or nobody has measured it."""
    if usage is None:
        return ""
    words = [f"{part} {spent_s:.2f} s" for part, spent_s in usage.seconds().items() if spent_s >= SHOWN_LEAST_S]
    words += [_counted(usage.retries, "retry", "retries")] if usage.retries else []
    words += [_counted(usage.conflicts, "conflict", "conflicts")] if usage.conflicts else []
    return ", ".join(words)


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _longest_first(entry: HistoryEntry) -> list[tuple[str, float]]:
    return sorted(entry.parts_s.items(), key=lambda part: (-part[1], part[0]))


def _cells_of(entry: HistoryEntry) -> dict[str, str]:
    rows_read = entry.rows_in or (entry.usage.rows_read if entry.usage else 0)
    return {
        "SEQ": str(entry.seq),
        "KIND": entry.data_type,
        "FROM": version(entry.from_version),
        "TO": version(entry.to_version),
        "ENDED": moment(entry.end_at_s),
        "TOOK": seconds(entry.end_at_s - entry.start_at_s),
        "READ": str(rows_read) if rows_read else "",
        "ROWS": str(entry.rows),
        "BYTES": str(entry.bytes),
        "USAGE": usage_words(entry.usage),
        "PARTS": ", ".join(f"{name} {took_s:.2f} s" for name, took_s in _longest_first(entry)),
        "NODE": entry.node_id,
        "WHY": entry.reason,
        "ERROR": entry.error_msg,
    }


# --- rows that a job leaves out of its target -------------------------------------------------------------------------


def show_left_out(found: LeftOutRows, wide: bool) -> None:
    """Print one line for each row, with why it is left out."""
    if not found.rows:
        say("no row is left out", err=True)
        return
    names = list(dict.fromkeys(name for row in found.rows for name in row.columns))
    rows = [(*(_text(row.columns.get(name)) for name in names), one_line(row.reason)) for row in found.rows]
    table((*names, "WHY"), rows, wide=wide)
    say(f"in {found.place}", err=True)


def _text(value: object) -> str:
    return one_line(value) if isinstance(value, str) else "" if value is None else json_text(value)
