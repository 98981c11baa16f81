"""The calls that the owner makes at another node (port NodeCalls), and the question who is at an address.

Decides how long each may take. No call is repeated: its caller repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from iscp.adapters.grpc.channel.call_metadata import Meant, open_channel
from iscp.adapters.grpc.channel.grpc_errors import from_rpc
from iscp.adapters.grpc.channel.trace_metadata import Pairs, with_trace
from iscp.adapters.grpc.codec.build_messages import finished_from_wire
from iscp.adapters.grpc.codec.cluster_messages import EVENT
from iscp.adapters.grpc.codec.job_messages import PROGRESS, UPKEEP, VERIFY_REPORT
from iscp.adapters.grpc.codec.log_messages import LOG_PAGE, query_to_wire
from iscp.adapters.grpc.codec.message_codec import Codec
from iscp.adapters.grpc.codec.node_messages import SHARD
from iscp.adapters.tls.tls_files import TlsSource
from iscp.core.api.api_views import EventView
from iscp.core.api.log_lines import LogPage, LogQuery
from iscp.core.job.maintenance_figures import JobMaintenance
from iscp.core.job.verification import VerifyReport
from iscp.core.values.errors import Canceled, Unavailable
from iscp.core.values.ids import ShardId
from iscp.core.values.progress import RunProgress
from iscp.core.values.untrusted_values import error_text
from iscp.ports.cluster import WORK_WAIT_S, BuildAnswer
from iscp.wire.v1 import node_pb2 as pb
from iscp.wire.v1 import node_pb2_grpc as pb_grpc
from iscp.wire.v1.operator_pb2 import EventPage

CALL_TIMEOUT_S = 5.0
"""How long a node may take to answer an owner's call, comparisons excepted; then the call has failed."""

VERIFY_MARGIN_S = 5.0
"""Seconds that a comparison's answer may take beyond the comparison's own timeout; then the call has failed."""

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether the caller of a running comparison is still there."""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node's description of itself; `counters` are its executor's."""

    node_id: str
    epoch: int
    cluster: str
    version: str
    wire_format: int
    counters: Mapping[str, int]


_DESCRIPTION = Codec(NodeDescription, pb.Description)


def describe(address: str, *, tls: TlsSource | None = None, timeout_s: float = CALL_TIMEOUT_S) -> NodeDescription:
    """Return the description of who answers at `address`, be it a stranger.

    Raises Unavailable, TimedOut, PermanentError if it is no node.
    """
    with open_channel(address, tls) as channel:
        return _describe(pb_grpc.NodeStub(channel), address, timeout_s)


def _describe(stub: pb_grpc.NodeStub, address: str, timeout_s: float) -> NodeDescription:
    try:
        found = stub.Describe(pb.DescribeRequest(), timeout=timeout_s)
    except grpc.RpcError as error:
        raise from_rpc(error, address, changes=False) from error
    return _DESCRIPTION.from_wire(found)


class RemoteNode:
    """One life of a node at `address`, called through a channel that is somebody else's to close."""

    def __init__(self, channel: grpc.Channel, address: str, meant: Meant) -> None:
        self._stub = pb_grpc.NodeStub(channel)
        self._address = address
        self._meant = meant
        self._own = meant.to_metadata()

    @property
    def _metadata(self) -> Pairs:
        return with_trace(self._own)

    def notify(self, shard: ShardId, targets: bool) -> None:
        self._request(self._stub.Notify, pb.NotifyRequest(shard=SHARD.to_wire(shard), targets=targets))

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        request = pb.InterruptRequest(shard=SHARD.to_wire(shard), job_id=job_id, spec_json=spec_json)
        self._request(self._stub.Interrupt, request)

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        request = pb.VerifyRequest(shard=SHARD.to_wire(shard), job_id=job_id, repair=repair, timeout_s=timeout_s)
        deadline_s = timeout_s + VERIFY_MARGIN_S
        call = self._begun(lambda: self._stub.Verify.future(request, timeout=deadline_s, metadata=self._metadata))
        try:
            while True:
                try:
                    return VERIFY_REPORT.from_wire(call.result(ALIVE_LOOK_S))
                except grpc.FutureTimeoutError:
                    if not alive():
                        raise Unavailable("the comparison was given up: the caller is gone") from None
                except grpc.FutureCancelledError as error:
                    raise self._closed() from error
                except grpc.RpcError as error:
                    raise from_rpc(error, self._address, changes=repair) from error
        finally:
            call.cancel()

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        request = pb.WorkOnBuildTasksRequest(owner_rev=owner_rev, range_id=range_id, task_ids=task_ids)
        method, deadline_s = self._stub.WorkOnBuildTasks, WORK_WAIT_S + CALL_TIMEOUT_S
        try:
            call = self._begun(lambda: method.future(request, timeout=deadline_s, metadata=self._metadata))
        except Unavailable as error:
            answered(error)
            return lambda: None
        call.add_done_callback(lambda done: answered(self._build_answer(done)))

        def cancel() -> None:
            call.cancel()

        return cancel

    def _build_answer(self, call: Any) -> BuildAnswer:
        try:
            return finished_from_wire(call.result())
        except ValueError as error:
            return Unavailable(f"{self._address} answers finished tasks that cannot be: {error_text(error)}")
        except grpc.FutureCancelledError:
            return Canceled("the owner does not wait any more")
        except grpc.RpcError as error:
            return from_rpc(error, self._address, changes=False)

    def maintenance(self, job_id: str) -> JobMaintenance:
        return UPKEEP.from_wire(self._request(self._stub.Upkeep, pb.UpkeepRequest(job_id=job_id)))

    def progress(self, job_id: str) -> RunProgress | None:
        answer = self._request(self._stub.Progress, pb.ProgressRequest(job_id=job_id))
        return PROGRESS.from_wire(answer.progress) if answer.HasField("progress") else None

    def counters(self) -> dict[str, int]:
        found = self._begun(lambda: _describe(self._stub, self._address, CALL_TIMEOUT_S))
        meant = self._meant
        if (found.cluster, found.node_id, found.epoch) != (meant.cluster, meant.node_id, meant.epoch):
            raise Unavailable(f"{self._address} is {found.node_id} in epoch {found.epoch} now")
        return dict(found.counters)

    def events(self, known: Sequence[int]) -> list[EventView]:
        def all_pages(request: pb.EventsRequest, **given: Any) -> list[EventPage]:
            return list(self._stub.Events(request, **given))

        answer = self._request(all_pages, pb.EventsRequest(known=known))
        return [EVENT.from_wire(event) for page in answer for event in page.events]

    def logs(self, query: LogQuery) -> LogPage:
        return LOG_PAGE.from_wire(self._request(self._stub.Logs, query_to_wire(query)))

    def _request(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return self._begun(lambda: method(request, timeout=CALL_TIMEOUT_S, metadata=self._metadata))
        except grpc.RpcError as error:
            raise from_rpc(error, self._address, changes=False) from error

    def _begun(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ValueError as error:  # gRPC's way to say that the channel is closed
            raise self._closed() from error

    def _closed(self) -> Unavailable:
        return Unavailable(f"{self._meant.node_id} is no longer a member", remedy="Retry")
