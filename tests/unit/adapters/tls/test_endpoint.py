"""Endpoints are HOST:PORT, and anything else is named with a remedy."""

from __future__ import annotations

import pytest

from iscp.adapters.tls.endpoint import endpoint_or_default, split_address
from iscp.core.values.errors import ConfigurationError


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


def test_several_nodes_have_commas_between_them() -> None:
    assert endpoint_or_default("127.0.0.1:1,node-1:2,[::1]:3") == "127.0.0.1:1,node-1:2,[::1]:3"
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        endpoint_or_default("127.0.0.1:1,")


@pytest.mark.parametrize(
    ("given", "place"),
    [("a:1,foo,b:2", "'foo' is not HOST:PORT (the endpoint 2 of 3"), ("a:1,", "(the endpoint 2 of")],
)
def test_of_several_nodes_the_wrong_one_is_named_with_its_place(given: str, place: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        endpoint_or_default(given)
    assert place in str(refused.value)


def test_what_is_given_wins() -> None:
    assert endpoint_or_default("a:1") == "a:1"
