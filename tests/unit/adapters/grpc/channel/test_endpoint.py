"""Endpoints are HOST:PORT, and anything else is named with a remedy."""

from __future__ import annotations

import pytest

from iscp.adapters.grpc.channel.endpoint import channel_target, endpoint_or_default, split_address
from iscp.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:7430", ("127.0.0.1", 7430)), ("node-0.iscp:0", ("node-0.iscp", 0)), ("[::1]:80", ("[::1]", 80))],
)
def test_an_address_is_taken_apart(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:x", "host:70000", "host:-1"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        split_address(address)


def test_several_nodes_are_named_by_their_addresses() -> None:
    assert endpoint_or_default("127.0.0.1:1,127.0.0.2:2") == "127.0.0.1:1,127.0.0.2:2"
    with pytest.raises(ConfigurationError, match="not an IP address"):
        endpoint_or_default("127.0.0.1:1,node-1:2")
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        endpoint_or_default("127.0.0.1:1,")


def test_grpc_gets_all_of_them() -> None:
    assert channel_target("node-1:1") == "node-1:1"
    assert channel_target("127.0.0.1:1,127.0.0.2:2") == "ipv4:127.0.0.1:1,127.0.0.2:2"
    assert channel_target("[::1]:1,[::2]:2") == "ipv6:[::1]:1,[::2]:2"


def test_what_is_given_wins() -> None:
    assert endpoint_or_default("a:1") == "a:1"
