"""The chart's own etcd: whom its members let in, by which certificates, and what is refused."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.chart.installations import INSTALLATIONS, SMALLEST
from tests.chart.rendering import HelmRefusedError, Manifest, Rendered, render
from tests.unit.test_chart import merged, ports, rendered, settings_of

MADE_BY = {
    "smallest": "the chart",
    "guarded and spread": "given",
    "by a web identity": "cert-manager",
}
DOMAIN = "lake-iscp-etcd.data.svc"

each_secured = pytest.mark.parametrize("name", MADE_BY)


def members_of(name: str) -> Manifest:
    spec: Manifest = rendered(name).only("StatefulSet", "etcd")["spec"]["template"]["spec"]
    return spec


def secret_of(spec: Manifest, volume: str) -> str:
    (found,) = (each for each in spec["volumes"] if each["name"] == volume)
    return str(found["secret"]["secretName"])


def certificate_in(chart: Rendered, secret: str) -> tuple[x509.Certificate, x509.Certificate]:
    """That of a secret of the chart's own making, and its authority's."""
    (manifest,) = (each for each in chart.of("Secret", "etcd") if each["metadata"]["name"] == secret)
    authority, own = (
        x509.load_pem_x509_certificate(b64decode(manifest["data"][each])) for each in ("ca.crt", "tls.crt")
    )
    return own, authority


def names_in(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return found.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("name", [*MADE_BY, "on a network that is trusted"])
def test_the_charts_etcd_is_where_its_members_and_nodes_expect_it(name: str, tmp_path: Path) -> None:
    etcd = rendered(name).only("StatefulSet", "etcd")
    arguments = dict(each.lstrip("-").partition("=")[::2] for each in rendered(name).container("etcd")["args"])
    members = [f"lake-iscp-etcd-{number}" for number in range(etcd["spec"]["replicas"])]
    assert [each.partition("=")[0] for each in arguments["initial-cluster"].split(",")] == members
    for member, named in zip(members, arguments["initial-cluster"].split(","), strict=True):
        own = arguments["initial-advertise-peer-urls"].replace("$(MEMBER)", member)
        assert named == f"{member}={own}"
    client = arguments["advertise-client-urls"]
    endpoints = settings_of(name, tmp_path).etcd.endpoints
    assert endpoints == tuple(client.replace("$(MEMBER)", each).partition("://")[2] for each in members)
    peer = arguments["initial-advertise-peer-urls"]
    assert {each.partition("://")[0] for each in (client, peer)} == {"https" if name in MADE_BY else "http"}


def test_a_member_of_etcd_without_a_quorum_is_not_started_again() -> None:
    """Its /health fails then, with `serializable` too (seen of 3.5.1), as it should for readiness alone."""
    member = rendered("smallest").container("etcd")
    assert member["readinessProbe"]["httpGet"] == {"path": "/health", "port": "metrics"}
    assert member["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert f"--listen-metrics-urls=http://0.0.0.0:{ports(member)['metrics']}" in member["args"]


@each_secured
def test_members_speak_to_nobody_without_a_certificate(name: str, tmp_path: Path) -> None:
    spec = members_of(name)
    arguments = rendered(name).container("etcd")["args"]
    (mount,) = (each for each in rendered(name).container("etcd")["volumeMounts"] if each["name"] == "tls")
    for prefix in ("--", "--peer-"):
        assert f"{prefix}client-cert-auth" in arguments
        for option, file in (("trusted-ca-file", "ca.crt"), ("cert-file", "tls.crt"), ("key-file", "tls.key")):
            assert f"{prefix}{option}={mount['mountPath']}/{file}" in arguments
    assert not [each for each in arguments if "http://" in each and "metrics" not in each]
    given = name == "guarded and spread"
    assert secret_of(spec, "tls") == ("etcd-server" if given else "lake-iscp-etcd-server")
    nodes = rendered(name).only("StatefulSet", "node")["spec"]["template"]["spec"]
    assert secret_of(nodes, "etcd-tls") == ("etcd-client" if given else "lake-iscp-etcd-client")
    (mount,) = (each for each in nodes["containers"][0]["volumeMounts"] if each["name"] == "etcd-tls")
    etcd = settings_of(name, tmp_path).etcd
    files = (etcd.ca_file, etcd.cert_file, etcd.key_file)
    assert files == tuple(f"{mount['mountPath']}/{each}" for each in ("ca.crt", "tls.crt", "tls.key"))


def test_the_chart_makes_certificates_of_an_authority_that_is_nobody_elses() -> None:
    chart = rendered("smallest")
    (server, authority), (client, same) = (
        certificate_in(chart, f"lake-iscp-etcd-{each}") for each in ("server", "client")
    )
    assert authority == same
    for each in (server, client):
        each.verify_directly_issued_by(authority)
    assert names_in(server) == [f"*.{DOMAIN}", DOMAIN]  # by the latter a member finds that who calls is one
    assert names_in(client) == [f"client.{DOMAIN}"]
    other, _ = certificate_in(render({**SMALLEST, "replicas": 2}), "lake-iscp-etcd-server")
    assert other != server
    for name in INSTALLATIONS:
        assert bool(rendered(name).of("Secret")) is (name == "smallest")


def test_cert_manager_makes_them_and_other_certificates_of_its_issuer_are_not_let_in() -> None:
    chart = rendered("by a web identity")
    made = {each["spec"]["secretName"]: each["spec"] for each in chart.of("Certificate", "etcd")}
    assert set(made) == {"lake-iscp-etcd-server", "lake-iscp-etcd-client"}
    assert made["lake-iscp-etcd-server"]["dnsNames"] == [f"*.{DOMAIN}", DOMAIN]
    assert set(made["lake-iscp-etcd-server"]["usages"]) == {"server auth", "client auth"}
    assert made["lake-iscp-etcd-client"]["dnsNames"] == [f"client.{DOMAIN}"]
    arguments = chart.container("etcd")["args"]
    assert f"--client-cert-allowed-hostname=client.{DOMAIN}" in arguments
    assert f"--peer-cert-allowed-hostname=member.{DOMAIN}" in arguments


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "insecure and tls": (
        {"insecure": True, "tls": {"clientSecret": "c", "serverSecret": "s"}},
        "leave out one of the two",
    ),
    "issuer and secrets": (
        {"tls": {"clientSecret": "c", "serverSecret": "s", "certManager": {"issuer": "i"}}},
        "are both given",
    ),
    "an etcd that is there, without TLS": (
        {"deploy": False, "endpoints": ["etcd:2379"], "authSecret": "u"},
        "etcd.tls.clientSecret is empty: name the secret by which nodes speak to etcd, or set etcd.insecure=true",
    ),
    "an etcd that is there, and an issuer": (
        {"deploy": False, "endpoints": ["etcd:2379"], "tls": {"certManager": {"issuer": "i"}}},
        "are for the chart's own members",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_would_be_open_or_makes_no_sense_is_refused(name: str) -> None:
    given, said = WRONG[name]
    with pytest.raises(HelmRefusedError) as refused:
        render(merged(SMALLEST, "etcd", {**SMALLEST["etcd"], **given}))
    assert said in str(refused.value)
