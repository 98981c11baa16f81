"""Any node answers users, though only the owner can: over real sockets, with both services faked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from iscp.client.admin_client import Client
from iscp.client.channel.grpc_calls import CALLER_KEY, DETAIL_KEY, FORWARDED_KEY
from iscp.model.api.api_requests import JobFilter, JobName, JobView, RegisterRequest
from iscp.model.settings.config import WaitBounds
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values import errors as core
from iscp.server.admin import forwarding as forward
from iscp.server.admin.admin_server import AdminServer
from iscp.server.admin.forwarding import Forwarding
from iscp.server.node.node_server import NodeServer
from iscp.system.http_exchange import free_port
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc
from tests.fakes.admin import FakeAdmin
from tests.fakes.node_calls import FakeNodeCalls

SPEC = JobSpec(ConsumerSpec("replica", "/copy")).to_json()
WAIT_S = 20.0


class NotTheOwner(FakeAdmin):
    """As the service of a node that does not lead."""

    def _enter(self, verb: str) -> None:
        super()._enter(verb)
        raise core.NotOwner("this node is not the owner")


class Seen(grpc.ServerInterceptor):  # type: ignore[misc]
    """What calls say of themselves where they arrive."""

    def __init__(self) -> None:
        self.metadata: list[dict[str, Any]] = []

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        self.metadata.append(dict(details.invocation_metadata))
        return continuation(details)


class Cluster:
    """Nodes of a test, and where the one that forwards believes the owner to be."""

    def __init__(self) -> None:
        self.routes: list[Callable[[], str | None]] = []
        self.asked = 0
        self.here = NotTheOwner()
        self._ends: list[Callable[[], None]] = []
        self.log_fault: core.IscpError | None = None
        self.forwarding = Forwarding(self._route, log_fault=lambda: self.log_fault)
        self._ends.append(self.forwarding.close)
        self.entry = self.serve(self.here, interceptors=[self.forwarding])

    def _route(self) -> str | None:
        """The first answers each once, the last for good."""
        self.asked += 1
        return (self.routes.pop(0) if len(self.routes) > 1 else self.routes[0])()

    def serve(self, service: FakeAdmin, address: str = "127.0.0.1:0", **more: Any) -> str:
        server = AdminServer(service, address, max_workers=8, waits=WaitBounds(node_max=4), **more)
        server.start()
        self._ends.append(lambda: server.stop(grace_s=0))
        return server.address

    def owned_by(self, *addresses: str | None) -> None:
        self.routes = [lambda address=address: address for address in addresses]  # type: ignore[misc]

    def close(self) -> None:
        for end in reversed(self._ends):
            end()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def owner() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def client(cluster: Cluster, owner: FakeAdmin) -> Iterator[Client]:
    """Speaks to a node that is not the owner, and knows it."""
    cluster.owned_by(cluster.serve(owner))
    with Client(cluster.entry, timeout_s=WAIT_S) as client:
        yield client


@pytest.fixture
def entry(cluster: Cluster) -> Iterator[pb_grpc.AdminStub]:
    """The same node, without a client that retries."""
    with grpc.insecure_channel(cluster.entry) as channel:
        yield pb_grpc.AdminStub(channel)


def failed(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def test_a_call_to_any_node_is_answered_by_the_owner(client: Client, cluster: Cluster, owner: FakeAdmin) -> None:
    assert client.register("/t", "a", target="/copy").created
    assert client.pause("/t", "a")
    assert client.resume("/t", "a")
    owner.apply("/t", "a", 3)
    assert client.wait("/t", "a", 3).applied_version == 3
    assert client.cluster() == owner.cluster()
    assert cluster.here.asked == {}


def test_long_lists_come_as_they_are(client: Client) -> None:
    client.register_many([RegisterRequest(JobName(f"/t/{number}", "a"), SPEC) for number in range(5_000)])
    assert len({job.table for job in client.jobs()}) == 5_000
    assert len(client.cluster().shards) == 5_000
    assert client.history("/t/1", "a") == []


@pytest.mark.parametrize("verb", ["CountJobs", "ListJobs"])
def test_errors_come_back_byte_for_byte(cluster: Cluster, owner: FakeAdmin, verb: str) -> None:
    address = cluster.serve(owner)
    cluster.owned_by(address)
    told = []
    for each in (address, cluster.entry):
        owner.failures = [core.InvalidRequest("what ü", about="spec.x", remedy="do that")]
        with grpc.insecure_channel(each) as channel:
            method = channel.unary_stream(f"/iscp.wire.v1.Admin/{verb}")
            error = failed(lambda method=method: list(method(b"", timeout=WAIT_S)))  # type: ignore[misc]
        detail = dict(error.trailing_metadata())[DETAIL_KEY]
        told.append((error.code(), error.details(), detail))
    assert told[0] == told[1]


def test_an_error_in_the_middle_of_a_list_follows_what_came_before(entry: pb_grpc.AdminStub, cluster: Cluster) -> None:
    class Breaking(FakeAdmin):
        def list_jobs(self, wanted: JobFilter) -> Any:
            def jobs() -> Iterator[JobView]:
                yield from found
                raise core.NotOwner("not any more")

            found = super().list_jobs(wanted)
            return jobs()

    owner = Breaking()
    owner.register([RegisterRequest(JobName(f"/t/{number}", "a"), SPEC) for number in range(3_000)])
    cluster.owned_by(cluster.serve(owner))
    pages = entry.ListJobs(pb.ListJobsRequest(), timeout=WAIT_S)
    assert len(next(pages).jobs) == 1_000
    error = failed(lambda: list(pages))
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "not any more")
    assert owner.asked["list"] == 1


def test_a_call_carries_what_its_caller_said_and_that_it_was_forwarded(
    entry: pb_grpc.AdminStub, cluster: Cluster, owner: FakeAdmin
) -> None:
    seen = Seen()
    cluster.owned_by(cluster.serve(owner, interceptors=[seen]))
    said = (("authorization", "Bearer x"), ("trace-bin", b"\x00\xff"))
    # Whose call it is a node says alone, and this one knows nobody.
    injected = ((CALLER_KEY, '{"names": ["root"], "peer": ""}'),)
    entry.CountJobs(pb.CountJobsRequest(), metadata=said + injected, timeout=WAIT_S)
    (metadata,) = seen.metadata
    assert set(said) <= set(metadata.items())
    assert metadata[FORWARDED_KEY] == "1"
    assert CALLER_KEY not in metadata


def test_a_call_is_forwarded_once(cluster: Cluster, owner: FakeAdmin) -> None:
    """Two nodes that each believe the other to be the owner do not forward it back and forth."""
    other = NotTheOwner()
    to_entry = Forwarding(lambda: cluster.entry)
    cluster.owned_by(cluster.serve(other, interceptors=[to_entry]))
    with Client(cluster.entry, timeout_s=1.0) as client, pytest.raises(core.IscpError):
        client.count()
    assert cluster.here.asked == {}
    assert 1 < other.asked["count"] < 50
    to_entry.close()


def test_without_a_route_a_call_is_answered_here(client: Client, cluster: Cluster, owner: FakeAdmin) -> None:
    cluster.owned_by(None)
    with pytest.raises(core.NotOwner):
        client.count()
    assert owner.asked == {}


def test_other_services_are_not_forwarded(cluster: Cluster, owner: FakeAdmin) -> None:
    node = NodeServer("n", lambda: 1, "/c", "1", FakeNodeCalls(), lambda messages: None)
    address = cluster.serve(owner, interceptors=[forwarding := Forwarding(lambda: "127.0.0.1:1")], services=[node])
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(service=""), timeout=WAIT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert channel.unary_unary("/iscp.wire.v1.node.Node/Describe")(b"", timeout=WAIT_S)
        assert (
            failed(lambda: channel.unary_unary("/x.Y/Z")(b"", timeout=WAIT_S)).code() is grpc.StatusCode.UNIMPLEMENTED
        )
    forwarding.close()


def test_a_call_that_finds_no_owner_is_repeated_where_the_next_one_is(
    entry: pb_grpc.AdminStub, cluster: Cluster, owner: FakeAdmin
) -> None:
    deposed = NotTheOwner()
    former = cluster.serve(deposed)
    cluster.owned_by(*[former] * 4, cluster.serve(owner))
    assert entry.CountJobs(pb.CountJobsRequest(), timeout=WAIT_S).jobs == 0
    assert (deposed.asked, owner.asked) == ({"count": 3}, {"count": 1})
    cluster.owned_by(*[former] * 4, cluster.serve(owner))
    assert list(entry.ListJobs(pb.ListJobsRequest(), timeout=WAIT_S)) == []
    assert deposed.asked["list"] == 3


def test_an_owner_that_is_not_there_yet_is_waited_for(cluster: Cluster, owner: FakeAdmin) -> None:
    address = f"127.0.0.1:{free_port()}"
    cluster.owned_by(*[address] * 4)
    cluster.routes.insert(3, lambda: cluster.serve(owner, address))
    with Client(cluster.entry, timeout_s=WAIT_S) as client:
        assert client.register("/t", "a", target="/copy").created
    assert owner.asked == {"register": 1}


def test_a_node_that_becomes_owner_answers_itself(entry: pb_grpc.AdminStub, cluster: Cluster) -> None:
    mine = FakeAdmin()
    mine.register([RegisterRequest(JobName(f"/t/{number}", "a"), SPEC) for number in range(2_000)])
    former = cluster.serve(NotTheOwner())
    address = cluster.serve(mine, interceptors=[forwarding := Forwarding(cluster._route)])
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.AdminStub(channel)
        cluster.owned_by(former, former, None)
        assert stub.CountJobs(pb.CountJobsRequest(), timeout=WAIT_S).jobs == 2_000
        cluster.owned_by(former, former, None)
        assert sum(len(page.jobs) for page in stub.ListJobs(pb.ListJobsRequest(), timeout=WAIT_S)) == 2_000
        cluster.owned_by(former, former, None)
        error = failed(lambda: stub.GetJob(pb.GetJobRequest(), timeout=WAIT_S))
        assert error.code() is grpc.StatusCode.NOT_FOUND
    forwarding.close()


def test_an_owner_that_stays_away_is_given_up_before_the_callers_time_is_over(cluster: Cluster) -> None:
    cluster.owned_by("127.0.0.1:1")
    with grpc.insecure_channel(cluster.entry) as channel:
        begun_s = time.monotonic()
        error = failed(lambda: pb_grpc.AdminStub(channel).CountJobs(pb.CountJobsRequest(), timeout=2.0))
        assert time.monotonic() - begun_s < 4.0
    assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert cluster.asked > 3
    with Client(cluster.entry, timeout_s=3.0) as client, pytest.raises((core.Unavailable, core.OutcomeUnknown)):
        client.unregister("/t", "a")


def test_where_nobody_can_claim_a_damaged_log_the_fault_is_said_at_once_and_not_waited_for(cluster: Cluster) -> None:
    cluster.owned_by("127.0.0.1:1")
    cluster.log_fault = core.JobLogDamaged("7.json is torn", remedy="Repair it")
    begun_s = time.monotonic()
    with grpc.insecure_channel(cluster.entry) as channel:
        error = failed(lambda: pb_grpc.AdminStub(channel).CountJobs(pb.CountJobsRequest(), timeout=WAIT_S))
    assert time.monotonic() - begun_s < forward.FORWARD_FOR_S / 2
    assert "7.json is torn. Repair it" in error.details()


def test_what_may_have_been_done_is_not_repeated_and_not_called_unsent(
    entry: pb_grpc.AdminStub, cluster: Cluster
) -> None:
    begun = threading.Event()
    release = threading.Event()

    def before(verb: str) -> None:
        begun.set()
        release.wait(WAIT_S)

    owner = FakeAdmin(before=before)
    server = AdminServer(owner, "127.0.0.1:0")
    server.start()
    cluster.owned_by(server.address)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(failed, lambda: entry.Pause(pb.ChangeJobRequest(), timeout=WAIT_S))
        assert begun.wait(WAIT_S)
        server.stop(grace_s=0)
        error = asked.result(WAIT_S)
        release.set()
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "went away before it answered" in error.details()
    assert "failed to connect" not in error.details()
    assert owner.asked == {"pause": 1}


def test_a_change_is_made_once_though_its_owner_goes_away_under_way(cluster: Cluster, owner: FakeAdmin) -> None:
    """The client retries under the same request id; the node that forwards leaves that to it."""
    address = cluster.serve(owner)
    cluster.owned_by(address)
    owner.fail_late = True
    owner.failures = [core.OutcomeUnknown("the answer was lost")]
    with Client(cluster.entry, timeout_s=WAIT_S) as client:
        assert client.register("/t", "a", target="/copy").created
    assert len(owner.request_ids) == 2
    assert len(set(owner.request_ids)) == 1


class Waiting(FakeAdmin):
    """Notes how long a wait was allowed to take, and whether anybody still waits."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.left = threading.Event(), threading.Event()
        self.timeout_s = 0.0

    def wait(
        self,
        job: JobName,
        version: int | None,
        timeout_s: float,
        alive: Callable[[], bool],
        versions: Mapping[str, int] | None = None,
    ) -> JobView:
        self.timeout_s = timeout_s
        self.begun.set()
        end_s = time.monotonic() + WAIT_S
        while alive() and time.monotonic() < end_s:
            time.sleep(0.01)
        self.left.set()
        raise core.TimedOut("nobody waits")


