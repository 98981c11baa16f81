"""Malformed messages and unusable texts are refused as other faults are: with field and remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest

from iscp.client.channel.grpc_calls import detail_of, from_rpc
from iscp.model.values.errors import InvalidRequest, IscpError
from iscp.model.values.untrusted_values import NAME_CHARS_MAX
from iscp.server.admin.admin_server import AdminServer
from iscp.wire.v1 import admin_pb2 as pb
from tests.fakes.admin import FakeAdmin


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    server = AdminServer(FakeAdmin(), "127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(server.address) as channel:
        yield channel
    server.stop(grace_s=0)


def refusal(channel: grpc.Channel, method: str, raw: bytes) -> IscpError:
    with pytest.raises(grpc.RpcError) as caught:
        list(channel.unary_stream(f"/iscp.wire.v1.Admin/{method}")(raw, timeout=60))
    return from_rpc(caught.value, "here", changes=True)


@pytest.mark.parametrize("raw", [b"\xff\xff", b"\x12\x05\x0a\x03\xff\xfe\xfd"], ids=["cut off", "no UTF-8"])
def test_what_is_no_message_is_refused(channel: grpc.Channel, raw: bytes) -> None:
    error = refusal(channel, "GetJob", raw)
    assert isinstance(error, InvalidRequest)
    assert (error.field, bool(error.remedy)) == ("request", True)


def test_a_text_is_refused_by_its_path(channel: grpc.Channel) -> None:
    changes = [pb.JobChange(job=pb.JobName(table="/t", name=name)) for name in ("a", "a\0b")]
    error = refusal(channel, "ChangeJobs", pb.ChangeJobsRequest(changes=changes).SerializeToString())
    assert (error.field, error.message) == ("changes[1].job.name", "has a NUL character")


def test_a_pattern_that_would_take_minutes_is_refused(channel: grpc.Channel) -> None:
    """For each `[` without a `]` the rest of the pattern is scanned: quadratic time."""
    wanted = pb.JobFilter(table_pattern="[" * (NAME_CHARS_MAX + 1))
    error = refusal(channel, "ListJobs", pb.ListJobsRequest(filter=wanted).SerializeToString())
    assert error.field == "filter.table_pattern"


def test_half_a_character_in_json_is_refused(channel: grpc.Channel) -> None:
    spec = json.dumps({"iteration": {"consumer": {"kind": "replica", "target": "/x\ud800"}}})
    asked = pb.RegisterRequest(registrations=[pb.Registration(job=pb.JobName(table="/t", name="a"), spec_json=spec)])
    error = refusal(channel, "Register", asked.SerializeToString())
    assert error.field == "registrations[0].spec_json"


def test_a_whole_character_in_two_halves_is_taken(channel: grpc.Channel) -> None:
    spec = json.dumps({"iteration": {"consumer": {"kind": "replica", "target": "/x\U0001f600"}}})
    asked = pb.RegisterRequest(registrations=[pb.Registration(job=pb.JobName(table="/t", name="a"), spec_json=spec)])
    assert channel.unary_unary("/iscp.wire.v1.Admin/Register")(asked.SerializeToString(), timeout=60)


def test_an_error_is_sent_as_one_line_that_can_be_shown() -> None:
    detail = detail_of(InvalidRequest("a\n  remedy: \x1b[31mrm", about="t\u202ex", remedy="Do"))
    assert (detail.message, detail.field) == (r"a remedy: \x1b[31mrm", r"t\u202ex")
