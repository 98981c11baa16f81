"""Records an iteration as a part of what led to it: that it waited, that it ran, and whose commits it has taken in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from iscp.core.job.iteration import Iteration, JobOutcome
from iscp.core.values.untrusted_values import error_text
from iscp.ports.engine import IterationRunner
from iscp.ports.system import Guard
from iscp.ports.tracing import Attribute, Span, Tracer

log = logging.getLogger(__name__)

LINKS_MAX = 8
"""Commits, the newest of each table first, whose traces an iteration points to; it does not read those before them."""


class TracedRunner:
    """Port IterationRunner, around another one.

    `read_trace` returns the context in the metadata of a table's commit, or an empty text. It raises OSError or
    IscpError.
    """

    def __init__(self, runner: IterationRunner, tracer: Tracer, read_trace: Callable[[str, int], str]) -> None:
        self._runner = runner
        self._tracer = tracer
        self._read_trace = read_trace

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        attributes: dict[str, Attribute] = {
            "iscp.table": iteration.table_uri,
            "iscp.account": iteration.account,
            "iscp.iteration": iteration.number,
            "iscp.purpose": iteration.purpose.value,
            "iscp.jobs": len(iteration.jobs),
        }
        queued_s = iteration.submitted_at_s
        with self._tracer.span("iscp.iteration", attributes, parent=iteration.trace, start_s=queued_s) as span:
            with self._tracer.span("iscp.queue", {}, start_s=queued_s):
                pass
            outcomes = self._runner.run(iteration, guard)
            span.note({"iscp.jobs.failed": sum(not outcome.ok for outcome in outcomes)})
            self._link(span, outcomes)
            return outcomes

    def cancel(self, iteration: Iteration) -> None:
        self._runner.cancel(iteration)

    def _link(self, span: Span, outcomes: Sequence[JobOutcome]) -> None:
        """Point to the traces in the commits that were taken in; they are read once for all jobs."""
        try:
            for uri, version in islice(_taken_in(outcomes), LINKS_MAX):
                if trace := self._read_trace(uri, version):
                    span.link(trace)
        except Exception as error:  # noqa: BLE001  (what was committed counts, whether or not a link is found)
            log.info("trace.not_linked", extra={"error": error_text(error)})


def _taken_in(outcomes: Sequence[JobOutcome]) -> Iterator[tuple[str, int]]:
    """Yield each commit that an iteration has taken in once, by its table's URI and its version.

    The newest of a table come first. The first rows of a job come of no commit in particular: its newest one stands for
    them.
    """
    spans: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        row, before = outcome.row, outcome.row.sources
        ways = [(row.table_uri, row.watermark.version, outcome.watermark.version)]
        ways += [
            (uri, before[uri].watermark.version if uri in before else -1, mark.watermark.version)
            for uri, mark in outcome.sources.items()
            if uri != row.table_uri
        ]
        for uri, since, to in ways:
            if outcome.ok and to > since:
                first = to - 1 if since < 0 else since
                least, most = spans.get(uri, (first, to))
                spans[uri] = min(least, first), max(most, to)
    # By turns: a table of many commits leaves room for the others.
    left = {uri: iter(range(most, least, -1)) for uri, (least, most) in spans.items()}
    while left:
        for uri in tuple(left):
            if (version := next(left[uri], None)) is None:
                del left[uri]
            else:
                yield uri, version
