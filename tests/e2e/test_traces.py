"""One commit is one trace: from the program that made it, over two nodes, to the commits of all that is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from iscp.client.admin_client import Client
from iscp.delta.log.commits import newest_version, read_commit_trace
from iscp.ports.system import within_trace
from tests.e2e.harness import SETTLE_WAIT_S, append, read, wait_for
from tests.e2e.many_nodes import ManyNodes
from tests.fakes.lineage import official_document
from tests.fakes.tracing import ReceivedSpan, received_spans, traceparent
from tests.fakes.webhooks import HttpReceiver

NEVER = {"ISCP_PROBE__INTERVAL_MIN_S": "3600", "ISCP_PROBE__INTERVAL_MAX_S": "3600"}
WHOLE = {
    "iscp.wire.v1.Admin/Notify": 2,
    **dict.fromkeys(("iscp.notice", "iscp.iteration", "iscp.queue", "iscp.read", "iscp.consume"), 1),
}
CALLER_SPAN = f"{0xBEEF:016x}"
CALLS_MAX = 10
"""A notice of the file system may come before the caller's, and then the iteration is in no trace of the caller's."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ManyNodes]:
    with ManyNodes(tmp_path, count=2) as made:
        yield made


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()
    yield receiver
    receiver.close()


class Chain:
    """base → copy, a replica → sums, a view → large, a view on a view."""

    def __init__(self, nodes: ManyNodes) -> None:
        self.base = nodes.table("base", pa.table({"id": [1, 2, 3], "g": [1, 1, 2], "x": [1, 2, 3]}))
        self.copy, self.sums, self.large = (f"{nodes.derived}/{name}" for name in ("copy", "sums", "large"))
        client = nodes.client
        client.register(self.base, "copy", target=self.copy, key=("id",))
        client.wait(self.base, "copy", timeout_s=SETTLE_WAIT_S)
        sql = "SELECT g, sum(x) AS s FROM copy GROUP BY g"
        client.create_view("sums", sql, target=self.sums, tables={"copy": self.copy})
        client.wait(self.copy, "sums", timeout_s=SETTLE_WAIT_S)
        client.create_view("large", "SELECT g, s FROM sums WHERE s > 2", target=self.large, tables={"sums": self.sums})
        client.wait(self.sums, "large", timeout_s=SETTLE_WAIT_S)

    def change(self, client: Client, number: int) -> None:
        """Add a row, which is to reach all of the chain."""
        append(self.base, pa.table({"id": [number], "g": [number], "x": [7]}))
        assert client.notify(self.base) == 1
        wait_for("the change is in the last view", lambda: number in read(self.large)["g"].to_pylist())


class Received:
    def __init__(self, receiver: HttpReceiver) -> None:
        self._receiver = receiver

    def spans(self, wanted: Callable[[ReceivedSpan], bool]) -> list[ReceivedSpan]:
        return [span for span in received_spans([each.body for each in self._receiver.received]) if wanted(span)]

    def of_trace(self, trace: str) -> dict[str, list[ReceivedSpan]]:
        by_name: dict[str, list[ReceivedSpan]] = {}
        for span in self.spans(lambda span: span.trace_id == ids(trace)[0]):
            by_name.setdefault(span.name, []).append(span)
        return by_name

    def consume_of(self, trace: str) -> ReceivedSpan:
        """The span that a commit says."""
        _, trace_id, span_id, _ = trace.split("-")
        wait_for("the span of a commit comes in", lambda: self.spans(lambda span: span.span_id == span_id))
        (found,) = self.spans(lambda span: span.span_id == span_id)
        assert (found.name, found.trace_id) == ("iscp.consume", trace_id)
        return found

    def iteration_above(self, part: ReceivedSpan) -> ReceivedSpan:
        wait_for("its iteration comes in", lambda: self.spans(lambda span: span.span_id == part.parent_id))
        (found,) = self.spans(lambda span: span.span_id == part.parent_id)
        assert found.name == "iscp.iteration"
        return found


def newest_trace(table: str) -> str:
    return read_commit_trace(table, newest_version(table))


def ids(trace: str) -> tuple[str, str]:
    _, trace_id, span_id, _ = trace.split("-")
    return trace_id, span_id


def traced_change(chain: Chain, address: str) -> str:
    """The trace of a caller whose notice has led to an iteration."""
    for number in range(CALLS_MAX):
        caller = traceparent(0xC0FFEE + number, 0xBEEF)
        with within_trace(caller), Client(address) as client:
            chain.change(client, 5 + number)
        if ids(newest_trace(chain.copy))[0] == ids(caller)[0]:
            return caller
    raise AssertionError(f"none of {CALLS_MAX} notices came before those of the file system")


