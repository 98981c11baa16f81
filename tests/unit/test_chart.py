"""The Helm chart: what it makes is valid, safe and what the node takes, and a wrong value is refused by its name."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from iscp.app.compose import KILL_AFTER_S
from iscp.app.settings import load_settings
from iscp.model.settings.config import ADMIN_PORT, NodeConfig
from iscp.wire.v1 import admin_pb2
from tests.chart.installations import INSTALLATIONS, SMALLEST
from tests.chart.rendering import KUBERNETES, HelmRefusedError, Manifest, Rendered, render, run_helm, tool
from tests.chart.values_file import CHART

ROOT = CHART.parents[2]
CHART_FILE = yaml.safe_load((CHART / "Chart.yaml").read_text())

each_installation = pytest.mark.parametrize("name", INSTALLATIONS)


@cache
def rendered(name: str) -> Rendered:
    return render(INSTALLATIONS[name])


def settings_of(name: str, directory: Path, pod: str = "lake-iscp-0") -> NodeConfig:
    """The configuration as the node of `pod` reads it. Raises ConfigurationError."""
    file = directory / "node.toml"
    file.write_text(rendered(name).only("ConfigMap", "node")["data"]["node.toml"])
    return load_settings(file, rendered(name).environment(pod))


def ports(container: Manifest) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container["ports"]}


def selects(selector: Mapping[str, str], pod: Manifest) -> bool:
    labels: Mapping[str, str] = pod["metadata"]["labels"]
    return selector.items() <= labels.items()


def merged(values: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`values`, but for the one at `path`."""
    name, _, rest = path.partition(".")
    return {**values, name: merged(values.get(name, {}), rest, value) if rest else value}


@each_installation
def test_lint_has_no_complaint(name: str) -> None:
    run_helm(["lint", str(CHART), "--strict", "--values", "-"], INSTALLATIONS[name])


