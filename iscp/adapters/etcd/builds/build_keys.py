"""The keys of builds, and their values (docs/etcd-keys.md).

builds/head                      the term that wrote last; each transaction rests on the one before it
builds/tables/<table_id>         a table that is being built
builds/priorities/<table_id>     how urgent a table's build is, where it was set
builds/plans/<job_id>            what all tasks of a job have in common; it is there when all of them are
builds/tasks/<job_id>/<task_id>  a task that is not finished
builds/done/<job_id>/<node_id>   what a node has built of it, so far as its tasks are gone
builds/kept/<table_id>           the commits of a table whose change rows are retained
builds/staging/<table_id>/<task_id>  a task that stores such rows, or deletes them, and is not finished
builds/built/<job_id>            the version that a job is built at, until it has published it
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict
from sys import intern
from typing import Any, assert_never

from iscp.adapters.etcd.values import Delete, EventType, KeyValue, Put, WatchEvent
from iscp.coordination.builds.build_state import (
    BeginTable,
    Change,
    CountDone,
    DeleteRetained,
    DeleteStaging,
    DeleteTask,
    DropBuild,
    EndTable,
    ForgetBuilt,
    MarkBuilt,
    PutPlan,
    PutRetained,
    PutStaging,
    PutTask,
    SetPriority,
)
from iscp.core.build.build_request import parse_size
from iscp.core.build.build_task import (
    DEPTH_MAX,
    PRIORITY_MAX,
    BuildPlan,
    BuildTask,
    RetainedSpan,
    StagingTask,
    TaskType,
    depth,
)
from iscp.core.values.progress import TableSize, count_or_unknown
from iscp.core.values.untrusted_values import exact_int, exact_name, named_error, printable

log = logging.getLogger(__name__)

FORMAT = 1
"""The format of the records of tasks, plans and counts."""

TABLES, PRIORITIES, PLANS, TASKS, DONE, BUILT = "tables", "priorities", "plans", "tasks", "done", "built"
STAGING, KEPT = "staging", "kept"


class BuildKeys:
    def __init__(self, prefix: str) -> None:
        """`prefix` ends with a slash."""
        self.prefix = prefix
        self.head = f"{prefix}head"

    def writes_of(self, change: Change) -> Iterator[Put | Delete]:
        match change:
            case PutTask(task):
                yield Put(self.key(TASKS, task.job_id, task.task_id), _encoded_task(task))
            case DeleteTask(job_id, task_id):
                yield Delete(self.key(TASKS, job_id, task_id))
            case CountDone(job_id, node_id, size):
                record = json.dumps({"format": FORMAT, **asdict(size)})
                yield Put(self.key(DONE, job_id, node_id), record.encode())
            case PutPlan(plan):
                yield Put(self.key(PLANS, plan.job_id), json.dumps({"format": FORMAT, **asdict(plan)}).encode())
            case DropBuild(job_id):
                yield Delete(self.key(PLANS, job_id))
                yield Delete(self.key(TASKS, job_id, ""), prefix=True)
                yield Delete(self.key(DONE, job_id, ""), prefix=True)
            case MarkBuilt(job_id, version):
                yield Put(self.key(BUILT, job_id), str(version).encode())
                yield Delete(self.key(PLANS, job_id))
            case ForgetBuilt(job_id):
                yield Delete(self.key(BUILT, job_id))
            case BeginTable(table_id):
                yield Put(self.key(TABLES, table_id), b"")
            case EndTable(table_id):
                yield Delete(self.key(TABLES, table_id))
            case SetPriority(table_id, priority):
                key = self.key(PRIORITIES, table_id)
                yield Put(key, str(priority).encode()) if priority else Delete(key)
            case PutStaging() | DeleteStaging() | PutRetained() | DeleteRetained():
                yield self._staging_write(change)
            case _:
                assert_never(change)

    def _staging_write(self, change: PutStaging | DeleteStaging | PutRetained | DeleteRetained) -> Put | Delete:
        match change:
            case PutStaging(task):
                return Put(self.key(STAGING, task.table_id, task.task_id), _encoded_staging(task))
            case DeleteStaging(table_id, task_id):
                return Delete(self.key(STAGING, table_id, task_id))
            case PutRetained(span):
                record = {"uri": span.table_uri, "since": span.since, "until": span.until, "bytes": span.bytes}
                return Put(self.key(KEPT, span.table_id), json.dumps({"format": FORMAT, **record}).encode())
            case DeleteRetained(table_id):
                return Delete(self.key(KEPT, table_id))

    def read_change(self, kv: KeyValue) -> Change | None:
        """Return the change that the key and its value stand for.

        None, and logged, where the key is none of a build's or cannot be read.
        """
        kind, *names = kv.key.removeprefix(self.prefix).split("/")
        if kv.key == self.head:
            return None
        try:
            names = [intern(exact_name(name, "the name")) for name in names]
            match kind, names:
                case "tables", [table_id]:
                    return BeginTable(table_id)
                case "priorities", [table_id]:
                    return SetPriority(table_id, exact_int(int(kv.value), "the priority", -PRIORITY_MAX, PRIORITY_MAX))
                case "built", [job_id]:
                    return MarkBuilt(job_id, exact_int(int(kv.value), "the version"))
                case "plans", [job_id]:
                    return PutPlan(_read_plan(job_id, json.loads(kv.value)))
                case "done", [job_id, node_id]:
                    return CountDone(job_id, node_id, _read_count(json.loads(kv.value)))
                case "tasks", [job_id, task_id]:
                    return PutTask(_read_task(job_id, task_id, json.loads(kv.value)))
                case "staging", [table_id, task_id]:
                    return PutStaging(_read_staging(table_id, task_id, json.loads(kv.value)))
                case "kept", [table_id]:
                    return PutRetained(_read_span(table_id, json.loads(kv.value)))
            raise ValueError("it is none of a build")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = named_error(error)
            log.warning("etcd.builds.unreadable_key", extra={"key": printable(kv.key), "reason": reason})
            return None

    def follow(self, event: WatchEvent) -> Change | None:
        """Return the change that the event stands for, or None as `read_change`."""
        if event.type is EventType.PUT:
            return self.read_change(event.kv)
        match event.kv.key.removeprefix(self.prefix).split("/"):
            case ["tables", table_id]:
                return EndTable(table_id)
            case ["priorities", table_id]:
                return SetPriority(table_id, 0)
            case ["built", job_id]:
                return ForgetBuilt(job_id)
            case ["plans", job_id]:
                return DropBuild(job_id)  # with it go all tasks of the job, or there were none any more
            case ["tasks", job_id, task_id]:
                return DeleteTask(job_id, task_id)
            case ["staging", table_id, task_id]:
                return DeleteStaging(table_id, task_id)
            case ["kept", table_id]:
                return DeleteRetained(table_id)
        return None

    def key(self, *names: str) -> str:
        return self.prefix + "/".join(names)


def _encoded_task(task: BuildTask) -> bytes:
    record = {
        "format": FORMAT,
        "type": task.task_type.value,
        "aborted": task.aborted,
        "table": task.table_id,
        "range": task.range_id,
        "node": task.node_id,
    }
    return json.dumps(record).encode()


def _read_task(job_id: str, task_id: str, record: Any) -> BuildTask:
    """Return the task. Its ids are shared by thousands of tasks, and interned."""
    range_id = exact_int(record["range"], "range", 1)
    depth(range_id)
    table_id, node_id = (intern(exact_name(record[name], name)) for name in ("table", "node"))
    return BuildTask(task_id, TaskType(record["type"]), bool(record["aborted"]), table_id, job_id, range_id, node_id)


def _encoded_staging(task: StagingTask) -> bytes:
    record = {"uri": task.table_uri, "after": task.after, "until": task.until, "node": task.node_id}
    return json.dumps({"format": FORMAT, "type": TaskType.PROCESS_STAGING.value, **record}).encode()


def _read_staging(table_id: str, task_id: str, record: Any) -> StagingTask:
    uri, node_id = (exact_name(record[name], name) for name in ("uri", "node"))
    after, until = _exact_span(record["after"], record["until"])
    return StagingTask(task_id, table_id, uri, after, until, node_id)


def _read_span(table_id: str, record: Any) -> RetainedSpan:
    since, until = _exact_span(record["since"], record["until"])
    return RetainedSpan(table_id, exact_name(record["uri"], "uri"), since, until, exact_int(record["bytes"], "bytes"))


def _exact_span(after: object, until: object) -> tuple[int, int]:
    first = exact_int(after, "the first version", -1)
    return first, exact_int(until, "the last version", first)


def _read_count(record: Any) -> TableSize:
    return TableSize(count_or_unknown(record["rows"], "rows"), count_or_unknown(record["bytes"], "bytes"))


def _read_plan(job_id: str, record: Any) -> BuildPlan:
    texts = {name: exact_name(record[name], name) for name in ("account", "table_id", "job_name", "table_uri")}
    if not isinstance(record["spec_json"], str):
        raise TypeError("spec_json is no text")
    return BuildPlan(
        job_id=job_id,
        **texts,
        version=exact_int(record["version"], "version"),
        spec_json=record["spec_json"],
        piece_bytes=exact_int(record["piece_bytes"], "piece_bytes", 1),
        depth=exact_int(record["depth"], "depth", 0, DEPTH_MAX),
        size=parse_size(record.get("size") or {}, "size."),
        pin=exact_name(record.get("pin", ""), "pin"),
    )
