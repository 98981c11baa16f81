"""The context of what a thread does is its own, and goes on to another thread where work is handed on."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

from iscp.ports.system import NO_TRACER, carried, current_trace, within_trace
from tests.fakes.tracing import traceparent


def test_a_block_is_part_of_its_trace_and_of_nothing_afterwards() -> None:
    with within_trace(traceparent(1)):
        with within_trace(traceparent(2)):
            assert current_trace() == traceparent(2)
        assert current_trace() == traceparent(1)
    assert current_trace() == ""


def test_work_that_is_carried_to_another_thread_stays_a_part() -> None:
    with ThreadPoolExecutor(1) as pool:
        with within_trace(traceparent(1)):
            plain, taken_along = pool.submit(current_trace), pool.submit(carried(current_trace))
        assert (plain.result(), taken_along.result()) == ("", traceparent(1))
        assert pool.submit(current_trace).result() == ""


def test_work_outside_a_trace_is_handed_on_as_it_is() -> None:
    assert carried(current_trace) is current_trace


def test_a_generator_that_another_thread_closes_disturbs_nobody() -> None:
    def steps() -> Generator[int, None, None]:
        with within_trace(traceparent(1)):
            yield 1

    given_up = steps()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(next, given_up).result() == 1
    given_up.close()
    assert current_trace() == ""


def test_without_a_tracer_a_span_has_no_context_and_takes_anything() -> None:
    with NO_TRACER.span("any", {"a": 1}) as span:
        span.note({"b": 2})
        span.link(traceparent(1))
        span.fail("X", "y")
        assert (span.trace, current_trace()) == ("", "")
