"""Checks and completes requests of the Python client before they are sent, for threads and asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import NoneType
from typing import Any, TypeVar
from uuid import uuid4

from iscp.client.codec.api_messages import JOB_CHANGE, JOB_FILTER, JOB_NAME, JOB_UPDATE, REGISTRATION, RESYNC
from iscp.client.codec.message_codec import to_message, to_request
from iscp.model.api.api_requests import (
    ChangeOutcome,
    ChangeVerb,
    EventView,
    JobChange,
    JobFilter,
    JobName,
    LogPlace,
    RegisterRequest,
    ResyncRequest,
    SearchRequest,
    SearchWeights,
    UpdateRequest,
)
from iscp.model.job.job_row import JobState, Reason
from iscp.model.spec.spec import to_json
from iscp.model.values.errors import InvalidRequest, IscpError
from iscp.model.values.untrusted_values import column_names, require, require_seconds, shown
from iscp.system.tls.tls_files import FORMAT_VERSION
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import feeds_pb2

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")
Repeatable = TypeVar("Repeatable", RegisterRequest, UpdateRequest, JobChange)

WAIT_MARGIN_S = 5.0
"""Seconds that the answer to a wait may take beyond the wait itself; then the call has failed."""

SEARCH_ANSWER_S = 35.0
"""Seconds that the answer to a search may take beyond the wait for a version; then the call has failed. A node gives a
search up before that, unless its `search.timeout_s` is greater.
"""

FEED_ANSWER_S = 35.0
"""Seconds that the answer to a read of a feed may take beyond the wait for changes; then the call has failed."""

VIEWS_MAX = 1_000_000
"""Jobs among which views are searched; those beyond are not found."""

EXPLAIN_TIMEOUT_S = 120.0
"""How long a node may take to explain a query, which Spark analyses; then the call fails with TimedOut."""


def new_request_id() -> str:
    return uuid4().hex


def with_ids(requests: Iterable[Repeatable], kind: type[Repeatable]) -> list[Repeatable]:
    """Return each with a request id, so that a retry gets the first answer. Raises InvalidRequest unless all are of
    `kind`.
    """
    return [one if one.request_id else replace(one, request_id=new_request_id()) for one in require_all(requests, kind)]


def require_all(requests: Iterable[Repeatable], kind: type[Repeatable]) -> list[Repeatable]:
    """Return `requests` as a list. Raises InvalidRequest unless all are of `kind`."""
    require(requests, Iterable, "requests", f"a list of {kind.__name__}")
    given = list(requests)
    for number, one in enumerate(given):
        require(one, kind, f"requests[{number}]", f"a {kind.__name__}")
    return given


def job_filter(
    account: str,
    table: str,
    state: JobState | str | None,
    reason: Reason | str | None,
    table_pattern: str,
    name_pattern: str,
    late: bool,
) -> pb.JobFilter:
    """Return the filter's message. Raises InvalidRequest for a state or reason that is none."""
    wanted = JobFilter(
        account=account,
        table=table,
        state=_member(JobState, state, "state") if state else None,
        reason=_member(Reason, reason, "reason") if reason else None,
        table_pattern=table_pattern,
        name_pattern=name_pattern,
        late=late,
    )
    return JOB_FILTER.to_wire(wanted)


def job_message(table: str, name: str, account: str) -> pb.JobName:
    """Return the message that names a job."""
    return JOB_NAME.to_wire(JobName(table, name, account))


