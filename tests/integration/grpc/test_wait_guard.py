"""Calls that wait: so many of a caller, an account and all, in threads of their own, until their caller has gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from iscp.client.admin_client import Client
from iscp.client.channel.grpc_calls import from_rpc
from iscp.model.access.service_table import Role
from iscp.model.api.api_requests import EventView
from iscp.model.settings.config import WaitBounds
from iscp.model.values.errors import QueueFull
from iscp.server.admin.admin_server import AdminServer, OperatorServer
from iscp.server.admin.forwarding import Forwarding
from iscp.system.threads import SystemClock
from iscp.wire.v1 import admin_pb2, operator_pb2
from tests.fakes.access import Access
from tests.fakes.admin import ALIVE_S, FakeAdmin
from tests.fakes.operators import FakeOperator
from tests.fakes.waiting import until

THREADS = 4
BOUNDS = WaitBounds(node_max=10, account_max=6, caller_max=4)
MANY = 900

Wait = tuple[str, Any]
EVENTS = "/iscp.wire.v1.Operator/GetEvents", operator_pb2.GetEventsRequest(wait_s=60)
JOB = (
    "/iscp.wire.v1.Admin/WaitJob",
    admin_pb2.WaitJobRequest(job=admin_pb2.JobName(table="/t", name="a"), timeout_s=24 * 3600),
)


class QuietOperator(FakeOperator):
    """Of whom nothing is heard while somebody waits for it."""

    waiting = 0

    def events(
        self, owner_rev: int, number: int, wait_s: float, alive: Callable[[], bool], table: str = "", account: str = ""
    ) -> list[EventView]:
        until_s = time.monotonic() + wait_s
        self.waiting += 1
        while alive() and time.monotonic() < until_s:
            time.sleep(ALIVE_S)
        self.waiting -= 1
        return []


class Guarded:
    """A node whose callers are known, with few threads, and one that passes calls on to it."""

    def __init__(self) -> None:
        self.admin, self.operator, self.access = FakeAdmin(), QuietOperator(), Access(SystemClock())
        self.server = self._serve(self.access.interceptor)
        self.forwarding = Forwarding(lambda: self.server.address)
        self.other = self._serve(self.access.interceptor, self.forwarding)
        self.calls: list[Any] = []
        self.channels: list[grpc.Channel] = []
        for account in ("acme", "other"):
            with self.client(account) as client:
                client.register("/t", "a", target=f"/copy/{account}")

    def _serve(self, *interceptors: grpc.ServerInterceptor) -> AdminServer:
        server = AdminServer(
            self.admin,
            "127.0.0.1:0",
            max_workers=THREADS,
            waits=BOUNDS,
            services=[OperatorServer(self.operator)],
            interceptors=interceptors,
        )
        server.start()
        return server

    def client(self, account: str) -> Client:
        return Client(self.server.address, token=self.access.token(Role.EDITOR, account), timeout_s=20.0)

    def wait(
        self, wanted: tuple[str, Any], count: int, account: str = "acme", at: AdminServer | None = None
    ) -> list[Any]:
        """So many calls of one viewer, on one connection."""
        self.channels.append(channel := grpc.insecure_channel((at or self.server).address))
        method, request = wanted
        metadata = (("authorization", f"Bearer {self.access.token(Role.VIEWER, account)}"),)
        begin = channel.unary_stream(method)
        made = [begin(request.SerializeToString(), metadata=metadata) for _ in range(count)]
        self.calls += made
        return made

    @property
    def waiting(self) -> int:
        return self.admin.waiting + self.operator.waiting

    def stop(self) -> None:
        for channel in self.channels:
            channel.close()
        for server in (self.other, self.server):
            server.stop(0.0)
        self.forwarding.close()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    made = Guarded()
    yield made
    made.stop()


def refused(calls: list[Any]) -> list[Any]:
    """Those that have ended: with the status of a full queue, or as their request took its time on a busy machine."""
    ended = [each for each in calls if each.done()]
    assert {each.code() for each in ended} <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED}
    return ended


@pytest.mark.parametrize("wanted", [EVENTS, JOB])
def test_a_viewer_who_waits_hundreds_of_times_leaves_the_node_to_others(guarded: Guarded, wanted: Wait) -> None:
    calls = guarded.wait(wanted, MANY)
    with guarded.client("other") as client:
        assert client.count() == 1
        until(lambda: len(refused(calls)) == MANY - BOUNDS.caller_max)
        assert guarded.waiting == BOUNDS.caller_max
        guarded.admin.apply("/t", "a", 1, account="other")
        assert client.wait("/t", "a", 1).applied_version == 1


def test_callers_of_an_account_share_its_places_and_leave_others_theirs(guarded: Guarded) -> None:
    for number in range(2):
        guarded.wait(JOB, BOUNDS.caller_max)
        held = min((number + 1) * BOUNDS.caller_max, BOUNDS.account_max)
        until(lambda: guarded.waiting == held)  # noqa: B023  (it is called here alone)
    surplus = 2 * BOUNDS.caller_max - BOUNDS.account_max
    until(lambda: len(refused(guarded.calls)) == surplus)
    others = guarded.wait(JOB, BOUNDS.caller_max, "other")
    until(lambda: guarded.waiting == BOUNDS.node_max)
    assert refused(others) == []
    (last,) = guarded.wait(JOB, 1, "third")
    with pytest.raises(grpc.RpcError) as failure:
        next(last)
    error = from_rpc(failure.value, "node", changes=False)
    assert isinstance(error, QueueFull)
    assert "waits.node_max" in error.remedy


@pytest.mark.parametrize("wanted", [EVENTS, JOB])
def test_waits_that_a_node_passes_on_count_for_their_caller(guarded: Guarded, wanted: Wait) -> None:
    calls = guarded.wait(wanted, MANY // 3, at=guarded.other)
    until(lambda: len(refused(calls)) == len(calls) - BOUNDS.caller_max)
    with Client(guarded.other.address, token=guarded.access.token(Role.VIEWER, "other"), timeout_s=20.0) as client:
        assert client.count() == 1
    for each in calls:
        each.cancel()
    until(lambda: guarded.waiting == 0)


@pytest.mark.parametrize("wanted", [EVENTS, JOB])
def test_a_wait_ends_with_its_caller_and_frees_its_place(guarded: Guarded, wanted: Wait) -> None:
    for _ in range(3):
        calls = guarded.wait(wanted, BOUNDS.caller_max)
        until(lambda: guarded.waiting == BOUNDS.caller_max)
        guarded.channels.pop().close()
        until(lambda: guarded.waiting == 0)
        assert {each.code() for each in calls} == {grpc.StatusCode.CANCELLED}