def assert_reported(chain: Chain, events: Path) -> None:
    """Each job's runs are there, begun and ended, with tables and columns that lead from one job to the next."""

    def completed() -> dict[str, Any]:
        found = [json.loads(line) for line in events.read_text().splitlines()]
        return {each["job"]["name"].rpartition(":")[2]: each for each in found if each["eventType"] == "COMPLETE"}

    wait_for("all jobs are reported", lambda: {"copy", "sums", "large"} <= completed().keys())
    runs = completed()
    for name, source, target in (
        ("copy", chain.base, chain.copy),
        ("sums", chain.copy, chain.sums),
        ("large", chain.sums, chain.large),
    ):
        assert [each["name"] for each in runs[name]["inputs"]] == [source]
        assert [each["name"] for each in runs[name]["outputs"]] == [target]
        official_document(runs[name])
    made_of = runs["sums"]["outputs"][0]["facets"]["columnLineage"]["fields"]["s"]["inputFields"]
    assert [(each["name"], each["field"]) for each in made_of] == [(chain.copy, "x")]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_one_commit_is_one_trace_and_views_link_to_what_woke_them(
    nodes: ManyNodes, receiver: HttpReceiver, tmp_path: Path
) -> None:
    """The same jobs are reported as runs of OpenLineage: a cluster of its own would cost as much once more."""
    events = tmp_path / "events"
    nodes.start(**NEVER, ISCP_TRACING__ENDPOINT=receiver.url, ISCP_OPENLINEAGE__PATH=str(events))
    chain, received = Chain(nodes), Received(receiver)
    owner = nodes.owner()
    (other,) = {"iscp-0", "iscp-1"} - {owner}
    for table, node in ((chain.base, other), (chain.copy, owner), (chain.sums, other)):
        nodes.client.operator.move(table, node)
        wait_for(f"{node} runs {table}", lambda table=table, node=node: nodes.holder(table) == node)  # type: ignore[misc]
    chain.change(nodes.client, 4)  # the nodes have seen all tables then
    caller = traced_change(chain, nodes.address(other))

    # The trace of who has made the commit: over the node that was called, and the owner, to the node that runs it.
    # Each node sends its spans by itself, and both have one of the same name.
    wait_for(
        "the trace comes in",
        lambda: all(len(received.of_trace(caller).get(name, ())) >= n for name, n in WHOLE.items()),
    )
    trace = received.of_trace(caller)
    assert {name: len(spans) for name, spans in trace.items()} == WHOLE
    calls = {span.parent_id: span for span in trace["iscp.wire.v1.Admin/Notify"]}
    entry = calls[CALLER_SPAN]
    passed_on = calls[entry.span_id]
    (notice,), (iteration,) = trace["iscp.notice"], trace["iscp.iteration"]
    assert (entry.node, passed_on.node, notice.node) == (other, owner, other)
    # Who notifies has targets checked too, at once: the iteration does not wait for the probe that finds the commit.
    assert (notice.parent_id, iteration.parent_id) == (passed_on.span_id, passed_on.span_id)
    assert notice.attributes["iscp.table"] == chain.base
    parts = {name: trace[name] for name in ("iscp.queue", "iscp.read", "iscp.consume")}
    assert {span.parent_id for spans in parts.values() for span in spans} == {iteration.span_id}
    (queue,), (read,), (consume,) = parts.values()
    assert iteration.start_ns == queue.start_ns <= queue.end_ns <= read.start_ns <= read.end_ns <= consume.end_ns
    assert consume.end_ns <= iteration.end_ns
    assert (consume.attributes["iscp.job"], consume.attributes["iscp.rows"]) == ("copy", 1)

    # The commits say whose they are, and each view points to the commit that woke it.
    assert ids(newest_trace(chain.copy)) == (consume.trace_id, consume.span_id)
    for woken, node, table in ((chain.sums, owner, chain.copy), (chain.large, other, chain.sums)):
        made_by = received.iteration_above(received.consume_of(newest_trace(woken)))
        assert made_by.node == node
        assert made_by.trace_id != consume.trace_id
        (woken_by,) = received.spans(lambda span, made_by=made_by: span.span_id == made_by.parent_id)  # type: ignore[misc]
        assert (woken_by.name, woken_by.attributes["iscp.table"]) == ("iscp.notice", table)
        assert ids(newest_trace(table)) in made_by.links

    assert_reported(chain, events)
    counters = nodes.client.cluster().counters
    assert counters["events_dropped"] == 0
    assert counters["spans_sent"] > 0
    assert counters["spans_dropped"] == 0
