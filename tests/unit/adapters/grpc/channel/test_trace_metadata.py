"""How a context travels with a call, and that a program which traces nothing pays nothing."""

from __future__ import annotations

import subprocess
import sys

from opentelemetry import trace as library
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from iscp.adapters.grpc.channel.caller_token import CallerToken, TokenChannel
from iscp.adapters.grpc.channel.trace_metadata import trace_in, traced_metadata, with_trace
from iscp.ports.tracing import within_trace
from tests.fakes.tracing import traceparent

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
        "import sys, iscp, iscp.bootstrap.compose, iscp.bootstrap.tracing_parts\n"
        "from iscp.adapters.grpc.channel.trace_metadata import traced_metadata\n"
        "assert traced_metadata() == ()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
