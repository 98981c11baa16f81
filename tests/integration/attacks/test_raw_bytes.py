"""Bytes that no client would send, to both ports of a node: headers that end early, and frames that are none."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from tests.fakes.attacked_node import INSIDES, AttackedNode, play
from tests.fakes.raw_http2 import PREFACE, begin, call, exchange, frame

MORE_MIB = 60
EXAMPLES, MANY_EXAMPLES = 60, 1_000
WAIT_S = 0.1
FORGED = b'x\r\n{"event": "node.broken"}'
GET_CLUSTER = "/iscp.wire.v1.Admin/GetCluster"
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
RAW_INSIDES = re.compile(INSIDES.pattern.encode())

odd_bytes = st.sampled_from([b"\r\n", b"\n", b"\r", b"\0", b"\x7f", b"\xff", b" ", b"\t", b":", b"x", b"", b"\xc3\xa9"])
odd_values = st.lists(odd_bytes, max_size=4).map(b"".join)


@pytest.mark.parametrize(
    "name", [b"iscp-caller", b"authorization", b"user-agent", b"x\r\ny", b"Iscp-Owner", b":path", b""]
)
def test_a_header_cannot_end_and_another_begin(attacked: AttackedNode, name: bytes) -> None:
    """The call is refused by gRPC, or its value is one value; and no line of the log is made of it."""
    exchange(attacked.address, begin() + call(GET_CLUSTER, [(name, FORGED)]), WAIT_S)
    attacked.assert_unharmed(attacked.memory_mib, MORE_MIB)
    assert b"node.broken" not in attacked.log.read_bytes()


def check_frames(attacked: AttackedNode, data: st.DataObject) -> None:
    frames = st.builds(
        frame, st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**31 - 1), st.binary(max_size=60)
    )
    headers = st.lists(st.tuples(odd_values, odd_values), max_size=3)
    calls = st.builds(lambda more: begin() + call(GET_CLUSTER, more), headers)
    said = data.draw(
        st.one_of(st.binary(max_size=200), frames.map(PREFACE.__add__), frames.map(begin().__add__), calls)
    )
    answer = exchange(attacked.address, said, WAIT_S)
    assert not RAW_INSIDES.search(answer)
    assert attacked.alive()


def check_http(attacked: AttackedNode, data: st.DataObject) -> None:
    """One connection has one answer, whatever lengths its headers give to the body."""
    names = st.sampled_from([b"content-length", b"transfer-encoding", b"content-type", b"authorization", b"host", b"x"])
    values = odd_values | st.sampled_from([b"0", b"-1", b"2", b"99999999999999999999", b"chunked", b"application/json"])
    headers = data.draw(st.lists(st.tuples(names | odd_values, values), max_size=5))
    method = data.draw(st.sampled_from([b"POST", b"GET", b"PUT", b""]) | odd_values)
    path = data.draw(
        st.sampled_from([b"/v1/GetCluster", b"/v1/../v1", b"//", b"*", b"/v1/%2e%2e/etc/passwd", b"x" * 40_000])
    )
    body = data.draw(
        st.sampled_from([b"", b"{}", b"2\r\n{}\r\n0\r\n\r\nGET /v1 HTTP/1.1\r\n\r\n", b"GET /v1 HTTP/1.1\r\n\r\n"])
    )
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    said = method + b" " + path + b" HTTP/1.1\r\n" + head + b"\r\n" + body
    answer = exchange(attacked.gateway, said, WAIT_S)
    assert not RAW_INSIDES.search(answer)
    assert len(STATUS.findall(answer)) <= 1
    assert attacked.alive()


def test_frames_that_are_none_end_their_connection_alone(attacked: AttackedNode) -> None:
    before_mib = attacked.memory_mib
    assert exchange(attacked.address, begin() + call(GET_CLUSTER), WAIT_S), "the control: it answers"
    play(EXAMPLES, lambda data: check_frames(attacked, data))
    attacked.assert_unharmed(before_mib, MORE_MIB)


def test_requests_by_http_that_are_none_are_refused(attacked: AttackedNode) -> None:
    before_mib = attacked.memory_mib
    play(EXAMPLES, lambda data: check_http(attacked, data))
    attacked.assert_unharmed(before_mib, MORE_MIB)


@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("check", [check_frames, check_http])
def test_thousands_of_such_are_refused(
    attacked: AttackedNode, check: Callable[[AttackedNode, st.DataObject], None]
) -> None:
    before_mib = attacked.memory_mib
    play(MANY_EXAMPLES, lambda data: check(attacked, data))
    attacked.assert_unharmed(before_mib, MORE_MIB)