def test_the_callers_time_goes_with_the_call(entry: pb_grpc.AdminStub, cluster: Cluster) -> None:
    owner = Waiting()
    cluster.owned_by(cluster.serve(owner))
    error = failed(lambda: entry.WaitJob(pb.WaitJobRequest(timeout_s=600.0), timeout=3.0))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # What is left travels with two or three digits, rounded up, and is rounded again by each node that forwards it.
    assert 0 < owner.timeout_s <= 3.0 * 1.02
    assert owner.left.wait(WAIT_S)


def test_a_caller_who_goes_away_takes_the_call_with_him(entry: pb_grpc.AdminStub, cluster: Cluster) -> None:
    owner = Waiting()
    cluster.owned_by(cluster.serve(owner))
    call = entry.WaitJob.future(pb.WaitJobRequest(timeout_s=600.0))
    assert owner.begun.wait(WAIT_S)
    assert owner.timeout_s == 600.0
    assert not owner.left.is_set()
    call.cancel()
    assert owner.left.wait(WAIT_S)


def test_a_caller_who_goes_away_ends_the_search_for_an_owner(entry: pb_grpc.AdminStub, cluster: Cluster) -> None:
    cluster.owned_by("127.0.0.1:1")
    call = entry.CountJobs.future(pb.CountJobsRequest())
    end_s = time.monotonic() + WAIT_S
    while cluster.asked < 3:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    call.cancel()
    time.sleep(2 * forward.RETRY_MAX_S)
    asked = cluster.asked
    time.sleep(2 * forward.RETRY_MAX_S)
    assert cluster.asked == asked


def test_connections_to_owners_are_kept_and_bounded(entry: pb_grpc.AdminStub, cluster: Cluster) -> None:
    addresses = [cluster.serve(FakeAdmin()) for _ in range(forward.OWNER_CHANNELS_MAX + 2)]
    for address in (*addresses, *addresses):
        cluster.owned_by(address)
        assert entry.CountJobs(pb.CountJobsRequest(), timeout=WAIT_S).jobs == 0
    assert len(cluster.forwarding._channels) == forward.OWNER_CHANNELS_MAX
