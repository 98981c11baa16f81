"""What a call shows of who makes it, and that only nodes are believed what they say of others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509

from iscp.adapters.grpc.access.caller_evidence import Evidence, evidence_of, statement
from iscp.adapters.grpc.channel.call_metadata import CALLER_KEY, FORWARDED_KEY
from iscp.core.values.access_roles import Credentials
from iscp.core.values.errors import NotAuthenticated
from tests.fakes.certificates import certificate_of

NODE = "node.lake.iscp"
SAID = statement(["ana"], "ipv4:9.9.9.9:1")
BY_GATEWAY, BY_NODE = (CALLER_KEY, SAID), (FORWARDED_KEY, SAID)


class Call:
    """Of gRPC's context, what says who calls."""

    def __init__(
        self, metadata: tuple[tuple[str, str], ...] = (), names: tuple[str, ...] = (), common: str = ""
    ) -> None:
        self._metadata = metadata
        shown = [x509.DNSName(name) for name in names]
        self._said = {"x509_pem_cert": [certificate_of(common, *shown)]} if names or common else {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self._said

    def peer(self) -> str:
        return "ipv4:1.1.1.1:1"


def read(*metadata: tuple[str, str], names: tuple[str, ...] = (), common: str = "", node_name: str = NODE) -> Evidence:
    call: Any = Call(metadata, names, common)
    return evidence_of(call, node_name)


def test_a_certificate_shows_all_of_its_names() -> None:
    assert read(names=("a", "b"), common="c").credentials.names == {"a", "b", "c"}
    assert read() == Evidence(Credentials(), "ipv4:1.1.1.1:1")


def test_a_node_is_believed_whose_call_it_passes_on() -> None:
    found = read(BY_NODE, names=(NODE,), common="n0")
    assert found == Evidence(Credentials("", frozenset({"ana"})), "ipv4:9.9.9.9:1", passed_on=True)
    by_gateway = read(BY_GATEWAY, names=(NODE,))
    assert by_gateway == replace(found, passed_on=False)  # it has come in here
    with_token = read(BY_NODE, ("authorization", "bearer t"), names=(NODE,))
    assert with_token.credentials.token == "t"


@pytest.mark.parametrize("names", [(), ("ana",), ("xnode.lake.iscp",), ("node.other.iscp",)])
def test_nobody_else_is(names: tuple[str, ...]) -> None:
    found = read(BY_GATEWAY, BY_NODE, names=names)
    assert found == Evidence(Credentials("", frozenset(names)), "ipv4:1.1.1.1:1")


def test_a_common_name_makes_nobody_a_node() -> None:
    """Nodes are known by a DNS name; who may sign any subject may not sign that. A gateway says common names too."""
    found = read(BY_GATEWAY, BY_NODE, names=("ana",), common=NODE.upper())
    assert found == Evidence(Credentials("", frozenset({"ana"})), "ipv4:1.1.1.1:1")
    by_gateway = read((CALLER_KEY, statement([NODE, "ana"], "p")), names=(NODE,))
    assert by_gateway.credentials.names == {"ana"}


def test_without_tls_nobody_is_a_node() -> None:
    assert read(BY_GATEWAY, BY_NODE, names=("", "x"), node_name="").peer == "ipv4:1.1.1.1:1"


def test_a_node_that_does_not_say_whose_call_it_passes_on_passes_on_nobodys() -> None:
    """As one of an earlier version, which would be taken for the caller otherwise, and has audited nothing."""
    found = read((FORWARDED_KEY, "1"), ("authorization", "Bearer t"), names=(NODE,), common="n0")
    assert found == Evidence(Credentials("t"), "ipv4:1.1.1.1:1", passed_on=False)
    assert read(names=(NODE,)).credentials.names == {NODE}


def test_what_a_client_says_is_not_believed_of_a_node_that_passes_it_on() -> None:
    """One of an earlier version does that with all that a client sends."""
    found = read(BY_GATEWAY, (FORWARDED_KEY, "1"), names=(NODE,))
    assert found == Evidence(Credentials(), "ipv4:1.1.1.1:1")
    assert read(BY_GATEWAY, (FORWARDED_KEY, statement(["ben"], "p")), names=(NODE,)).credentials.names == {"ben"}


@pytest.mark.parametrize(
    "said",
    ["", "x", "[]", "{}", '{"names": "x"}', '{"names": [1], "peer": ""}', json.dumps({"names": []}), "[" * 9_000],
)
def test_what_a_node_says_has_to_make_sense(said: str) -> None:
    for key in (CALLER_KEY, FORWARDED_KEY):
        with pytest.raises(NotAuthenticated):
            read((key, said), names=(NODE,))
        with pytest.raises(NotAuthenticated):
            read((key, SAID), (key, SAID), names=(NODE,))


@pytest.mark.parametrize("value", ["t", "Basic t", "", "Bearer", "bearert"])
def test_a_token_comes_as_bearer(value: str) -> None:
    with pytest.raises(NotAuthenticated, match="Bearer"):
        read(("authorization", value))


def test_an_empty_token_is_one_that_is_not_good() -> None:
    assert read(("authorization", "Bearer  ")).credentials.token == "-"
