"""Answers the calls of the service `Admin`: checks what came, calls an AdminService, and converts what it says."""

# ruff: noqa: N802  (the methods have the wire's names)

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress

import grpc

from iscp.client.channel.attempts import waiting_s
from iscp.client.channel.grpc_calls import answering
from iscp.client.codec.api_messages import (
    CHECKED_JOB,
    HISTORY_ENTRY,
    JOB,
    JOB_NAME,
    JOB_UPDATE,
    LEFT_OUT_ROWS,
    REGISTER_RESULT,
    REGISTRATION,
    RESYNC,
    VERIFY_REPORT,
    changes_from_wire,
    cluster_to_wire,
    explanation_to_wire,
    filter_from_wire,
    outcome_to_wire,
)
from iscp.client.codec.message_codec import pages
from iscp.model.api.api_requests import ChangeVerb, ExplainRequest, JobChange, RegisterRequest
from iscp.model.values.errors import InvalidRequest, IscpError
from iscp.ports.admin import AdminService, want_while
from iscp.system.tls.tls_files import CHANGES_MAX, REGISTRATIONS_MAX, SPEC_BYTES_MAX, WAIT_TIMEOUT_MAX_S
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc

HISTORY_LIMIT = 20
"""Entries of a job's history in an answer whose request gives no limit."""


HISTORY_LIMIT_MAX = 10_000
"""Entries of a job's history of one answer; a request for more is refused."""

DEAD_LETTERS_LIMIT = 20
"""Rows that a job leaves out in an answer whose request gives no limit."""

