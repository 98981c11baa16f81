"""The values of `Admin`, `Operator` and the other services for users as messages of protobuf, and back.

For each kind of value there is a codec, or a pair of functions: tokens, builds, the cluster, feeds, jobs, logs,
explanations of queries, requests with their results, and searches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

from iscp.client.channel.grpc_calls import detail_of, error_of
from iscp.client.codec.message_codec import Codec, EnumCodec, FieldCodec, pages, to_message
from iscp.model.access.authorization import AuditEntry, TokenRecord
from iscp.model.access.service_table import Role
from iscp.model.api.api_requests import (
    CHANGES,
    LINES_MAX,
    Action,
    ChangeOutcome,
    ChangePage,
    ChangeVerb,
    CheckedJob,
    ClusterView,
    ConsumerInfo,
    EventView,
    FeedChange,
    FeedRequest,
    JobChange,
    JobFilter,
    JobName,
    JobOfLines,
    JobView,
    LeftOutJob,
    LeftOutRow,
    LeftOutRows,
    LogLine,
    LogPage,
    LogPlace,
    LogQuery,
    NodeVerb,
    NodeView,
    PlacedShard,
    RegisterRequest,
    RegisterResult,
    ResyncRequest,
    SearchAnswer,
    SearchHit,
    SearchRequest,
    SearchWeights,
    ShardVerb,
    ShardView,
    UpdateRequest,
)
from iscp.model.build.build_progress import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.model.build.build_task import BuildRequest
from iscp.model.job.iteration import HistoryEntry, JobMaintenance, MaintenanceFigures, Usage
from iscp.model.job.job_row import Deletion, JobCondition, JobState, JobStatus, Reason
from iscp.model.job.start_rule import Comparison, Sample, VerifyReport
from iscp.model.query_plan import ChangeCost, ExplainedOperator, KeptTable, OperatorUpkeep, QueryExplanation
from iscp.model.values.errors import InvalidRequest, PermanentError
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.model.values.progress import UNCOUNTED, UNKNOWN, RunProgress, SnapshotSize, TableSize, count_or_unknown
from iscp.model.values.untrusted_values import COUNT_MOST, LogLevel, json_value, printable
from iscp.model.values.watermark import SourceMark, Watermark
from iscp.system.tls.tls_files import FORMAT_VERSION
from iscp.wire.v1 import access_pb2 as access_pb
from iscp.wire.v1 import admin_pb2, node_pb2, operator_pb2
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import builds_pb2 as builds_pb
from iscp.wire.v1 import feeds_pb2 as feeds_pb
from iscp.wire.v1 import search_pb2 as search_pb

# --- tokens and entries of the audit ----------------------------------------------------------------------------------

_ROLES = EnumCodec(Role, access_pb.Role, "role {}")
_ROLE_NAME = FieldCodec(lambda name: _ROLES.to_wire(Role(name)), lambda number: _ROLES.from_wire(number).value)

TOKEN = Codec(TokenRecord, access_pb.Token, role=_ROLES)
"""The digest does not go over the wire: it is nobody's to read."""

AUDIT_ENTRY = Codec(AuditEntry, access_pb.AuditEntry, caller_role=_ROLE_NAME)


def role_from_wire(number: int) -> Role:
    """Raises InvalidRequest."""
    if number not in _ROLES.known:
        raise InvalidRequest(f"must be one of {', '.join(Role)}", field="role", remedy="Name one")
    return _ROLES.known[number]


def role_to_wire(role: str) -> access_pb.Role.ValueType:
    """Raises InvalidRequest."""
    if role not in list(Role):
        raise InvalidRequest(f"is {role!r}, and must be one of {', '.join(Role)}", field="role", remedy="Name one")
    return access_pb.Role.ValueType(_ROLES.to_wire(Role(role)))


# --- builds -----------------------------------------------------------------------------------------------------------
# Builds are as users see them; further messages say what a job requests of a build, and what nodes have finished of it.

_UNCOUNTED = dict.fromkeys(("rows", "bytes", "pieces"), UNKNOWN)

BUILD_REQUEST = Codec(
    BuildRequest, admin_pb2.BuildRequest, size=Codec(SnapshotSize, admin_pb2.BuildRequest, absent=_UNCOUNTED)
)
_TASK = Codec(
    BuildTaskView, builds_pb.BuildTask, state=EnumCodec(TaskState, builds_pb.BuildTaskState, "state {} of a task")
)
_BUILD = Codec(
    BuildView,
    builds_pb.Build,
    state=EnumCodec(BuildStage, builds_pb.BuildStage, "state {} of a build"),
    nodes=Codec(BuildNodeView, builds_pb.BuildNode),
)


