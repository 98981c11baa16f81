"""Searches of indexes by both clients, through any node and by JSON: over real sockets, with a faked service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import grpc
import pytest

from iscp import aio
from iscp.client.admin_client import Client
from iscp.model.access.service_table import RULES, Role
from iscp.model.api.api_requests import K_MAX, WAIT_S_MAX, SearchHit, SearchRequest, SearchWeights
from iscp.model.values.errors import (
    ErrorCode,
    InvalidRequest,
    IscpError,
    JobFailed,
    NotAuthenticated,
    PermanentError,
    TableNotFound,
    TimedOut,
)
from iscp.server.admin.admin_server import AdminServer, SearchServer
from iscp.server.admin.forwarding import Forwarding
from iscp.server.http.gateway_server import GatewayServer
from iscp.system.threads import SystemClock
from iscp.system.tls.tls_files import MESSAGE_BYTES_MAX
from iscp.wire.v1 import search_pb2 as pb
from iscp.wire.v1 import search_pb2_grpc as pb_grpc
from tests.fakes.access import Access
from tests.fakes.admin import FakeAdmin
from tests.fakes.searches import ANSWER, FakeSearches

INDEX = "/lake/index"
WANTED = SearchRequest(
    INDEX, "fox", (0.5, -1.25), 7, "year > 1990", ("title", "é"), 12, 3.0, True, True, SearchWeights(2.0, 0.5)
)

Serve = Callable[..., str]


@pytest.fixture
def searches() -> FakeSearches:
    return FakeSearches()


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[AdminServer] = []

    def serve(service: FakeSearches | None, *interceptors: grpc.ServerInterceptor) -> str:
        services = [] if service is None else [SearchServer(service)]
        server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=services, interceptors=interceptors)
        server.start()
        servers.append(server)
        return server.address

    yield serve
    for server in servers:
        server.stop(grace_s=0)


def arguments(wanted: SearchRequest) -> dict[str, Any]:
    names = ("vector", "k", "filter", "min_version", "wait_s", "columns", "highlight", "explain", "weights")
    return {name: getattr(wanted, name) for name in names}


def test_a_search_and_its_answer_lose_nothing(searches: FakeSearches, serve: Serve) -> None:
    with Client(serve(searches)) as client:
        assert client.search(INDEX, "fox") == ANSWER
        assert client.search(WANTED.uri, WANTED.text, **arguments(WANTED), account="acme") == ANSWER
        assert client.search(INDEX, vector=[1, 2], columns=[]) == ANSWER
    (plain, own), (full, acme), (vector, _) = searches.calls
    assert (own, acme) == ("", "acme")
    assert replace(plain, wait_s=0.0) == SearchRequest(INDEX, "fox", wait_s=0.0)
    assert 9.0 < plain.wait_s <= 10.0
    assert replace(full, wait_s=3.0) == WANTED
    assert 2.0 < full.wait_s <= 3.0
    assert (vector.vector, vector.columns, vector.text) == ((1.0, 2.0), (), "")


def test_the_async_client_searches_too(searches: FakeSearches, serve: Serve) -> None:
    async def search() -> object:
        async with aio.Client(serve(searches)) as client:
            return await client.search(INDEX, "fox", k=3)

    assert asyncio.run(search()) == ANSWER
    assert searches.calls[0][0].k == 3


def test_any_node_passes_a_search_on_to_the_owner(searches: FakeSearches, serve: Serve) -> None:
    owner = serve(searches)
    forwarding = Forwarding(lambda: owner)
    with Client(serve(None, forwarding)) as client, pytest.raises(PermanentError):
        client.search(INDEX, "fox")  # it serves no searches itself
    with Client(serve(FakeSearches({}), forwarding)) as client:
        assert client.search(INDEX, "fox") == ANSWER
    forwarding.close()
    assert len(searches.calls) == 1


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("has no end at character 4", field="text", remedy="Close the quote"),
        TableNotFound("/lake/index is no index", about="uri", remedy="Name another"),
        TimedOut("version 9 was not applied within 3 s"),
        JobFailed("the job has failed", about="job", remedy="Repair it"),
    ],
)
def test_errors_pass_unchanged(searches: FakeSearches, serve: Serve, error: IscpError) -> None:
    searches.answer = error
    with Client(serve(searches), timeout_s=5.0) as client, pytest.raises(type(error)) as raised:
        client.search(INDEX, "fox", wait_s=0.0)
    got = raised.value
    assert (got.message, got.field, got.remedy) == (error.message, error.field, error.remedy)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("uri", {"uri": ""}),
        ("text", {"text": ""}),
        ("text", {"text": "x" * 10_000}),
        ("k", {"k": K_MAX + 1}),
        ("filter", {"filter": "x" * 100_000}),
        ("vector", {"vector": [float("nan")]}),
        ("vector", {"vector": [0.0] * 10_000}),
        ("columns", {"columns": pb.SearchColumns(names=["c"] * 10_000)}),
        ("weights", {"weights": pb.SearchWeights()}),
        ("weights.text", {"weights": pb.SearchWeights(text=float("nan"))}),
        ("timeout_s", {"timeout_s": -1.0}),
        ("timeout_s", {"timeout_s": float("nan")}),
        ("timeout_s", {"timeout_s": WAIT_S_MAX + 1}),
        ("min_version", {"min_version": -1}),
        ("format_version", {"format_version": 1_000}),
    ],
)
def test_a_node_refuses_what_is_out_of_bounds(
    searches: FakeSearches, serve: Serve, field: str, given: dict[str, Any]
) -> None:
    request = pb.SearchRequest(**{"uri": INDEX, "text": "fox", **given})
    with grpc.insecure_channel(serve(searches)) as channel, pytest.raises(grpc.RpcError) as refused:
        pb_grpc.SearchStub(channel).Search(request, timeout=10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in (refused.value.details() or "")
    assert searches.calls == []


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("uri", {"uri": 3}),
        ("text", {"text": b"fox"}),
        ("k", {"k": 2.5}),
        ("k", {"k": 0}),
        ("filter", {"filter": None}),
        ("vector", {"vector": ["a"]}),
        ("vector", {"vector": 3}),
        ("columns", {"columns": "title"}),
        ("weights", {"weights": 2.0}),
        ("min_version", {"min_version": "9"}),
        ("wait_s", {"wait_s": "9"}),
    ],
)
def test_the_client_refuses_what_is_no_search(field: str, given: dict[str, Any]) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(InvalidRequest) as refused:
        client.search(**{"uri": INDEX, "text": "fox", **given})
    assert refused.value.field == field


def test_an_answer_that_is_too_large_says_so(searches: FakeSearches, serve: Serve) -> None:
    hits = (SearchHit({"id": 1}, 1.0, {"body": "x" * (MESSAGE_BYTES_MAX // 2)}),) * 3
    searches.answer = replace(ANSWER, hits=hits)
    with Client(serve(searches)) as client, pytest.raises(InvalidRequest, match="Name fewer columns") as refused:
        client.search(INDEX, "fox")
    assert refused.value.field == "columns"


def test_an_index_of_another_account_is_as_one_that_is_not_there() -> None:
    searches, access = FakeSearches(), Access(SystemClock())
    server = AdminServer(
        FakeAdmin(), "127.0.0.1:0", services=[SearchServer(searches)], interceptors=[access.interceptor]
    )
    server.start()
    try:

        def refused(uri: str, account: str, named: str = "") -> str:
            token = access.token(Role.ADMIN, account)
            with Client(server.address, token=token) as client, pytest.raises(TableNotFound) as raised:
                client.search(uri, "fox", account=named)
            assert raised.value.code is ErrorCode.TABLE_NOT_FOUND
            return str(raised.value).replace(uri, "URI")

        absent = refused("/lake/none", "acme")
        assert refused(INDEX, "other") == absent
        assert refused(INDEX, "other", "acme") == absent
        assert refused("/lake/none", "other", "acme") == absent
        assert searches.calls == []
        with Client(server.address, token=access.token(Role.VIEWER, "acme")) as own:
            assert own.search(INDEX, "fox") == ANSWER
        with Client(server.address, token=access.token(Role.VIEWER, "system")) as operator:
            assert operator.search(INDEX, "fox") == ANSWER
        assert [account for _, account in searches.calls] == ["acme", ""]
        with Client(server.address, token="none", timeout_s=5.0) as unknown, pytest.raises(NotAuthenticated):
            unknown.search(INDEX, "fox")
    finally:
        server.stop(grace_s=0)


def test_a_search_waits_on_the_threads_of_waits() -> None:
    """So that no tenant's searches occupy the threads that other calls need."""
    assert RULES["/iscp.wire.v1.Search/Search"].waits
    assert SearchServer(FakeSearches()).calls_max == 0