def consumer_fields(
    consumer: str,
    target: str,
    key: Sequence[str],
    columns: Sequence[str],
    where: str,
    options: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return a spec's fields of its consumer, None for what is not given. Raises InvalidRequest."""
    lists = {"key": column_names(key, "key") or None, "columns": column_names(columns, "columns") or None}
    return {"consumer": consumer, "target": target, **lists, "where": where or None, "options": options}


def spec_text(spec: str | Mapping[str, Any]) -> str:
    """Return a job_spec as the JSON that it may be given as."""
    return spec if isinstance(spec, str) else to_json(spec)


def registrations(requests: Iterable[RegisterRequest]) -> pb.RegisterRequest:
    """Return the request that registers these jobs, or checks them."""
    return to_request(pb.RegisterRequest, registrations=[REGISTRATION.to_wire(one) for one in requests])


def updates_request(requests: Iterable[UpdateRequest]) -> pb.UpdateJobsRequest:
    """Return the request to change the specs of these jobs, with ids so that a retry gets the first answers."""
    return to_request(
        pb.UpdateJobsRequest, updates=[JOB_UPDATE.to_wire(one) for one in with_ids(requests, UpdateRequest)]
    )


def changes_request(changes: Iterable[JobChange]) -> pb.ChangeJobsRequest:
    """Return the request to make these changes, with ids so that a retry gets the first answers."""
    return to_request(pb.ChangeJobsRequest, changes=[JOB_CHANGE.to_wire(one) for one in with_ids(changes, JobChange)])


def resync_request(job: JobName, table: str, spec_json: str) -> pb.ResyncRequest:
    """Return the request to rebuild a job's target, with an id so that a retry gets the first answer."""
    return RESYNC.to_wire(ResyncRequest(job, table, spec_json, new_request_id()), format_version=FORMAT_VERSION)


def wait_request(job: JobName, version: int | None, versions: Mapping[str, int] | None) -> pb.WaitJobRequest:
    """Return the request to wait for a job, with versions of its tables by their names. Raises InvalidRequest."""
    require(versions, (Mapping, NoneType), "versions", "versions by the names of tables")
    named = (versions or {}).items()
    wanted = [to_message(pb.TableVersion, table=each, version=number) for each, number in named]
    return to_request(pb.WaitJobRequest, job=JOB_NAME.to_wire(job), version=version, versions=wanted)


def deletion(table: str, name: str, account: str) -> JobChange:
    """Return the change that deletes a job's target, and then unregisters the job."""
    return JobChange(ChangeVerb.DELETE_TARGET, JobName(table, name, account))


def changed_or_raise(outcome: ChangeOutcome) -> bool:
    """Return whether the one change of a call changed something, or raise the error by which it was refused."""
    if isinstance(outcome, IscpError):
        raise outcome
    return outcome


def require_positive(number: int, field: str) -> None:
    """Raise InvalidRequest unless the number is whole and above 0."""
    if type(number) is not int or not 0 < number < 1 << 32:
        raise InvalidRequest(f"is {number!r}: must be a whole number above 0", field=field, remedy="Give one, as 100")


def answer_within_s(wait_s: float, field: str, margin_s: float = WAIT_MARGIN_S) -> float:
    """Return within how many seconds a node that waits for up to `wait_s` has answered. Raises InvalidRequest."""
    return require_seconds(wait_s, field) + margin_s


def with_wait(method: Callable[..., T], margin_s: float = WAIT_MARGIN_S) -> Callable[..., T]:
    """Return a method that waits, its request changed to wait for as long as leaves its answer `margin_s` of the
    call.
    """

    def attempt(request: Any, *, timeout: float, **how: Any) -> T:
        request.timeout_s = max(0.0, timeout - margin_s)
        return method(request, timeout=timeout, **how)

    return attempt


def search_request(
    uri: str,
    text: str,
    vector: Sequence[float],
    k: int,
    condition: str,
    min_version: int | None,
    wait_s: float,
    columns: Sequence[str] | None,
    highlight: bool,
    explain: bool,
    weights: SearchWeights | None,
) -> SearchRequest:
    """Return a search, whose values have the kinds that it needs. Raises InvalidRequest."""
    for name, value in (("uri", uri), ("text", text), ("filter", condition)):
        require(value, str, name, "a text")
    require(k, int, "k", "a whole number")
    require(min_version, (int, NoneType), "min_version", "a version, or None")
    require(weights, (SearchWeights, NoneType), "weights", "a SearchWeights, or None")
    return SearchRequest(
        uri=uri,
        text=text,
        vector=_numbers(vector, "vector"),
        k=k,
        filter=condition,
        columns=None if columns is None else tuple(column_names(columns, "columns")),
        min_version=min_version,
        wait_s=require_seconds(wait_s, "wait_s"),
        highlight=bool(highlight),
        explain=bool(explain),
        weights=weights or SearchWeights(),
    )


def feed_request(table: str, name: str, account: str, cursor: str, limit: int) -> feeds_pb2.ReadFeedRequest:
    """Return the request for a page of a job's feed. Raises InvalidRequest."""
    require(cursor, str, "cursor", "a cursor's text, as a page has it")
    require_positive(limit, "limit")
    job = job_message(table, name, account)
    return to_request(feeds_pb2.ReadFeedRequest, job=job, cursor=cursor, limit=limit)


def _numbers(values: Iterable[float], field: str) -> tuple[float, ...]:
    """Return the numbers, which may be those of an array. Raises InvalidRequest."""
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"is {shown(values)}: must be a list of numbers", field=field) from error


def place_after(event: EventView | None) -> tuple[int, int]:
    """Return term and number of the last event that is known; (0, 0) where none is. Raises InvalidRequest."""
    require(event, (EventView, NoneType), "after", "an event as `events` returns them")
    return (event.owner_rev, event.number) if event else (0, 0)


def places_after(places: Mapping[str, LogPlace] | None) -> Mapping[str, LogPlace]:
    """Return up to where each node's log is known. Raises InvalidRequest."""
    require(places, (Mapping, NoneType), "after", "the places of pages by their nodes' ids")
    for node_id, place in (places or {}).items():
        require(node_id, str, "after", "the places of pages by their nodes' ids")
        require(place, LogPlace, f"after[{shown(node_id)}]", "the place of a page")
    return places or {}


def _member(kind: type[E], value: str, field: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{value!r} is not known", about=field, remedy=f"Use {', '.join(kind)}") from None