def build_pages(views: Iterable[BuildView]) -> Iterator[builds_pb.BuildPage]:
    """Yield for each build a page without its tasks, and as many with them as it takes."""
    for view in views:
        yield builds_pb.BuildPage(build=_BUILD.to_wire(view))
        for page in pages(map(_TASK.to_wire, view.tasks)):
            yield builds_pb.BuildPage(tasks=page)


def builds_from_wire(found: Iterable[builds_pb.BuildPage]) -> list[BuildView]:
    """Raises PermanentError where the node is newer and speaks of states unknown here."""
    views: list[BuildView] = []
    tasks: list[BuildTaskView] = []
    for page in found:
        if page.HasField("build"):
            views = _with_tasks(views, tasks)
            views.append(_BUILD.from_wire(page.build))
            tasks = []
        tasks += map(_TASK.from_wire, page.tasks)
    return _with_tasks(views, tasks)


def _with_tasks(views: list[BuildView], tasks: list[BuildTaskView]) -> list[BuildView]:
    return [*views[:-1], replace(views[-1], tasks=tuple(tasks))] if tasks and views else views


def finished_to_wire(finished: Mapping[str, TableSize]) -> node_pb2.WorkOnBuildTasksResponse:
    sizes = [node_pb2.RangeSize(rows=size.rows, bytes=size.bytes) for size in finished.values()]
    return node_pb2.WorkOnBuildTasksResponse(finished=finished, sizes=sizes)


def finished_from_wire(answer: node_pb2.WorkOnBuildTasksResponse) -> dict[str, TableSize]:
    """Return the sizes by finished tasks, UNCOUNTED where the node gives none; raises ValueError."""
    sizes = (
        TableSize(count_or_unknown(each.rows, "sizes.rows"), count_or_unknown(each.bytes, "sizes.bytes"))
        for each in answer.sizes
    )
    return dict(zip(answer.finished, chain(sizes, repeat(UNCOUNTED)), strict=False))


# --- the cluster, its shards, and what its owners have decided --------------------------------------------------------

EVENT = Codec(EventView, operator_pb2.OwnerEvent)
CONSUMER = Codec(ConsumerInfo, operator_pb2.ConsumerInfo)
PLACED_SHARD = Codec(PlacedShard, operator_pb2.PlacedShard)

_SHARD = Codec(ShardView, pb.Shard)
_CLUSTER = Codec(ClusterView, pb.Cluster, nodes=Codec(NodeView, pb.Node), left_out=Codec(LeftOutJob, pb.LeftOut))


def cluster_to_wire(cluster: ClusterView) -> Iterator[pb.ClusterPage]:
    """Yield a first page with everything but the shards, which follow in as many pages as it takes."""
    yield pb.ClusterPage(cluster=_CLUSTER.to_wire(cluster, format_version=FORMAT_VERSION))
    for page in pages(map(_SHARD.to_wire, cluster.shards)):
        yield pb.ClusterPage(shards=page)


def cluster_from_wire(messages: Iterable[pb.ClusterPage]) -> ClusterView:
    head = pb.Cluster()
    shards: list[ShardView] = []
    for message in messages:
        if message.HasField("cluster"):
            head = message.cluster
        shards += map(_SHARD.from_wire, message.shards)
    return _CLUSTER.from_wire(head, shards=tuple(shards))


def event_pages(events: Iterable[EventView]) -> Iterator[operator_pb2.EventPage]:
    for page in pages(map(EVENT.to_wire, events)):
        yield operator_pb2.EventPage(events=page)


# --- columns of rows as texts of JSON ---------------------------------------------------------------------------------


def object_json(values: Mapping[str, Any]) -> str:
    """Return the values as an object of JSON, in ASCII."""
    # Half of a surrogate pair has an escape in JSON, and no form in a message of protobuf.
    return json.dumps(json_value(dict(values)), separators=(",", ":"))