DEAD_LETTERS_MAX = 100
"""Rows that a job leaves out in one answer; a request for more is refused."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _check_number(number: int, most: int, field: str) -> None:
    if number > most:
        raise InvalidRequest(
            f"{number} are more than the {most} of one call", about=field, remedy="Send them in several calls"
        )


def _check_spec(spec_json: str, field: str) -> None:
    if len(spec_json) > SPEC_BYTES_MAX:
        raise InvalidRequest(
            f"has {len(spec_json)} characters, more than {SPEC_BYTES_MAX}", field=field, remedy="Write a shorter one"
        )
    if _SURROGATE.search(spec_json):
        _refuse_half_characters(spec_json, field)


def _refuse_half_characters(text: str, field: str) -> None:
    """Refuse half of a surrogate pair, which JSON can spell, and no text may have."""
    with suppress(ValueError, RecursionError):  # what is no JSON is refused where it is read
        if not _encodable(json.dumps(json.loads(text), ensure_ascii=False)):
            raise InvalidRequest(
                "has the half of a surrogate pair, which is no character", field=field, remedy="Leave it out"
            )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_registrations(request: pb.RegisterRequest) -> list[RegisterRequest]:
    _check_number(len(request.registrations), REGISTRATIONS_MAX, "registrations")
    for number, registration in enumerate(request.registrations):
        _check_spec(registration.spec_json, f"registrations[{number}].spec_json")
    return [REGISTRATION.from_wire(one) for one in request.registrations]


class JobServicer(pb_grpc.AdminServicer):
    """The service's methods, each with the wire's values."""

    def __init__(self, service: AdminService) -> None:
        self._service = service

    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.RegisterResponse:
        with answering(request, context, "register"), want_while(context.is_active):
            results = self._service.register(_read_registrations(request))
            return pb.RegisterResponse(results=[REGISTER_RESULT.to_wire(one) for one in results])

    def Check(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.CheckResponse:
        with answering(request, context, "check"), want_while(context.is_active):
            checked = self._service.check(_read_registrations(request))
            return pb.CheckResponse(checked=[CHECKED_JOB.to_wire(one) for one in checked])

    def Unregister(self, request: pb.ChangeJobRequest, context: grpc.ServicerContext) -> pb.ChangeJobResponse:
        return self._change(ChangeVerb.UNREGISTER, request, context)

    def Pause(self, request: pb.ChangeJobRequest, context: grpc.ServicerContext) -> pb.ChangeJobResponse:
        return self._change(ChangeVerb.PAUSE, request, context)

    def Resume(self, request: pb.ChangeJobRequest, context: grpc.ServicerContext) -> pb.ChangeJobResponse:
        return self._change(ChangeVerb.RESUME, request, context)

    def _change(
        self, verb: ChangeVerb, request: pb.ChangeJobRequest, context: grpc.ServicerContext
    ) -> pb.ChangeJobResponse:
        with answering(request, context, verb):
            change = JobChange(verb, JOB_NAME.from_wire(request.job), request.request_id)
            (outcome,) = self._service.change([change])
            if isinstance(outcome, IscpError):
                raise outcome
            return pb.ChangeJobResponse(changed=outcome)

    def Resync(self, request: pb.ResyncRequest, context: grpc.ServicerContext) -> pb.ResyncResponse:
        with answering(request, context, "resync"), want_while(context.is_active):
            _check_spec(request.spec_json, "spec_json")
            result = self._service.resync(RESYNC.from_wire(request))
            return pb.ResyncResponse(job_id=result.job_id, table_id=result.table_id, warning=result.warning)

    def ChangeJobs(self, request: pb.ChangeJobsRequest, context: grpc.ServicerContext) -> pb.ChangeJobsResponse:
        with answering(request, context, "change"), want_while(context.is_active):
            _check_number(len(request.changes), CHANGES_MAX, "changes")
            outcomes = self._service.change(changes_from_wire(request.changes))
            return pb.ChangeJobsResponse(outcomes=[outcome_to_wire(one) for one in outcomes])

    def UpdateJobs(self, request: pb.UpdateJobsRequest, context: grpc.ServicerContext) -> pb.ChangeJobsResponse:
        with answering(request, context, "update"):
            _check_number(len(request.updates), CHANGES_MAX, "updates")
            for number, update in enumerate(request.updates):
                _check_spec(update.changes_json, f"updates[{number}].changes_json")
            outcomes = self._service.update([JOB_UPDATE.from_wire(one) for one in request.updates])
            return pb.ChangeJobsResponse(outcomes=[outcome_to_wire(one) for one in outcomes])

    def ListJobs(self, request: pb.ListJobsRequest, context: grpc.ServicerContext) -> Iterator[pb.JobPage]:
        with answering(request, context, "list"):
            jobs = self._service.list_jobs(filter_from_wire(request.filter, request.limit))
            for page in pages(JOB.to_wire(job) for job in jobs):
                yield pb.JobPage(jobs=page)

    def CountJobs(self, request: pb.CountJobsRequest, context: grpc.ServicerContext) -> pb.CountJobsResponse:
        with answering(request, context, "count"):
            return pb.CountJobsResponse(jobs=self._service.count_jobs(filter_from_wire(request.filter, 0)))

    def GetJob(self, request: pb.GetJobRequest, context: grpc.ServicerContext) -> pb.Job:
        with answering(request, context, "status"):
            return JOB.to_wire(self._service.status(JOB_NAME.from_wire(request.job)))

    def WaitJob(self, request: pb.WaitJobRequest, context: grpc.ServicerContext) -> pb.Job:
        with answering(request, context, "wait"):
            version = request.version if request.HasField("version") else None
            if version is not None and version < 0:
                raise InvalidRequest("must be 0 or more", field="version", remedy="Leave it out for the newest")
            timeout_s = waiting_s(request.timeout_s, WAIT_TIMEOUT_MAX_S, "Wait again when it is over", context)
            job = JOB_NAME.from_wire(request.job)
            versions = {each.table: each.version for each in request.versions}
            found = self._service.wait(job, version, timeout_s, context.is_active, versions)
            return JOB.to_wire(found)

    def VerifyJob(self, request: pb.VerifyJobRequest, context: grpc.ServicerContext) -> pb.VerifyReport:
        with answering(request, context, "verify"):
            timeout_s = waiting_s(request.timeout_s, WAIT_TIMEOUT_MAX_S, "Wait again when it is over", context)
            job = JOB_NAME.from_wire(request.job)
            report = self._service.verify(job, request.repair, timeout_s, context.is_active)
            return VERIFY_REPORT.to_wire(report)

    def ExplainConsumer(self, request: pb.ExplainConsumerRequest, context: grpc.ServicerContext) -> pb.QueryExplanation:
        with answering(request, context, "explain"), want_while(context.is_active):
            _check_spec(request.spec_json, "spec_json")
            explained = self._service.explain(ExplainRequest(JOB_NAME.from_wire(request.job), request.spec_json))
            return explanation_to_wire(explained)

    def ListDeadLetters(self, request: pb.DeadLettersRequest, context: grpc.ServicerContext) -> pb.DeadLetterRows:
        with answering(request, context, "dead-letters"):
            if request.limit > DEAD_LETTERS_MAX:
                raise InvalidRequest(
                    f"must be at most {DEAD_LETTERS_MAX}", field="limit", remedy="Read the table that holds them"
                )
            job = JOB_NAME.from_wire(request.job)
            return LEFT_OUT_ROWS.to_wire(self._service.dead_letters(job, request.limit or DEAD_LETTERS_LIMIT))

    def History(self, request: pb.HistoryRequest, context: grpc.ServicerContext) -> Iterator[pb.HistoryPage]:
        with answering(request, context, "history"):
            if request.limit > HISTORY_LIMIT_MAX:
                raise InvalidRequest(
                    f"must be at most {HISTORY_LIMIT_MAX}", field="limit", remedy="Read the job log's history table"
                )
            entries = self._service.history(JOB_NAME.from_wire(request.job), request.limit or HISTORY_LIMIT)
            for page in pages(HISTORY_ENTRY.to_wire(entry) for entry in entries):
                yield pb.HistoryPage(entries=page)

    def Notify(self, request: pb.NotifyRequest, context: grpc.ServicerContext) -> pb.NotifyResponse:
        with answering(request, context, "notify"):
            return pb.NotifyResponse(jobs=self._service.notify(request.table, request.account))

    def GetCluster(self, request: pb.GetClusterRequest, context: grpc.ServicerContext) -> Iterator[pb.ClusterPage]:
        with answering(request, context, "cluster"):
            yield from cluster_to_wire(self._service.cluster())