@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_manifests_are_valid_for_the_oldest_and_the_newest_kubernetes(kubernetes: str, tmp_path: Path) -> None:
    file = tmp_path / "manifests.yaml"
    others = ("Certificate", "PrometheusRule", "ServiceMonitor")  # cert-manager's and Prometheus', not Kubernetes' own
    kinds = [each for name in INSTALLATIONS for each in rendered(name).manifests if each["kind"] not in others]
    file.write_text(yaml.safe_dump_all(kinds))
    command = [str(tool("kubernetes-validate")), "--kubernetes-version", kubernetes, "--strict", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == len(kinds)


def test_a_field_that_kubernetes_does_not_have_is_found(tmp_path: Path) -> None:
    manifest = rendered("smallest").only("ConfigMap", "node")
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump({**manifest, "dater": {}}))
    command = [str(tool("kubernetes-validate")), "--kubernetes-version", KUBERNETES[0], "--strict", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode
    assert "dater" in done.stdout + done.stderr


def test_an_older_kubernetes_is_refused() -> None:
    assert CHART_FILE["kubeVersion"] == f">={KUBERNETES[0]}.0-0"
    with pytest.raises(HelmRefusedError, match=r"requires kubeVersion: >=1\.29\.0-0"):
        render(SMALLEST, "1.28")
    assert render(SMALLEST, KUBERNETES[0]).manifests


def test_the_chart_is_of_this_version_of_iscp() -> None:
    import iscp

    assert CHART_FILE["appVersion"] == iscp.__version__


@each_installation
def test_the_node_takes_its_configuration(name: str, tmp_path: Path) -> None:
    """Every setting that was given arrives, whatever became of its number on the way."""
    config = settings_of(name, tmp_path)
    assert config.node_id == "lake-iscp-0"
    assert config.listen == f"0.0.0.0:{ADMIN_PORT}"
    given = INSTALLATIONS[name]["config"]
    assert config.log.uri == given["log"]["uri"]
    assert config.stop_timeout_s == given.get("stop_timeout_s", 20.0)
    assert config.bounds.rows_max == given.get("bounds", {}).get("rows_max", 5_000_000)
    assert config.spark.driver_memory_mb == given.get("spark", {}).get("driver_memory_mb", 2048)
    assert config.spark.conf == given.get("spark", {}).get("conf", {})


@each_installation
def test_a_node_is_reached_by_the_name_that_it_advertises(name: str, tmp_path: Path) -> None:
    """Before it is ready too: only then an owner can take it in."""
    nodes = rendered(name).only("StatefulSet", "node")
    (headless,) = (each for each in rendered(name).of("Service", "node") if each["spec"].get("clusterIP") == "None")
    assert nodes["spec"]["serviceName"] == headless["metadata"]["name"]
    assert headless["spec"]["publishNotReadyAddresses"] is True
    pod = f"{nodes['metadata']['name']}-2"
    address = f"{pod}.{headless['metadata']['name']}.data.svc:{headless['spec']['ports'][0]['port']}"
    assert settings_of(name, tmp_path, pod).address == address


@each_installation
def test_what_selects_pods_selects_those_of_its_component(name: str) -> None:
    pods = list(rendered(name).pods())
    for each in (
        *rendered(name).of("Service"),
        *rendered(name).of("PodDisruptionBudget"),
        *rendered(name).of("StatefulSet"),
    ):
        selector = each["spec"]["selector"]
        chosen = [pod for pod in pods if selects(selector.get("matchLabels", selector), pod)]
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        assert [pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in chosen] == [component]
        for port in each["spec"].get("ports", ()):
            assert port["targetPort"] in ports(chosen[0]["spec"]["containers"][0])


@each_installation
def test_pods_are_restricted_and_have_no_token(name: str) -> None:
    """As the Pod Security standard `restricted` wants it, with a root that nobody writes."""
    for pod in rendered(name).pods():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert all("hostPath" not in volume for volume in spec.get("volumes", ()))
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            mounted = {each["name"] for each in container.get("volumeMounts", ())}
            claims = {"data"} if container["name"] == "etcd" else set()
            assert mounted == {volume["name"] for volume in spec.get("volumes", ())} | claims
    for account in rendered(name).of("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    assert not [each for each in rendered(name).manifests if "Role" in each["kind"]]


@each_installation
def test_probes_are_of_what_the_node_serves(name: str, tmp_path: Path) -> None:
    """At the address without TLS: a kubelet has no certificate."""
    container = rendered(name).container()
    port = ports(container)["health"]
    assert settings_of(name, tmp_path).health.listen == f"0.0.0.0:{port}"
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name
    assert ports(container)["grpc"] == ADMIN_PORT
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["grpc"] == {"port": port, "service": service}
    assert container["livenessProbe"]["grpc"] == {"port": port}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] == 30


@each_installation
def test_a_node_may_hand_over_before_it_is_killed(name: str, tmp_path: Path) -> None:
    """The grace holds the hook, the orderly stop, and what a node may live beyond it."""
    spec = rendered(name).only("StatefulSet", "node")["spec"]["template"]["spec"]
    hook = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    stop_s = settings_of(name, tmp_path).stop_timeout_s
    assert spec["terminationGracePeriodSeconds"] >= hook + math.ceil(stop_s) + KILL_AFTER_S


def test_a_changed_setting_replaces_the_pods() -> None:
    def template(values: Mapping[str, Any]) -> Any:
        return render(values).only("StatefulSet", "node")["spec"]["template"]

    assert template(SMALLEST) == template(SMALLEST)
    assert template(SMALLEST) != template(merged(SMALLEST, "config.probe.interval_min_s", 5))


@each_installation
def test_the_nodes_certificates_are_mounted_where_they_are_read(name: str, tmp_path: Path) -> None:
    """As a directory: of a single file that is mounted, a renewal would not be seen."""
    security = settings_of(name, tmp_path).security
    assert security.authentication is not security.insecure
    pods = [rendered(name).only("StatefulSet", "node")["spec"]["template"], rendered(name).only("Pod")]
    for spec in (pod["spec"] for pod in pods):
        mounts = [each for each in spec["containers"][0].get("volumeMounts", ()) if each["name"] == "tls"]
        if security.insecure:
            assert not mounts
            continue
        (volume,) = (each for each in spec["volumes"] if each["name"] == "tls")
        assert volume["secret"]["secretName"] == "lake-tls"
        assert "subPath" not in mounts[0]
        files = [f"{mounts[0]['mountPath']}/{each}" for each in ("ca.crt", "tls.crt", "tls.key")]
        assert [security.tls.ca_file, security.tls.cert_file, security.tls.key_file] == files


def test_cert_manager_makes_a_certificate_of_every_name_that_nodes_are_called_by(tmp_path: Path) -> None:
    chart, config = rendered("guarded and spread"), settings_of("guarded and spread", tmp_path)
    spec = chart.only("Certificate")["spec"]
    assert spec["secretName"] == "lake-tls"
    assert spec["issuerRef"] == {"name": "company", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    names = spec["dnsNames"]
    assert config.node_name in names
    pod, _, domain = config.address.rpartition(":")[0].partition(".")
    assert pod == "lake-iscp-0"
    assert f"*.{domain}" in names
    assert {"lake-iscp", "lake-iscp.data.svc"} <= set(names)
    assert set(spec["usages"]) == {"server auth", "client auth"}


def test_credentials_come_from_secrets_or_a_token() -> None:
    keys = rendered("guarded and spread").environment()
    assert keys["AWS_ACCESS_KEY_ID"] == keys["AWS_SECRET_ACCESS_KEY"] == "from lake-keys"
    identity = rendered("by a web identity")
    spec = identity.only("StatefulSet", "node")["spec"]["template"]["spec"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "web-identity")
    (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "web-identity")
    token = volume["projected"]["sources"][0]["serviceAccountToken"]
    assert identity.environment()["AWS_WEB_IDENTITY_TOKEN_FILE"] == f"{mount['mountPath']}/{token['path']}"
    assert identity.environment()["AWS_ROLE_ARN"].endswith("role/lake")
    assert "AWS_ACCESS_KEY_ID" not in identity.environment()
    assert rendered("on a shared file system").environment()["ISCP_ETCD__PASSWORD"] == "from etcd-user"


def test_keys_of_buckets_are_mounted_where_they_are_read(tmp_path: Path) -> None:
    buckets = settings_of("guarded and spread", tmp_path).storage.s3.buckets
    spec = rendered("guarded and spread").only("StatefulSet", "node")["spec"]["template"]["spec"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "s3-keys")
    (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "s3-keys")
    held = {
        f"{mount['mountPath']}/{item['path']}": (each["secret"]["name"], item["key"])
        for each in volume["projected"]["sources"]
        for item in each["secret"]["items"]
    }
    assert {name: held[each.credentials_file] for name, each in buckets.items()} == {
        "acme.raw": ("acme-keys", "credentials"),
        "beta": ("beta-keys", "credentials"),
    }
    assert buckets["acme.raw"].endpoint == "https://store.example"


def test_only_clients_and_nodes_are_let_in() -> None:
    chart = rendered("smallest")
    nodes, etcd = chart.only("NetworkPolicy", "node"), chart.only("NetworkPolicy", "etcd")

    def let_in(policy: Manifest, pod: Manifest, port: str) -> bool:
        return any(
            selects(peer["podSelector"]["matchLabels"], pod)
            for rule in policy["spec"]["ingress"]
            if port in [each["port"] for each in rule["ports"]]
            for peer in rule["from"]
        )

    node, member = (chart.only("StatefulSet", each)["spec"]["template"] for each in ("node", "etcd"))
    stranger = {"metadata": {"labels": {"app.kubernetes.io/name": "iscp", "app.kubernetes.io/component": "node"}}}
    assert let_in(nodes, node, "grpc")
    assert let_in(nodes, chart.only("Pod"), "grpc")
    assert not let_in(nodes, member, "grpc")
    assert not let_in(nodes, stranger, "grpc")
    assert let_in(etcd, node, "client")
    assert not let_in(etcd, node, "peer")
    assert let_in(etcd, member, "peer")
    assert not let_in(etcd, chart.only("Pod"), "client")


def governs(policy: Manifest, pod: Manifest) -> bool:
    chosen = policy["spec"]["podSelector"]
    labels = pod["metadata"]["labels"]
    among = all(labels.get(each["key"]) in each["values"] for each in chosen.get("matchExpressions", ()))
    return among and selects(chosen.get("matchLabels", {}), pod)


def test_with_egress_each_pod_of_the_chart_calls_what_it_needs_and_no_more() -> None:
    given = [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 443, "protocol": "TCP"}]}]
    chart = render({**INSTALLATIONS["by a web identity"], "networkPolicy": {"egress": given}})
    pods = {each["metadata"]["labels"]["app.kubernetes.io/component"]: each for each in chart.pods()}
    assert set(pods) == {"node", "etcd", "apply", "test"}
    reached = {
        ("node", "node", 7430),
        ("node", "etcd", 2379),
        ("etcd", "etcd", 2379),
        ("etcd", "etcd", 2380),
        ("apply", "node", 7430),
        ("test", "node", 7430),
    }
    for name, pod in pods.items():
        policies = [each for each in chart.of("NetworkPolicy") if governs(each, pod)]
        assert [each for each in policies if "Egress" in each["spec"]["policyTypes"]], f"{name} reaches everything"
        rules = [rule for each in policies for rule in each["spec"].get("egress", ())]
        assert [each for each in rules if each["ports"][0]["port"] == 53], f"{name} finds no name"
        found = {
            (name, other, port["port"])
            for rule in rules
            for port in rule["ports"]
            for peer in rule.get("to", ())
            for other, known in pods.items()
            if "podSelector" in peer and selects(peer["podSelector"]["matchLabels"], known)
        }
        assert found == {each for each in reached if each[0] == name}
        assert (given[0] in rules) == (name == "node")


