"""Jobs: what a user registers, and the row that the job log keeps of it.

The JSON forms are those of the job log and of the API; they carry no defaults that were not given, so that a
later default also reaches jobs registered before it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from iscp.core.errors import ErrorCode, InvalidRequest
from iscp.core.ids import JobKey
from iscp.core.watermark import Watermark

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000
NAME_LENGTH_MAX = 200


class JobState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    CANCELED = "canceled"
    ERROR = "error"
    COMPLETED = "completed"


class Reason(StrEnum):
    NONE = "none"
    RETRYING = "retrying"
    PAUSED = "paused"
    QUARANTINED = "quarantined"
    QUOTA = "quota"


class TriggerType(StrEnum):
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """What a job keeps, and where: `kind` names an entry point of the group `iscp.consumers`."""

    kind: str
    target: str
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The parsed `job_spec`."""

    consumer: ConsumerSpec
    trigger: TriggerType = TriggerType.DEFAULT
    priority: int = 0

    def to_json(self) -> str:
        consumer: dict[str, Any] = {"kind": self.consumer.kind, "target": self.consumer.target}
        for name in ("key", "columns"):
            if value := getattr(self.consumer, name):
                consumer[name] = list(value)
        if self.consumer.where:
            consumer["where"] = self.consumer.where
        iteration: dict[str, Any] = {"consumer": consumer}
        if self.priority:
            iteration["priority"] = self.priority
        return json.dumps({"trigger": {"job_type": self.trigger.value}, "iteration": iteration}, separators=(",", ":"))


def _section(parent: dict[str, Any], name: str, path: str, known: set[str]) -> dict[str, Any]:
    value = parent.get(name) or {}
    if not isinstance(value, dict):
        raise InvalidRequest("must be an object", field=path, remedy="See `iscp-admin job register --help`")
    _refuse_unknown(value, path, known)
    return value


def _refuse_unknown(value: dict[str, Any], path: str, known: set[str]) -> None:
    for name in value:
        if name not in known:
            raise InvalidRequest(
                "is not a known field", field=f"{path}.{name}", remedy=f"Known are {', '.join(sorted(known))}"
            )


