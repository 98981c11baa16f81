"""What a chart's values add to the nodes: users, places, ways in, jobs and views; and what users are shown."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from iscp.cli.view.definition_files import read_definitions
from tests.chart.installations import SMALLEST
from tests.chart.rendering import HelmRefusedError, Manifest, Rendered, render, run_helm
from tests.chart.values_file import CHART
from tests.unit.test_chart import merged, rendered


def node_pod(chart: Rendered) -> Manifest:
    spec: Manifest = chart.only("StatefulSet", "node")["spec"]["template"]["spec"]
    return spec


def test_without_a_user_none_is_named_and_root_is_refused_all_the_same() -> None:
    """As on OpenShift, which gives one. Where nobody gives one it is the image's, which is a number."""
    for pod in rendered("by a web identity").pods():
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(security)
    named = node_pod(rendered("smallest"))["securityContext"]
    assert named["runAsUser"] == named["runAsGroup"] == named["fsGroup"] == 10001


def test_affinity_stands_beside_the_spread_unless_it_says_which_pods_to_avoid() -> None:
    beside = node_pod(rendered("guarded and spread"))["affinity"]
    assert set(beside) == {"nodeAffinity", "podAntiAffinity"}
    assert "requiredDuringSchedulingIgnoredDuringExecution" in beside["podAntiAffinity"]
    instead = node_pod(rendered("by a web identity"))["affinity"]
    assert instead == {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    members = rendered("by a web identity").only("StatefulSet", "etcd")["spec"]["template"]["spec"]
    assert members["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]


def test_containers_before_the_node_are_the_values() -> None:
    assert [each["name"] for each in node_pod(rendered("by a web identity"))["initContainers"]] == ["wait"]
    assert "initContainers" not in node_pod(rendered("smallest"))


def test_an_ingress_leads_to_the_service_by_a_port_that_it_has() -> None:
    chart = rendered("guarded and spread")
    spec = chart.only("Ingress")["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert spec["tls"] == [{"hosts": ["lake.example"], "secretName": "lake-front"}]
    (rule,) = spec["rules"]
    assert rule["host"] == "lake.example"
    backend = rule["http"]["paths"][0]["backend"]["service"]
    (service,) = (each for each in chart.of("Service", "node") if each["metadata"]["name"] == backend["name"])
    assert backend["port"]["name"] in [each["name"] for each in service["spec"]["ports"]]
    assert "lake.example" in chart.only("Certificate", "node")["spec"]["dnsNames"]
    assert rendered("smallest").of("Ingress") == []


def test_the_page_is_reached_by_the_service_and_the_ingress() -> None:
    chart = render(
        {
            **SMALLEST,
            "config": {**SMALLEST["config"], "page": {"hosts": ["lake.internal"]}},
            "page": {"enabled": True},
            "ingress": {"enabled": True, "host": "lake.example", "port": "page"},
            "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "nginx"}}}]},
        }
    )
    page = tomllib.loads(chart.only("ConfigMap", "node")["data"]["node.toml"])["page"]
    assert page == {"listen": "0.0.0.0:7432", "hosts": ["lake.internal", "lake.example"]}
    (port,) = (each for each in chart.container()["ports"] if each["name"] == "page")
    assert page["listen"].endswith(f":{port['containerPort']}")
    (rule,) = chart.only("Ingress")["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    (service,) = (each for each in chart.of("Service", "node") if each["metadata"]["name"] == backend["name"])
    assert {"page": 7432}.items() <= {each["name"]: each["port"] for each in service["spec"]["ports"]}.items()
    allowed = chart.only("NetworkPolicy", "node")["spec"]["ingress"]
    (rule,) = (each for each in allowed if "page" in {one["port"] for one in each["ports"]})
    assert {"podSelector": {"matchLabels": {"app": "nginx"}}} in rule["from"]
    assert "page" not in tomllib.loads(rendered("smallest").only("ConfigMap", "node")["data"]["node.toml"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ingress": {"enabled": True, "host": "h", "port": "http"}}, "gateway.enabled is false"),
        ({"ingress": {"enabled": True, "host": "h", "port": "page"}}, "page.enabled is false"),
        ({"ingress": {"enabled": True, "host": "h"}}, "networkPolicy.clients is empty"),
        (
            {"views": {"sql": "CREATE MATERIALIZED VIEW v AS SELECT 1"}, "apply": {"tokenSecret": "t"}},
            "views.targetRoot is empty",
        ),
    ],
)
def test_what_would_reach_nothing_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmRefusedError) as refused:
        render({**SMALLEST, **given})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("master", "taken"),
    [("", True), ("local[4]", True), ("spark://master:7077", True), ("k8s://https://api", False), ("yarn", False)],
)
def test_masters_that_need_rights_in_kubernetes_are_refused(master: str, taken: bool) -> None:
    values = merged(SMALLEST, "config.spark.master", master)
    if taken:
        assert render(values).manifests
        return
    with pytest.raises(HelmRefusedError, match="makes no service account, rights and ports for it"):
        render(values)


def test_jobs_and_views_are_applied_after_each_change(tmp_path: Path) -> None:
    chart = rendered("by a web identity")
    job = chart.only("Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade,post-rollback"
    pod = job["spec"]["template"]
    assert pod["metadata"]["labels"]["lake-iscp-client"] == "true", "as the nodes' policy lets in"
    (container,) = pod["spec"]["containers"]
    first, second = (shlex.split(each) for each in container["args"][0].splitlines())
    assert first == ["iscp-admin", "apply", "-f", "/etc/iscp/apply/jobs.yaml"]
    places = ["--target-root", "s3://lake/views", "--table", "orders=s3://lake/orders"]
    assert second == ["iscp-admin", "view", "apply", "-f", "/etc/iscp/apply/views.sql", *places]
    environ = {each["name"]: each["value"] for each in container["env"]}
    assert environ["ISCP_TOKEN_FILE"] == "/etc/iscp/token/token"
    assert environ["ISCP_ACCOUNT"] == "acme"
    assert environ["ISCP_SERVER_NAME"] == "node.default.iscp"
    files = chart.only("ConfigMap", "apply")["data"]
    assert files["views.sql"].startswith("CREATE MATERIALIZED VIEW daily AS\n  SELECT day")
    (tmp_path / "jobs.yaml").write_text(files["jobs.yaml"])
    (wanted,) = read_definitions([str(tmp_path)], quiet=True).wanted
    assert wanted.request.job.table == "s3://lake/orders"
    assert rendered("smallest").of("Job") == []


def test_what_helm_prints_at_the_end_is_what_tls_and_authentication_take() -> None:
    notes = notes_of(SMALLEST)
    assert "get secret lake-tls -o 'go-template={{index .data \"ca.crt\" | base64decode}}' > ca.pem" in notes
    assert "exec lake-iscp-0 -- iscp-admin token bootstrap --config /etc/iscp/node.toml > admin.token" in notes
    assert re.search(r"export ISCP_CA_FILE=ca.pem ISCP_CERT_FILE=\S+ ISCP_KEY_FILE=\S+", notes)
    assert "ISCP_SERVER_NAME=node.default.iscp ISCP_TOKEN_FILE=admin.token" in notes
    assert "insecure" not in notes
    open_to_all = merged(SMALLEST, "config.security.insecure", True)
    assert "token" not in notes_of(open_to_all), "whoever has a certificate may do everything"
    trusted = {**merged(open_to_all, "etcd.insecure", True), "tls": {}}
    notes = notes_of(trusted)
    assert "ISCP_CA_FILE" not in notes
    assert "etcd.insecure is true" in notes
    assert "config.security.insecure is true" in notes


def notes_of(values: dict[str, Any] | Any) -> str:
    said = run_helm(["install", "lake", str(CHART), "--namespace", "data", "--dry-run=client", "--values", "-"], values)
    return said.partition("NOTES:")[2]


def test_the_secret_of_tokens_is_not_in_the_configuration() -> None:
    text = yaml.safe_dump_all(rendered("by a web identity").of("ConfigMap"))
    assert "editor-token" not in text