def json_object(text: str) -> dict[str, Any]:
    """Return the object of JSON in a text, which is empty for an empty one. Raises PermanentError for anything else."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise PermanentError("the answer's columns are no JSON", remedy="Is the node newer than the client?") from error
    if not isinstance(found, dict):
        raise PermanentError("the answer's columns are no object", remedy="Is the node newer than the client?")
    return found


# --- pages of jobs' feeds ---------------------------------------------------------------------------------------------


def feed_request_from_wire(message: feeds_pb.ReadFeedRequest, wait_s: float) -> FeedRequest:
    """Return the request, which waits up to `wait_s` for changes. Raises InvalidRequest for what is out of bounds."""
    return FeedRequest(message.cursor, message.limit or CHANGES, wait_s)


def page_to_wire(page: ChangePage) -> feeds_pb.ChangePage:
    return feeds_pb.ChangePage(changes=map(_change_to_wire, page.changes), cursor=page.cursor)


def page_from_wire(message: feeds_pb.ChangePage) -> ChangePage:
    """Return the page. Raises PermanentError for columns that are no JSON."""
    return ChangePage(tuple(map(_change_from_wire, message.changes)), message.cursor)


def _change_to_wire(change: FeedChange) -> feeds_pb.FeedChange:
    return feeds_pb.FeedChange(
        ulid=change.ulid,
        shard=change.shard,
        operation=change.operation,
        key_json=object_json(change.key),
        row_json=object_json(change.row),
        version=change.version,
        net=change.net,
    )


def _change_from_wire(message: feeds_pb.FeedChange) -> FeedChange:
    return FeedChange(
        ulid=message.ulid,
        shard=message.shard,
        operation=message.operation,
        row=json_object(message.row_json),
        key=json_object(message.key_json),
        version=message.version if message.HasField("version") else None,
        net=message.net,
    )


# --- jobs as users see them, their history, comparisons and progress --------------------------------------------------

STATES = EnumCodec(JobState, pb.JobState, "state {}")
REASONS = EnumCodec(Reason, pb.Reason, "reason {}")

_SOURCE_MARK = Codec(SourceMark, pb.SourceMark, watermark=Codec(Watermark, pb.SourceMark))
SOURCE_MARKS = FieldCodec(
    lambda marks: [{"uri": uri, **_SOURCE_MARK.fields(mark)} for uri, mark in marks.items()],
    lambda messages: {each.uri: _SOURCE_MARK.from_wire(each) for each in messages},
)
DELETION = FieldCodec(str, lambda text: Deletion(text) if text in {*Deletion} else Deletion.WANTED)
_STATUS = Codec(JobStatus, pb.JobStatus, sources=SOURCE_MARKS, build=BUILD_REQUEST, deletion=DELETION)
_FIGURES = Codec(MaintenanceFigures, pb.UpkeepFigures)

UPKEEP = Codec(JobMaintenance, pb.JobUpkeep, refresh=_FIGURES, purge=_FIGURES)
PROGRESS = Codec(RunProgress, pb.Progress)
_CONDITION = FieldCodec(str, lambda text: text if text in {*JobCondition} else "")
JOB = Codec(
    JobView,
    pb.Job,
    state=STATES,
    reason=REASONS,
    status=_STATUS,
    upkeep=UPKEEP,
    progress=PROGRESS,
    condition=_CONDITION,
)
USAGE = Codec(Usage, pb.Usage)
HISTORY_ENTRY = Codec(HistoryEntry, pb.HistoryEntry, usage=USAGE)

LEFT_OUT_ROWS = Codec(
    LeftOutRows,
    pb.DeadLetterRows,
    rows=Codec(
        LeftOutRow,
        pb.LeftOutRow,
        columns=FieldCodec(
            lambda columns: {"columns_json": object_json(columns)}, lambda message: json_object(message.columns_json)
        ),
    ),
)

_COMPARISON = Codec(Comparison, pb.VerifyReport, samples=Codec(Sample, pb.VerifySample))
VERIFY_REPORT = Codec(VerifyReport, pb.VerifyReport, comparison=_COMPARISON)


# --- lines of logs ----------------------------------------------------------------------------------------------------
# The messages are queries for lines, and what nodes answer.


def _level_from_wire(level: str) -> LogLevel:
    try:
        return LogLevel(level or LogLevel.DEBUG)
    except ValueError as error:
        levels = ", ".join(LogLevel)
        raise InvalidRequest(f"{printable(level)!r} is no level", about="level", remedy=f"One of {levels}") from error


_PLACE = Codec(LogPlace, operator_pb2.LogPlace)
_QUERY = Codec(
    LogQuery,
    node_pb2.LogsRequest,
    after=_PLACE,
    level=FieldCodec(str, _level_from_wire),
    job=Codec(JobOfLines, node_pb2.JobOfLines),
)
LOG_PAGE = Codec(LogPage, operator_pb2.LogPage, place=_PLACE, lines=Codec(LogLine, operator_pb2.LogLine))
query_to_wire = _QUERY.to_wire


def query_of_user(request: operator_pb2.GetLogsRequest) -> LogQuery:
    """Return the query without `after` and `job`. Raises InvalidRequest."""
    wire = node_pb2.LogsRequest(since_s=request.since_s, tail=request.tail, level=request.level)
    return query_from_wire(wire)


def query_from_wire(request: node_pb2.LogsRequest) -> LogQuery:
    """Raises InvalidRequest."""
    if not 0 <= request.since_s <= COUNT_MOST:
        raise InvalidRequest(
            "must be 0 seconds or more", field="since_s", remedy="Leave it out for all lines there are"
        )
    if request.tail > LINES_MAX:
        raise InvalidRequest(f"must be at most {LINES_MAX}", field="tail", remedy="Take fewer lines, or follow the log")
    return _QUERY.from_wire(request)


def places_from_wire(places: Iterable[operator_pb2.NodePlace]) -> dict[str, LogPlace]:
    return {each.node_id: _PLACE.from_wire(each.place) for each in places}


def places_to_wire(places: Mapping[str, LogPlace]) -> list[operator_pb2.NodePlace]:
    return [operator_pb2.NodePlace(node_id=node_id, place=_PLACE.to_wire(place)) for node_id, place in places.items()]


# --- explanations of queries ------------------------------------------------------------------------------------------

_SIZE = Codec(TableSize, pb.QueryTable)
_EXPLANATION = Codec(
    QueryExplanation,
    pb.QueryExplanation,
    operators=Codec(
        ExplainedOperator,
        pb.ExplainedOperator,
        upkeep=EnumCodec(OperatorUpkeep, pb.Upkeep, "upkeep {}"),
        costs=Codec(ChangeCost, pb.ChangeCost),
    ),
    columns=FieldCodec(
        lambda columns: [{"name": name, "type": kind} for name, kind in columns.items()],
        lambda messages: {each.name: each.type for each in messages},
    ),
    tables=FieldCodec(
        lambda tables: [{"name": name, "uri": uri} for name, uri in tables.items()],
        lambda messages: {each.name: each.uri for each in messages},
    ),
    kept=Codec(KeptTable, pb.KeptTable, size=_SIZE),
)


def explanation_to_wire(explained: QueryExplanation) -> pb.QueryExplanation:
    message = _EXPLANATION.to_wire(explained)
    for table in message.tables:
        size = explained.sizes.get(table.name, UNCOUNTED)
        table.rows, table.bytes = size.rows, size.bytes
    return message


def explanation_from_wire(message: pb.QueryExplanation) -> QueryExplanation:
    """Raises PermanentError where the node is newer and keeps an operator in a way unknown here."""
    sizes = {each.name: _SIZE.from_wire(each) for each in message.tables if each.bytes >= 0}
    return _EXPLANATION.from_wire(message, sizes=sizes)


# --- requests of users and operators, and their results ---------------------------------------------------------------


def _refusal_from_wire(detail: pb.ErrorDetail) -> PermanentError:
    error = error_of(detail)
    if isinstance(error, PermanentError) and (error.message or error.field):
        return error
    permanent = PermanentError.from_error(error)
    if not error.message:
        permanent.message, permanent.field_is_subject = "the answer is of a newer kind", False
    return permanent


_REFUSAL = FieldCodec(detail_of, _refusal_from_wire)
_VERBS = EnumCodec(ChangeVerb, pb.ChangeVerb, "verb {}")

NODE_VERBS = EnumCodec(NodeVerb, operator_pb2.NodeVerb, "verb {}")
SHARD_VERBS = EnumCodec(ShardVerb, operator_pb2.ShardVerb, "verb {}")

JOB_NAME = Codec(JobName, pb.JobName, absent={"account": DEFAULT_ACCOUNT})
REGISTRATION = Codec(RegisterRequest, pb.Registration, job=JOB_NAME)
REGISTER_RESULT = Codec(RegisterResult, pb.RegisterResult)
CHECKED_JOB = Codec(CheckedJob, pb.Checked, action=EnumCodec(Action, pb.Action, "action {}"), error=_REFUSAL)
RESYNC = Codec(ResyncRequest, pb.ResyncRequest, job=JOB_NAME)
JOB_UPDATE = Codec(UpdateRequest, pb.JobUpdate, job=JOB_NAME)
JOB_CHANGE = Codec(JobChange, pb.JobChange, verb=_VERBS, job=JOB_NAME)
JOB_FILTER = Codec(JobFilter, pb.JobFilter, state=STATES, reason=REASONS)


def changes_from_wire(messages: Iterable[pb.JobChange]) -> list[JobChange]:
    """Raises InvalidRequest for a verb that this node does not know."""
    changes = []
    for number, message in enumerate(messages):
        if message.verb not in _VERBS.known:
            raise InvalidRequest(
                f"{message.verb} is not known", about=f"changes[{number}].verb", remedy=f"Use {', '.join(ChangeVerb)}"
            )
        changes.append(JOB_CHANGE.from_wire(message))
    return changes


def outcome_to_wire(outcome: ChangeOutcome) -> pb.ChangeOutcome:
    if isinstance(outcome, PermanentError):
        return pb.ChangeOutcome(error=detail_of(outcome))
    return pb.ChangeOutcome(changed=outcome)


def outcome_from_wire(message: pb.ChangeOutcome) -> ChangeOutcome:
    return message.changed if message.HasField("changed") else _refusal_from_wire(message.error)


def filter_from_wire(message: pb.JobFilter, limit: int) -> JobFilter:
    """Raises InvalidRequest for a state or reason that this node does not know; `limit` 0 is the default."""
    for name, known in (("state", STATES.known), ("reason", REASONS.known)):
        if (number := getattr(message, name)) and number not in known:
            raise InvalidRequest(
                f"{number} is not known here", about=f"filter.{name}", remedy="Is the client newer than the nodes?"
            )
    return JOB_FILTER.from_wire(message, limit=limit or JobFilter().limit)


# --- searches of indexes, and their answers ---------------------------------------------------------------------------

K_DEFAULT = 10
"""Hits of a search whose request says no number."""


def search_to_wire(request: SearchRequest, account: str) -> search_pb.SearchRequest:
    """Return the message, for an account (empty: the caller's own). Raises InvalidRequest for what has no place in it.

    The wait for a version is left out, which is that of the call.
    """
    return to_message(
        search_pb.SearchRequest,
        format_version=FORMAT_VERSION,
        uri=request.uri,
        account=account,
        text=request.text,
        vector=list(request.vector),
        k=request.k,
        filter=request.filter,
        columns=None if request.columns is None else to_message(search_pb.SearchColumns, names=list(request.columns)),
        min_version=request.min_version,
        highlight=request.highlight,
        explain=request.explain,
        weights=to_message(search_pb.SearchWeights, text=request.weights.text, vector=request.weights.vector),
    )


def search_from_wire(message: search_pb.SearchRequest, wait_s: float) -> SearchRequest:
    """Return the search, which waits for a version up to `wait_s`. Raises InvalidRequest for what is out of bounds."""
    weights = SearchWeights(message.weights.text, message.weights.vector) if message.HasField("weights") else None
    return SearchRequest(
        uri=message.uri,
        text=message.text,
        vector=tuple(message.vector),
        k=message.k or K_DEFAULT,
        filter=message.filter,
        columns=tuple(message.columns.names) if message.HasField("columns") else None,
        min_version=message.min_version if message.HasField("min_version") else None,
        wait_s=wait_s,
        highlight=message.highlight,
        explain=message.explain,
        weights=weights or SearchWeights(),
    )


def answer_to_wire(answer: SearchAnswer) -> search_pb.SearchAnswer:
    return search_pb.SearchAnswer(
        hits=map(_hit_to_wire, answer.hits),
        version=answer.version,
        version_at_s=answer.version_at_s,
        index_version=answer.index_version,
        proven=answer.proven,
        cut=answer.cut,
        took_ms=answer.took_ms,
        waited_ms=answer.waited_ms,
    )


def answer_from_wire(message: search_pb.SearchAnswer) -> SearchAnswer:
    """Return the answer, its keys and columns as JSON has them. Raises PermanentError for JSON that is none."""
    return SearchAnswer(
        hits=tuple(map(_hit_from_wire, message.hits)),
        version=message.version,
        version_at_s=message.version_at_s,
        index_version=message.index_version,
        proven=message.proven,
        cut=tuple(message.cut),
        took_ms=message.took_ms,
        waited_ms=message.waited_ms,
    )


def _hit_to_wire(hit: SearchHit) -> search_pb.SearchHit:
    return search_pb.SearchHit(
        key_json=object_json(hit.key),
        score=hit.score,
        columns_json=object_json(hit.columns),
        highlights={name: search_pb.SearchFragments(texts=texts) for name, texts in hit.highlights.items()},
        explanation=hit.explanation,
    )


def _hit_from_wire(message: search_pb.SearchHit) -> SearchHit:
    return SearchHit(
        key=json_object(message.key_json),
        score=message.score,
        columns=json_object(message.columns_json),
        highlights={name: tuple(each.texts) for name, each in message.highlights.items()},
        explanation=message.explanation,
    )