def _names(value: Any, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise InvalidRequest("must be a list of column names", field=path)
    if len(set(value)) != len(value):
        raise InvalidRequest("names a column twice", field=path, remedy="Name each column once")
    return tuple(value)


def _text(value: Any, path: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest("must be a text", field=path)
    return value


def _priority(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not PRIORITY_MIN <= value <= PRIORITY_MAX:
        raise InvalidRequest(
            f"must be a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}", field="spec.iteration.priority"
        )
    return value


@lru_cache(maxsize=4096)
def parse_spec(text: str) -> JobSpec:
    """Read a `job_spec` (JSON).

    Raises InvalidRequest with the path of the first fault; whether tables and columns exist is not looked at here.
    """
    try:
        root = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"is not JSON: {error}", field="spec") from error
    if not isinstance(root, dict):
        raise InvalidRequest("must be an object", field="spec")
    _refuse_unknown(root, "spec", {"trigger", "iteration"})
    trigger = _section(root, "trigger", "spec.trigger", {"job_type", "schedule"})
    iteration = _section(root, "iteration", "spec.iteration", {"priority", "consumer"})
    consumer_path = "spec.iteration.consumer"
    consumer = _section(iteration, "consumer", consumer_path, {"kind", "target", "key", "columns", "where"})
    kind = _text(consumer.get("kind"), f"{consumer_path}.kind")
    target = _text(consumer.get("target"), f"{consumer_path}.target")
    if not kind:
        raise InvalidRequest("is missing", field=f"{consumer_path}.kind", remedy="Name a consumer, as replica")
    job_type = trigger.get("job_type") or TriggerType.DEFAULT.value
    if job_type not in set(TriggerType):
        raise InvalidRequest(f"{job_type!r} is not a trigger", field="spec.trigger.job_type", remedy="Use default")
    return JobSpec(
        consumer=ConsumerSpec(
            kind=kind,
            target=target,
            key=_names(consumer.get("key"), f"{consumer_path}.key"),
            columns=_names(consumer.get("columns"), f"{consumer_path}.columns"),
            where=_text(consumer.get("where"), f"{consumer_path}.where"),
        ),
        trigger=TriggerType(job_type),
        priority=_priority(iteration.get("priority", 0)),
    )


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job's last iteration over (`from_version`, `to_version`]; times are Unix seconds, 0 where not yet."""

    from_version: int = -1
    to_version: int = -1
    start_at_s: float = 0.0
    end_at_s: float = 0.0
    error_code: int = ErrorCode.OK
    error_msg: str = ""
    rows: int = 0
    bytes: int = 0

    def to_json(self) -> str:
        return json.dumps(
            {
                "from": self.from_version,
                "to": self.to_version,
                "start_at": self.start_at_s,
                "end_at": self.end_at_s,
                "error_code": int(self.error_code),
                "error_msg": self.error_msg,
                "rows": self.rows,
                "bytes": self.bytes,
            },
            separators=(",", ":"),
        )


def parse_status(text: str) -> JobStatus:
    """Read a `job_status` (JSON) of the job log; an empty text is a job that has not run."""
    if not text:
        return JobStatus()
    root = json.loads(text)
    return JobStatus(
        from_version=root.get("from", -1),
        to_version=root.get("to", -1),
        start_at_s=root.get("start_at", 0.0),
        end_at_s=root.get("end_at", 0.0),
        error_code=root.get("error_code", 0),
        error_msg=root.get("error_msg", ""),
        rows=root.get("rows", 0),
        bytes=root.get("bytes", 0),
    )


@dataclass(frozen=True, slots=True)
class JobRow:
    """One row of the job log.

    Invariants: `job_id` is unique for each registration; `drop_at_s` is None while the job is wanted; `seq` is
    the last iteration's number; times are Unix seconds. Specs and statuses stay JSON until somebody asks, which
    keeps a hundred thousand rows cheap.
    """

    key: JobKey
    job_id: str
    spec_json: str
    table_name: str
    table_uri: str
    state: JobState = JobState.COMPLETED
    reason: Reason = Reason.NONE
    watermark: Watermark = field(default=Watermark())
    seq: int = 0
    status_json: str = ""
    create_at_s: float = 0.0
    drop_at_s: float | None = None

    @property
    def spec(self) -> JobSpec:
        return parse_spec(self.spec_json)

    @property
    def status(self) -> JobStatus:
        return parse_status(self.status_json)

    @property
    def paused(self) -> bool:
        return self.reason is Reason.PAUSED

    @property
    def failed_for_good(self) -> bool:
        return self.state is JobState.ERROR and self.status.error_code >= 10_000


@dataclass(frozen=True, slots=True)
class JobReport:
    """What the node that runs a job says of it; a batch of them travels in a Checkpoint.

    `state` and `reason` are None where only the watermark moved, which need not be written to the log at once.
    """

    key: JobKey
    job_id: str
    watermark: Watermark
    seq: int
    state: JobState | None = None
    reason: Reason | None = None
    status: JobStatus | None = None


def apply_report(row: JobRow, report: JobReport) -> JobRow | None:
    """The row after a report, or None where the report changes nothing.

    A report of another registration (`job_id`) or of a dropped job is ignored, and so is one whose seq or
    watermark lies behind the row's: reports may come late, doubled or out of order. A pause that was asked for
    is not undone by an iteration which ends after it.
    """
    if row.job_id != report.job_id or row.drop_at_s is not None:
        return None
    if report.seq < row.seq or report.watermark.version < row.watermark.version:
        return None
    state, reason = report.state or row.state, report.reason or row.reason
    if row.paused:
        reason = Reason.PAUSED
    changed = replace(
        row,
        watermark=report.watermark,
        seq=report.seq,
        state=state,
        reason=reason,
        status_json=report.status.to_json() if report.status else row.status_json,
    )
    return None if changed == row else changed
