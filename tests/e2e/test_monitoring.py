"""The chart's dashboard and alerts, evaluated by a real Prometheus that scrapes a real node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.model.values.errors import IscpError
from iscp.system.http_exchange import free_port
from tests.chart.values_file import CHART
from tests.e2e.harness import Cluster, wait_for
from tests.e2e.test_metrics import PER_NAME, ROWS
from tests.fakes.prometheus import Prometheus, program
from tests.unit.test_chart_monitoring import panels, rules

ALERTS = CHART / "files/alerts.yaml"

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(900)]


def executable(name: str) -> Path:
    found = program(name)
    if found is None:
        pytest.skip(f"there is no {name}: install Debian's package prometheus, or have apt-get reach it")
    return found


@pytest.fixture
def prometheus(cluster: Cluster, tmp_path: Path) -> Iterator[Prometheus]:
    """Scrapes a node on which every metric has a value."""
    server, address = executable("prometheus"), f"127.0.0.1:{free_port()}"
    source, client = cluster.table("orders", ROWS), cluster.client
    cluster.start(
        ISCP_METRICS__LISTEN=address,
        ISCP_METRICS__INTERVAL_S="1",
        ISCP_NOTIFY__WEBHOOKS=f"http://127.0.0.1:{free_port()}/hook",
    )
    copy = cluster.replica("copy", source, key=("id",))
    words = f"{cluster.derived}/words"
    client.create_view("per_name", PER_NAME, target=f"{cluster.derived}/per_name", tables={"o": source})
    client.register(source, "words", "fulltext", target=words, key=("id",), options={"columns": "name"})
    cluster.settle(copy)
    for name in ("per_name", "words"):
        client.wait(source, name, timeout_s=120.0)
    client.search(words, "a")
    made = Prometheus(server, tmp_path / "prometheus", [address], ALERTS)
    try:
        yield made
    finally:
        made.stop()


def test_the_rules_are_what_promtool_takes() -> None:
    command = [str(executable("promtool")), "check", "rules", str(ALERTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(rules())} rules found" in done.stdout


def test_every_query_of_dashboard_and_rules_finds_something(cluster: Cluster, prometheus: Prometheus) -> None:
    def scraped() -> bool:
        with suppress(OSError):
            return bool(prometheus.query("count_over_time(iscp_owner_leads[1m]) > 5"))
        return False

    wait_for("Prometheus has scraped the node some times", scraped)
    for title, query in panels():
        expression = query.replace("$__rate_interval", "30s")
        wait_for(f"{title}: {expression}", lambda each=expression: prometheus.query(each), 30.0)  # type: ignore[misc]

    evaluated = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in evaluated} == {rule["alert"] for rule in rules()}
    assert {rule["health"] for rule in evaluated} == {"ok"}
    assert [rule["name"] for rule in evaluated if rule["state"] == "firing"] == []


def test_an_alert_fires_for_what_it_is_for(cluster: Cluster, prometheus: Prometheus) -> None:
    failing = "SELECT sum(cast(name AS int)) AS total FROM o"  # no name is a number
    source = cluster.table("more", pa.table({"name": ["a"]}))
    cluster.client.create_view("failing", failing, target=f"{cluster.derived}/failing", tables={"o": source})
    by_name = {rule["alert"]: rule["expr"] for rule in rules()}

    def fires() -> bool:
        with suppress(OSError, IscpError):
            return any(prometheus.query(by_name[name]) for name in ("IscpJobsFailed", "IscpJobsQuarantined"))
        return False

    wait_for("the failed job is in an alert's query", fires)
    cluster.node.kill()
    wait_for("nobody is the owner", lambda: prometheus.query(by_name["IscpNoOwner"]), 400.0)