def test_a_search_by_json(searches: FakeSearches) -> None:
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=[SearchServer(searches)])
    gateway = GatewayServer(server, "127.0.0.1:0", "1")
    gateway.start()
    gateway.ready()
    try:

        def post(body: object) -> tuple[int, Any]:
            connection = HTTPConnection(gateway.address, timeout=60)
            connection.request("POST", "/v1/Search", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            found = json.loads(response.read())
            connection.close()
            return response.status, found

        status, found = post({"uri": INDEX, "text": "fox", "columns": {"names": ["title"]}, "min_version": "9"})
        assert status == 200
        assert json.loads(found["hits"][0]["key_json"]) == {"id": 2**60}
        assert found["hits"][0]["highlights"] == {"body": {"texts": ["a <b>fox</b>"]}}
        assert (found["version"], found["proven"], found["cut"]) == ("12", True, ["fo*"])
        wanted, _ = searches.calls[0]
        assert (wanted.columns, wanted.min_version, wanted.k) == (("title",), 9, 10)
        status, found = post({"uri": "/lake/none", "text": "fox"})
        assert (status, found["error"]["field"], found["error"]["name"]) == (404, "uri", "TABLE_NOT_FOUND")
    finally:
        gateway.stop(0.0)


def test_searches_end_with_the_server(searches: FakeSearches) -> None:
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=[SearchServer(searches)])
    server.start()
    server.stop(grace_s=0)
    assert searches.closed