@pytest.mark.parametrize("document", ["docs/kubernetes.md", "deploy/helm/iscp/README.md"])
def test_documents_name_values_that_there_are(document: str) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    text = (ROOT / document).read_text()
    named = [*re.findall(r"--set ([\w.]+)=", text), *re.findall(r"`((?:config|s3|spread|rollout)[\w.]*)[`=:]", text)]
    assert len(set(named)) >= 3
    for name in named:
        found = schema
        for step in name.split("."):
            assert step in found["properties"], name
            found = found["properties"][step]


WRONG = {
    "replicas": (0, "/replicas"),
    "replica": (2, "'replica'"),
    "image.repository": ("", "image.repository is empty: build the image by `scripts/image REGISTRY/iscp:TAG`"),
    "image.pullPolicy": ("Sometimes", "/image/pullPolicy"),
    "image.digest": ("latest", "/image/digest"),
    "config.log.uri": ("", "config.log.uri is empty"),
    "config.log.url": ("s3://lake/iscp", "'url'"),
    "config.node_id": ("mine", "'node_id'"),
    "config.spark.driver_memory_mb": (64, "/config/spark/driver_memory_mb"),
    "config.scheduler.concurrency": ("two", "/config/scheduler/concurrency"),
    "config.etcd.lease_ttl_s": (1, "/config/etcd/lease_ttl_s"),
    "config.log_level": ("loud", "/config/log_level"),
    "config.spark.master": (
        "k8s://https://api:443",
        "config.spark.master is k8s://https://api:443: the chart makes no",
    ),
    "config.spark.conf": ({"spark.ui.port": 4040}, "/config/spark/conf/spark.ui.port"),
    "config.storage.s3.region": ("", "config.storage.s3.region is empty"),
    "config.storage.s3.buckets": ({"acme": {"region": "eu-1"}}, "s3.bucketSecrets does not: name there the secret"),
    "s3.bucketSecrets": ({"s3://acme": "acme-keys"}, "/s3/bucketSecrets"),
    "etcd.replicas": (2, "/etcd/replicas"),
    "etcd.endpoints": (["etcd:2379"], "etcd.deploy is true"),
    "etcd.deploy": (False, "etcd.endpoints is empty"),
    "etcd.image": ({}, "etcd.image.digest is empty"),
    "etcd.image.digest": ("latest", "/etcd/image/digest"),
    "etcd.authSecret": ("etcd-user", "etcd.authSecret is for an etcd that is there"),
    "etcd.tls.serverSecret": ("etcd-server", "of etcd.tls.serverSecret and etcd.tls.clientSecret one is empty"),
    "ingress": ({"enabled": True}, "ingress.host is empty"),
    "ingress.port": ("https", "/ingress/port"),
    "jobs": ([{"table": "/t", "name": "n"}], "apply.tokenSecret is empty, and jobs or views are given"),
    "views.sql": ("CREATE MATERIALIZED VIEW v AS SELECT 1", "apply.tokenSecret is empty"),
    "initContainers": ([{"name": "wait"}], "/initContainers/0"),
    "affinity": ({"podAffinities": {}}, "'podAffinities'"),
    "runAsUser": (0, "/runAsUser"),
    "extraEnv": ([{"name": "A", "values": "b"}], "'values'"),
    "extraVolumeMounts": ([{"name": "lake", "mountPath": "lake"}], "/extraVolumeMounts/0/mountPath"),
    "tolerations": ([{"key": "a", "operator": "Is"}], "/tolerations/0/operator"),
    "resources.limits.memory": ("2Gi", "resources.limits.memory is 2Gi, too little for a heap of 2048 MiB"),
    "tls.secret": ("", "tls.secret is empty"),
    "tls.certManager.issuerKind": ("Vault", "/tls/certManager/issuerKind"),
    "service.port": (70000, "/service/port"),
    "spread": ("wide", "/spread"),
}


@pytest.mark.parametrize("path", WRONG)
def test_a_wrong_value_fails_by_its_name(path: str) -> None:
    value, named = WRONG[path]
    with pytest.raises(HelmRefusedError) as refused:
        render(merged(SMALLEST, path, value))
    assert named in str(refused.value)


def test_a_job_log_that_no_volume_holds_is_refused() -> None:
    with pytest.raises(HelmRefusedError, match=r"config\.log\.uri is /lake/iscp, which no volume holds"):
        render(
            {
                "config": {"log": {"uri": "/lake/iscp"}},
                "tls": {"secret": "t"},
                "extraVolumeMounts": [{"name": "l", "mountPath": "/lak"}],
            }
        )
