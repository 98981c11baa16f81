"""Which of several nodes a client calls: whoever answers, on and on; who failed is avoided for a while."""

from __future__ import annotations

import pytest

from iscp.adapters.grpc.channel.endpoints import ENDPOINT_AVOIDED_S, EndpointChannel, Endpoints


def test_who_answers_is_called_on_and_on_and_who_fails_is_avoided_for_a_while() -> None:
    endpoints = Endpoints(("a:1", "b:1", "c:1"))
    assert endpoints.choose(0.0) == "a:1"
    endpoints.avoid("a:1", 0.0)
    assert endpoints.choose(0.1) == "b:1"
    assert endpoints.choose(2 * ENDPOINT_AVOIDED_S) == "b:1"
    endpoints.avoid("b:1", 2 * ENDPOINT_AVOIDED_S)
    assert endpoints.choose(2 * ENDPOINT_AVOIDED_S) == "a:1"


def test_where_all_have_failed_the_first_that_did_is_called() -> None:
    endpoints = Endpoints(("a:1", "b:1"))
    endpoints.avoid("b:1", 0.0)
    endpoints.avoid("a:1", 1.0)
    assert endpoints.choose(2.0) == "b:1"
    endpoints.avoid("b:1", 3.0)
    assert endpoints.choose(4.0) == "a:1"


def test_one_node_alone_is_never_avoided() -> None:
    endpoints = Endpoints(("a:1",))
    endpoints.avoid("a:1", 0.0)
    assert endpoints.choose(0.0) == "a:1"


class Channel:
    def __init__(self, address: str) -> None:
        self.address = address

    def unary_unary(self, name: str) -> object:
        return lambda request, timeout: (self.address, name, request, timeout)


def test_a_channel_is_opened_with_the_first_call_to_its_node() -> None:
    opened: list[str] = []

    def open_channel(address: str) -> Channel:
        opened.append(address)
        return Channel(address)

    channel = EndpointChannel(("a:1", "b:1"), open_channel)
    method = channel.unary_unary("/Admin/GetJob")
    assert opened == []
    assert method("x", timeout=1.0, endpoint="b:1") == ("b:1", "/Admin/GetJob", "x", 1.0)
    assert method("y", timeout=1.0, endpoint="b:1")[2] == "y"
    assert method("z", timeout=1.0)[0] == "a:1"
    assert opened == ["b:1", "a:1"]
    assert [each.address for each in channel.drain()] == ["b:1", "a:1"]
    with pytest.raises(ValueError, match="closed"):
        channel.unary_unary("/Admin/ListJobs")("x", endpoint="a:1")
