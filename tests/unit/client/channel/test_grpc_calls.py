"""Errors keep their class, code, field and remedy in a detail that fits into gRPC's metadata.

A call between nodes names the node that it is meant for; any other refuses it and says why.

How a context travels with a call, and that a program which traces nothing pays nothing.
"""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest
from opentelemetry import trace as library
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from iscp.client.channel import grpc_calls as grpc_errors
from iscp.client.channel.attempts import CallerToken, TokenChannel
from iscp.client.channel.grpc_calls import (
    KEEPALIVE_MS,
    NODE_KEY,
    PING_INTERVAL_MIN_MS,
    WIRE_FORMAT_KEY,
    Meant,
    meant_of,
    refuse_other,
    trace_in,
    traced_metadata,
    with_trace,
)
from iscp.model.values import errors as core
from iscp.model.values.errors import ConfigurationError, Unavailable
from iscp.model.values.ids import WIRE_FORMAT
from iscp.ports.system import within_trace
from iscp.wire.v1 import admin_pb2 as pb
from tests.fakes.tracing import traceparent

KINDS = [kind for kind in vars(core).values() if isinstance(kind, type) and issubclass(kind, core.IscpError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_comes_back(kind: type[core.IscpError]) -> None:
    error = kind("what", field="spec.x", remedy="do that")
    back = grpc_errors.error_of(pb.ErrorDetail.FromString(grpc_errors.detail_of(error).SerializeToString()))
    assert type(back) is kind
    assert (back.message, back.field, back.remedy, back.code) == ("what", "spec.x", "do that", error.code)


@pytest.mark.parametrize(
    "error", [core.InvalidRequest("is no day", field="cron"), core.InvalidRequest("is it a day", about="cron")]
)
def test_an_error_says_the_same_where_it_arrives_whatever_words_it_has(error: core.InvalidRequest) -> None:
    back = grpc_errors.error_of(pb.ErrorDetail.FromString(grpc_errors.detail_of(error).SerializeToString()))
    assert (back.sentence, str(back)) == (error.sentence, str(error))


@pytest.mark.parametrize(
    ("message", "text"), [("is missing", "cron is missing"), ("there is no such day", "cron: there is no such day")]
)
def test_an_error_of_a_node_of_0_1_has_its_field_as_the_subject_if_it_begins_with_a_verb(
    message: str, text: str
) -> None:
    detail = pb.ErrorDetail(code=10_000, kind="InvalidRequest", field="cron", message=message)
    assert str(grpc_errors.error_of(detail)) == text


def test_a_code_that_differs_from_its_class_comes_back() -> None:
    error = core.InvalidRequest("no such kind", code=core.ErrorCode.CONSUMER_UNKNOWN)
    assert grpc_errors.error_of(grpc_errors.detail_of(error)).code is core.ErrorCode.CONSUMER_UNKNOWN


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (core.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
        (core.JobNotFound, grpc.StatusCode.NOT_FOUND),
        (core.TableNotFound, grpc.StatusCode.NOT_FOUND),
        (core.TimedOut, grpc.StatusCode.DEADLINE_EXCEEDED),
        (core.NotOwner, grpc.StatusCode.UNAVAILABLE),
        (core.Unavailable, grpc.StatusCode.UNAVAILABLE),
        (core.QueueFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (core.JobFailed, grpc.StatusCode.FAILED_PRECONDITION),
        (core.Conflict, grpc.StatusCode.ABORTED),
        (core.InvariantBroken, grpc.StatusCode.INTERNAL),
    ],
)
def test_the_status_is_enough_for_machines_that_know_no_detail(
    kind: type[core.IscpError], status: grpc.StatusCode
) -> None:
    assert grpc_errors.status_of(kind("what")) is status


class OfANewerNode(core.JobNotFound):
    """A class that the other side does not have."""


def test_a_class_of_ones_own_travels_as_the_nearest_known() -> None:
    assert grpc_errors.detail_of(OfANewerNode("what")).kind == "JobNotFound"


@pytest.mark.parametrize(("code", "kind"), [(77, core.TemporaryError), (10_777, core.PermanentError)])
def test_an_unknown_kind_still_says_whose_move_is_next(code: int, kind: type[core.IscpError]) -> None:
    back = grpc_errors.error_of(pb.ErrorDetail(code=code, kind="Unheard", message="what"))
    assert type(back) is kind


def test_over_long_texts_are_cut_to_fit() -> None:
    detail = grpc_errors.detail_of(core.InvalidRequest("ü" * 100_000, about="f" * 100_000, remedy="汉" * 100_000))
    assert detail.ByteSize() < 5_000
    assert detail.message.startswith("üü")


MEANT = Meant("/iscp/lake ü", "iscp-0", 17, "iscp-1")


def test_whom_a_call_means_comes_back_the_same() -> None:
    metadata = MEANT.to_metadata()
    assert all(value.isascii() for _, value in metadata)
    assert meant_of((*metadata, ("user-agent", "x"))) == MEANT


@pytest.mark.parametrize("changed", [{NODE_KEY: "iscp-0"}, {NODE_KEY: "iscp-0/x"}, {WIRE_FORMAT_KEY: "x"}, {}], ids=str)
def test_a_call_that_says_nothing_is_refused(changed: dict[str, str]) -> None:
    metadata = {**dict(MEANT.to_metadata()), **changed} if changed else {}
    with pytest.raises(ConfigurationError, match="whom it means"):
        meant_of(metadata.items())


def test_who_is_meant_lets_it_in() -> None:
    for wire_format in (WIRE_FORMAT - 1, WIRE_FORMAT, WIRE_FORMAT + 1):
        refuse_other(Meant("/c", "n", 1, "o", wire_format), "/c", "n", 1)


@pytest.mark.parametrize(
    ("meant", "words"),
    [
        (Meant("/d", "n", 1, "o"), r"advertise: this is a node of the cluster '/c', not of '/d'\. Have n advertise"),
        (Meant("/c", "m", 1, "o"), r"advertise: this is the node 'n', not 'm'\. Have m advertise"),
        (Meant("/c", "n", 1, "o", WIRE_FORMAT + 2), r"o speaks wire format \d+, and n \d+\. Upgrade the nodes"),
    ],
    ids=["cluster", "node", "wire format"],
)
def test_others_refuse_it_for_good(meant: Meant, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        refuse_other(meant, "/c", "n", 1)


def test_another_life_of_the_node_refuses_it_for_now() -> None:
    with pytest.raises(Unavailable, match="in epoch 2, not 1"):
        refuse_other(Meant("/c", "n", 1, "o"), "/c", "n", 2)


def test_servers_bear_the_pings_of_their_clients() -> None:
    assert PING_INTERVAL_MIN_MS < KEEPALIVE_MS


OTHER = (("iscp-node", "n/1"), ("blob-bin", b"\x00"))


def test_a_context_is_found_among_what_a_call_says_and_a_forged_one_is_none() -> None:
    assert trace_in((*OTHER, ("traceparent", traceparent(1)))) == traceparent(1)
    assert trace_in((*OTHER, ("traceparent", "00-x"), ("traceparent", b"00"), ("traceparent", traceparent(2)))) == (
        traceparent(2)
    )
    assert trace_in(OTHER) == trace_in(()) == ""


def test_a_call_that_is_passed_on_is_part_of_the_current_span_and_not_of_the_callers() -> None:
    came = (*OTHER, ("traceparent", traceparent(1)))
    assert with_trace(came) == came
    with within_trace(traceparent(2)):
        assert with_trace(came) == (*OTHER, ("traceparent", traceparent(2)))


def test_a_client_takes_the_span_of_the_program_around_it() -> None:
    assert traced_metadata() == ()
    about = SpanContext(5, 6, is_remote=False, trace_flags=TraceFlags(1))
    with library.use_span(NonRecordingSpan(about)):
        assert traced_metadata() == (("traceparent", traceparent(5, 6)),)
        with within_trace(traceparent(9)):
            assert traced_metadata() == (("traceparent", traceparent(9)),)


def test_a_token_and_a_context_go_together() -> None:
    given: list[object] = []

    class Channel:
        def unary_unary(self, method: str) -> object:
            return lambda request, **how: given.append(how["metadata"])

    call = TokenChannel(Channel(), CallerToken("t")).unary_unary("/m")
    call(None, metadata=(("traceparent", traceparent(1)),))
    call(None)
    assert given == [
        (("authorization", "Bearer t"), ("traceparent", traceparent(1))),
        (("authorization", "Bearer t"),),
    ]


def test_neither_a_client_nor_a_node_imports_opentelemetry_by_itself() -> None:
    program = (
        "import sys, iscp, iscp.app.compose, iscp.app.foundation\n"
        "from iscp.client.channel.grpc_calls import traced_metadata\n"
        "assert traced_metadata() == ()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
