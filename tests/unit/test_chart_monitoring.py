"""The chart's monitoring: what it makes for Prometheus and Grafana reads metrics that nodes have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from iscp.model.metrics.declared_metrics import METRICS, MetricKind
from tests.chart.installations import SMALLEST
from tests.chart.rendering import HelmRefusedError, render
from tests.chart.values_file import CHART
from tests.unit.test_chart import ROOT, merged, rendered
from tests.unit.test_docs import anchors

ALERTS = yaml.safe_load((CHART / "files/alerts.yaml").read_text())
DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text())
MONITORED = "guarded and spread"

SERIES = {each.prometheus_name for each in METRICS if each.kind is not MetricKind.HISTOGRAM}
SERIES |= {f"{each.prometheus_name}_{part}" for each in METRICS for part in ("bucket", "sum", "count")}
LABELS = {one.name.replace(".", "_") for each in METRICS for one in each.attributes}


def rules() -> list[Mapping[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def panels() -> Iterator[tuple[str, str]]:
    """(title, query) of each."""
    for panel in DASHBOARD["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))


QUERIES = [*((rule["alert"], rule["expr"]) for rule in rules()), *panels()]


@pytest.mark.parametrize(("name", "query"), QUERIES)
def test_a_query_reads_metrics_and_attributes_that_are_declared(name: str, query: str) -> None:
    words = set(re.findall(r"\b(?:iscp|error)_\w+", query))
    assert words
    assert words - SERIES - LABELS == set()


def test_every_alert_leads_to_a_part_of_the_documentation() -> None:
    for rule in rules():
        document, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert anchor in anchors((ROOT / document).read_text()), rule["alert"]


def test_panels_do_not_lie_on_each_other() -> None:
    taken = set[tuple[int, int]]()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_nothing_is_made_unless_it_is_wanted() -> None:
    assert not {"ServiceMonitor", "PrometheusRule"} & {each["kind"] for each in rendered("smallest").manifests}
    assert "metrics" not in rendered("smallest").only("ConfigMap", "node")["data"]["node.toml"]


def test_the_rules_and_the_dashboard_arrive_as_they_are() -> None:
    chart = rendered(MONITORED)
    assert chart.only("PrometheusRule")["spec"] == ALERTS
    assert json.loads(chart.only("ConfigMap", "dashboard")["data"]["iscp.json"]) == DASHBOARD


def test_prometheus_scrapes_each_node_once_as_a_caller_that_is_known() -> None:
    chart = rendered(MONITORED)
    (endpoint,) = chart.only("ServiceMonitor")["spec"]["endpoints"]
    services = [
        each
        for each in chart.of("Service", "node")
        if endpoint["port"] in {one["name"] for one in each["spec"]["ports"]}
    ]
    assert [each["spec"].get("clusterIP") for each in services] == ["None"]
    assert endpoint["tlsConfig"]["serverName"] == "node.default.iscp"
    assert endpoint["tlsConfig"]["cert"]["secret"]["name"] == "prometheus-tls"
    assert endpoint["authorization"]["credentials"] == {"name": "prometheus-token", "key": "token"}
    assert "metrics" in {each["name"] for each in chart.container()["ports"]}
    allowed = [
        each for each in chart.only("NetworkPolicy", "node")["spec"]["ingress"] if each["ports"][0]["port"] == "metrics"
    ]
    assert [each["from"] for each in allowed] == [[{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"enabled": True}, r"metrics\.clients is empty"),
        ({"rules": {"enabled": True}}, r"metrics\.enabled is false"),
        (
            {"enabled": True, "clients": [{"podSelector": {}}], "serviceMonitor": {"enabled": True}},
            r"metrics\.serviceMonitor\.tlsSecret is empty",
        ),
    ],
)
def test_values_that_do_not_agree_are_refused(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(HelmRefusedError, match=fault):
        render(merged(SMALLEST, "metrics", values))
