"""Pages of jobs' feeds by both clients, from any node and by JSON: over real sockets, of real tables, without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest

from iscp import aio
from iscp.changefeed import Changefeed
from iscp.client.admin_client import Client
from iscp.model.access.service_table import RULES, Role
from iscp.model.api.api_requests import CHANGES_MAX, CURSOR_CHARS_MAX, FEED_WAIT_S_MAX
from iscp.model.settings.config import WaitBounds
from iscp.model.values.errors import (
    CursorBehind,
    ErrorCode,
    InvalidRequest,
    IscpError,
    JobNotFound,
    NotAuthenticated,
    QueueFull,
    TableNotFound,
)
from iscp.server.admin.admin_server import AdminServer
from iscp.server.admin.forwarding import Forwarding
from iscp.server.http.gateway_server import GatewayServer
from iscp.system.threads import SystemClock
from iscp.wire.v1 import admin_pb2
from iscp.wire.v1 import feeds_pb2 as pb
from iscp.wire.v1 import feeds_pb2_grpc as pb_grpc
from tests.fakes.access import Access
from tests.fakes.admin import FakeAdmin
from tests.fakes.job_feeds import NAME, TABLE, append, create, feed_server, register
from tests.fakes.waiting import until

Serve = Callable[..., str]


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Changefeed]:
    with create(tmp_path / "feed") as feed:
        append(feed, *range(5))
        yield feed


@pytest.fixture
def admin(tmp_path: Path) -> FakeAdmin:
    """The job NAME on TABLE of the account acme, whose feed is that of `feed`."""
    admin = FakeAdmin()
    register(admin, tmp_path / "feed")
    return admin


@pytest.fixture
def serve(admin: FakeAdmin) -> Iterator[Serve]:
    servers: list[AdminServer] = []

    def serve(forwarding: Forwarding | None = None, own: FakeAdmin | None = None, **more: Any) -> str:
        interceptors = [*more.pop("interceptors", ()), *([] if forwarding is None else [forwarding])]
        services = [feed_server(own or admin, forwarding)]
        server = AdminServer(own or admin, "127.0.0.1:0", services=services, interceptors=interceptors, **more)
        server.start()
        servers.append(server)
        return server.address

    yield serve
    for server in servers:
        server.stop(grace_s=0)


def test_pages_over_the_wire_lose_nothing(feed: Changefeed, serve: Serve) -> None:
    with Client(serve()) as client:
        first = client.feeds.read(TABLE, NAME, limit=2, account="acme")
        rest = client.feeds.read(TABLE, NAME, first.cursor, account="acme")
        end = client.feeds.read(TABLE, NAME, rest.cursor, account="acme")
    rows = feed.read().rows.to_pylist()
    assert [each.row for each in (*first.changes, *rest.changes)] == [each["row"] for each in rows]
    assert [each.ulid for each in (*first.changes, *rest.changes)] == [each["ulid_text"] for each in rows]
    change = first.changes[1]
    assert (change.shard, change.operation, change.key) == (1, "insert", {"id": 1})
    assert (change.version, change.net) == (None, False)
    assert (end.changes, end.cursor) == ((), rest.cursor)
    assert rest.cursor == feed.last_cursor().text


def test_a_reader_that_follows_gets_what_comes(feed: Changefeed, serve: Serve) -> None:
    with Client(serve()) as client:
        pages = client.feeds.follow(TABLE, NAME, account="acme")
        assert [each.row["id"] for each in next(pages).changes] == [0, 1, 2, 3, 4]
        append(feed, 5)
        assert [each.row["id"] for each in next(pages).changes] == [5]


def test_the_async_client_follows_too(feed: Changefeed, serve: Serve) -> None:
    async def ids() -> list[int]:
        found: list[int] = []
        async with aio.Client(serve()) as client:
            first = await client.feeds.read(TABLE, NAME, limit=1, account="acme")
            found += [each.row["id"] for each in first.changes]
            async for page in client.feeds.follow(TABLE, NAME, first.cursor, limit=3, account="acme"):
                found += [each.row["id"] for each in page.changes]
                if len(found) == 5:
                    append(feed, 5)
                if len(found) > 5:
                    break
        return found

    assert asyncio.run(ids()) == [0, 1, 2, 3, 4, 5]


def test_a_node_that_is_not_the_owner_reads_by_itself_what_the_owner_says_is_a_jobs(
    feed: Changefeed, admin: FakeAdmin, serve: Serve
) -> None:
    owner, knows_nothing = serve(), FakeAdmin()
    forwarding = Forwarding(lambda: owner)
    with Client(serve(forwarding, knows_nothing)) as client:
        assert len(client.feeds.read(TABLE, NAME, account="acme").changes) == 5
        with pytest.raises(JobNotFound):
            client.feeds.read(TABLE, "none", account="acme")
    forwarding.close()
    assert admin.asked["status"] == 2
    assert "status" not in knows_nothing.asked


def test_a_purge_that_has_overtaken_a_reader_is_named_with_the_remedy(feed: Changefeed, serve: Serve) -> None:
    with Client(serve()) as client:
        cursor = client.feeds.read(TABLE, NAME, limit=1, account="acme").cursor
        feed.purge(older_than_s=0)
        append(feed, 5)
        with pytest.raises(CursorBehind, match="were purged") as refused:
            client.feeds.read(TABLE, NAME, cursor, account="acme")
        assert refused.value.code is ErrorCode.FEED_PURGED
        assert "Begin again from what is left: without a cursor" in refused.value.remedy
        assert [each.row["id"] for each in client.feeds.read(TABLE, NAME, account="acme").changes] == [5]


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("limit", {"limit": CHANGES_MAX + 1}),
        ("limit", {"limit": 2**32 - 1}),
        ("cursor", {"cursor": "nonsense"}),
        ("cursor", {"cursor": "[" * CURSOR_CHARS_MAX}),
        ("cursor", {"cursor": "x" * (CURSOR_CHARS_MAX + 1)}),
        ("cursor", {"cursor": '{"feed": "another", "shards": {}}'}),
        ("timeout_s", {"timeout_s": -1.0}),
        ("timeout_s", {"timeout_s": float("nan")}),
        ("timeout_s", {"timeout_s": FEED_WAIT_S_MAX + 1}),
        ("format_version", {"format_version": 1_000}),
    ],
)
def test_a_node_refuses_what_is_out_of_bounds(
    feed: Changefeed, serve: Serve, field: str, given: dict[str, Any]
) -> None:
    request = pb.ReadFeedRequest(job=admin_pb2.JobName(table=TABLE, name=NAME, account="acme"), **given)
    with grpc.insecure_channel(serve()) as channel, pytest.raises(grpc.RpcError) as refused:
        pb_grpc.FeedsStub(channel).ReadFeed(request, timeout=30)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in (refused.value.details() or "")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("cursor", {"cursor": 3}),
        ("cursor", {"cursor": None}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 2.5}),
        ("wait_s", {"wait_s": "9"}),
    ],
)
def test_the_client_refuses_what_is_no_request(field: str, given: dict[str, Any]) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(InvalidRequest) as refused:
        client.feeds.read(TABLE, NAME, **given)
    assert refused.value.field == field


def test_a_feed_of_another_account_is_as_one_that_is_not_there(feed: Changefeed, serve: Serve) -> None:
    access = Access(SystemClock())
    address = serve(interceptors=[access.interceptor])

    def refused(table: str, account: str, named: str = "") -> str:
        token = access.token(Role.ADMIN, account)
        with Client(address, token=token) as client, pytest.raises(TableNotFound) as raised:
            client.feeds.read(table, NAME, account=named)
        return str(raised.value).replace(table, "TABLE")

    absent = refused("/lake/none", "other", "acme")
    assert refused(TABLE, "other", "acme") == absent
    with Client(address, token=access.token(Role.ADMIN, "other")) as other, pytest.raises(IscpError) as raised:
        other.feeds.read(TABLE, NAME)
    assert raised.value.code in (ErrorCode.JOB_NOT_FOUND, ErrorCode.TABLE_NOT_FOUND)
    with Client(address, token=access.token(Role.VIEWER, "acme")) as own:
        assert len(own.feeds.read(TABLE, NAME).changes) == 5
    with Client(address, token=access.token(Role.VIEWER, "system")) as operator:
        assert len(operator.feeds.read(TABLE, NAME, account="acme").changes) == 5
    with Client(address, token="none", timeout_s=5.0) as unknown, pytest.raises(NotAuthenticated):
        unknown.feeds.read(TABLE, NAME)


def test_a_job_that_writes_no_feed_is_refused_whatever_its_target_is(
    feed: Changefeed, admin: FakeAdmin, serve: Serve, tmp_path: Path
) -> None:
    register(admin, tmp_path / "feed", kind="replica", name="copy")
    with Client(serve()) as client, pytest.raises(InvalidRequest, match="writes no feed"):
        client.feeds.read(TABLE, "copy", account="acme")


def test_readers_that_follow_are_bounded_as_all_waits_are(feed: Changefeed, admin: FakeAdmin, serve: Serve) -> None:
    """So that no tenant's readers occupy the threads that other calls need."""
    assert RULES["/iscp.wire.v1.Feeds/ReadFeed"].waits
    address = serve(waits=WaitBounds(caller_max=1))
    request = pb.ReadFeedRequest(job=admin_pb2.JobName(table=TABLE, name=NAME, account="acme"))
    request.cursor, request.timeout_s = feed.last_cursor().text, 50.0
    with grpc.insecure_channel(address) as channel, Client(address, timeout_s=2.0) as client:
        waiting = pb_grpc.FeedsStub(channel).ReadFeed.future(request, timeout=60)
        until(lambda: admin.asked.get("status", 0) == 1)
        with pytest.raises(QueueFull):
            client.feeds.read(TABLE, NAME, account="acme")
        append(feed, 5)
        assert len(waiting.result(30).changes) == 1


def test_a_page_by_json(feed: Changefeed, admin: FakeAdmin) -> None:
    server = AdminServer(admin, "127.0.0.1:0", services=[feed_server(admin)])
    gateway = GatewayServer(server, "127.0.0.1:0", "1")
    gateway.start()
    gateway.ready()
    try:

        def post(body: object) -> tuple[int, Any]:
            connection = HTTPConnection(gateway.address, timeout=60)
            connection.request("POST", "/v1/ReadFeed", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            found = json.loads(response.read())
            connection.close()
            return response.status, found

        job = {"table": TABLE, "name": NAME, "account": "acme"}
        status, found = post({"job": job, "limit": 3})
        assert status == 200
        assert [json.loads(each["row_json"])["id"] for each in found["changes"]] == [0, 1, 2]
        status, found = post({"job": job, "cursor": found["cursor"], "timeout_s": 30})
        assert [json.loads(each["row_json"])["id"] for each in found["changes"]] == [3, 4]
        status, found = post({"job": job, "cursor": "nonsense"})
        assert (status, found["error"]["field"]) == (400, "cursor")
    finally:
        gateway.stop(0.0)
