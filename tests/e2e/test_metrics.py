"""A real node emits the metrics that are declared, all of them and no other, at its Prometheus endpoint."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from iscp import changefeed
from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import METRICS, DeclaredMetric
from iscp.model.values.errors import IscpError
from iscp.system.http_exchange import free_port
from tests.e2e.harness import Cluster, append, wait_for

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "a"], "amount": [1, 2, 3]})
PER_NAME = "SELECT name, sum(amount) AS total FROM o GROUP BY name"
OF_THE_FORMAT = frozenset({"target_info"})
"""What OpenTelemetry's exporter adds: the node's attributes."""

ABSENT = {each.name for each in METRICS if each.condition == "`security.authentication`"}
ABSENT |= {metrics.INDEX_UNEMBEDDED.name}
"""The metrics that a node without authentication, and without an index of vectors, does not have."""

Samples = Mapping[str, list[Sample]]


def scrape(address: str) -> Samples:
    """The samples of each family, by the family's name."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30.0) as answer:
        text = answer.read().decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def family_of(metric: DeclaredMetric) -> str:
    """Prometheus's parser names a family of counters without `_total`."""
    return metric.prometheus_name.removesuffix("_total")


def missing(samples: Samples) -> set[str]:
    return {each.name for each in METRICS if family_of(each) not in samples} - ABSENT


def value(samples: Samples, metric: DeclaredMetric, **labels: str) -> float:
    """The value of a metric, or of how often a histogram has counted something, over all further labels."""
    names = (metric.prometheus_name, f"{metric.prometheus_name}_count")
    found = [each for each in samples.get(family_of(metric), ()) if labels.items() <= each.labels.items()]
    return sum(each.value for each in found if each.name in names)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_node_emits_what_is_declared_and_nothing_else(cluster: Cluster) -> None:
    address = f"127.0.0.1:{free_port()}"
    source, client = cluster.table("orders", ROWS), cluster.client
    cluster.start(
        ISCP_METRICS__LISTEN=address,
        ISCP_METRICS__INTERVAL_S="1",
        ISCP_NOTIFY__WEBHOOKS=f"http://127.0.0.1:{free_port()}/hook",
    )
    copy = cluster.replica("copy", source, key=("id",))
    cluster.settle(copy)
    view, words = f"{cluster.derived}/per_name", f"{cluster.derived}/words"
    client.create_view("per_name", PER_NAME, target=view, tables={"o": source})
    client.register(source, "words", "fulltext", target=words, key=("id",), options={"columns": "name"})
    feed = f"{cluster.derived}/feed"
    client.register(source, "feed", "changefeed", target=feed, key=("id",))
    for name in ("per_name", "words", "feed"):
        client.wait(source, name, timeout_s=120.0)
    failing = "SELECT sum(cast(name AS int)) AS total FROM o"  # no name is a number
    client.create_view("failing", failing, target=f"{cluster.derived}/failing", tables={"o": source})

    with changefeed.open(feed, f"127.0.0.1:{cluster.ports.etcd_client}") as opened:
        opened.cursors.store("mail", opened.last_cursor(), None)

    def complete() -> bool:
        with suppress(IscpError):
            client.search(words, "a")
        samples = scrape(address)
        return not missing(samples) and value(samples, metrics.JOB_COUNT, iscp_job_state="error") > 0

    wait_for("all that is declared is emitted", complete)
    found = scrape(address)
    assert set(found) - OF_THE_FORMAT <= {family_of(each) for each in METRICS}

    assert value(found, metrics.OWNER_LEADS) == value(found, metrics.OWNER_NODES) == 1
    assert value(found, metrics.JOB_COUNT) == 5
    assert value(found, metrics.ITERATION_ROWS, iscp_kind="replica", iscp_strategy="snapshot") == 3
    failed = [each for each in found[family_of(metrics.ITERATION_DURATION)] if each.labels["error_type"]]
    assert {each.labels["iscp_kind"] for each in failed} == {"view"}
    assert value(found, metrics.VIEW_REFRESHES, iscp_view_reason="first") == 1
    assert value(found, metrics.INDEX_ROWS, iscp_job="words") == 3
    assert value(found, metrics.FEED_COUNT) == 1
    assert [each.labels["iscp_feed_cursor"] for each in found[family_of(metrics.FEED_LAG)]] == ["mail"]
    assert 0 < value(found, metrics.NODE_HEAP_USED) <= value(found, metrics.NODE_HEAP_LIMIT)
    assert 0 < value(found, metrics.NODE_LEASE_VALID) <= 2
    append(source, pa.table({"id": [4], "name": ["c"], "amount": [4]}))
    cluster.settle(copy)
    tail = {"iscp_kind": "replica", "iscp_strategy": "tail"}  # it is recorded when the iteration has ended
    wait_for("the tail is counted", lambda: value(scrape(address), metrics.ITERATION_ROWS, **tail) == 1)


@pytest.mark.spark
@pytest.mark.slow
def test_a_node_whose_port_for_metrics_is_taken_says_so_and_ends(cluster: Cluster) -> None:
    cluster.start_etcd()
    cluster.launch_node(ISCP_METRICS__LISTEN=f"127.0.0.1:{cluster.ports.etcd_client}")
    assert cluster.node.wait_end() == 1
    assert "metrics.listen cannot listen on" in cluster.node.log.read_text()
