"""Who may reach a node: nobody on other machines without TLS and authentication, unless that is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iscp.bootstrap.configuration.settings import load_settings, to_toml
from iscp.core.access.account_roots import ROOTS_MAX
from iscp.core.access.security_config import AccountConfig, SecurityConfig, TlsConfig
from iscp.core.settings.config import GatewayConfig, JobLogConfig, NodeConfig, PageConfig, S3Config, StorageConfig
from iscp.core.settings.config_faults import faults
from iscp.core.values.access_roles import Role
from iscp.core.values.errors import ConfigurationError
from iscp.core.values.setting_faults import is_loopback

NODE = NodeConfig(node_id="n-1", log=JobLogConfig(uri="/lake"))
FILES = TlsConfig(ca_file="a", cert_file="c", key_file="k")


def test_loopback_is_this_machine_alone() -> None:
    here = ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1")
    elsewhere = ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1", "localhost.evil:1", "n0:1")
    assert [is_loopback(each) for each in (*here, *elsewhere)] == [True] * 4 + [False] * 6


@pytest.mark.parametrize(
    ("changed", "paths"),
    [
        ({"listen": "0.0.0.0:7430"}, ["listen"]),
        ({"listen": "n0.lake:7430", "gateway": GatewayConfig(listen="[::]:80")}, ["listen", "gateway.listen"]),
        ({"page": PageConfig(listen="0.0.0.0:7432")}, ["page.listen"]),
        ({"listen": "0.0.0.0:7430", "security": SecurityConfig(insecure=True)}, []),
        ({"listen": "0.0.0.0:7430", "security": SecurityConfig(tls=FILES)}, ["security.authentication"]),
        ({"listen": "0.0.0.0:7430", "security": SecurityConfig(tls=FILES, authentication=True)}, []),
        ({"listen": "0.0.0.0:7430", "security": SecurityConfig(tls=FILES, insecure=True)}, []),
        (
            {"listen": "0.0.0.0:7430", "security": SecurityConfig(authentication=True)},
            ["listen", "security.tls.ca_file"],
        ),
        ({"security": SecurityConfig(authentication=True)}, ["security.tls.ca_file"]),
        ({"security": SecurityConfig(authentication=True, insecure=True)}, []),
        ({"security": SecurityConfig(tls=FILES)}, []),
        ({"listen": "127.0.0.1:7430"}, []),
        ({"security": SecurityConfig(tls=replace(FILES, ca_file=""))}, ["security.tls.ca_file"]),
        (
            {"security": SecurityConfig(tls=TlsConfig(key_file="k"))},
            ["security.tls.ca_file", "security.tls.cert_file"],
        ),
        ({"security": SecurityConfig(tls=TlsConfig(node_name="x"))}, ["security.tls.ca_file"]),
    ],
)
def test_a_node_that_others_reach_needs_tls_and_authentication(changed: dict[str, Any], paths: list[str]) -> None:
    assert [fault.path for fault in faults(replace(NODE, **changed))] == paths


KNOWN = AccountConfig(certificates={"ana": Role.EDITOR})
GUARDED = SecurityConfig(tls=FILES, authentication=True)


@pytest.mark.parametrize(
    ("accounts", "security", "paths"),
    [
        ({"acme": KNOWN}, GUARDED, []),
        ({"acme": KNOWN}, SecurityConfig(tls=FILES), ["security.authentication"]),
        ({"acme": KNOWN}, SecurityConfig(authentication=True, insecure=True), ["accounts.acme.certificates.ana"]),
        (
            {"acme": KNOWN, "b": AccountConfig(certificates={"ANA": Role.ADMIN})},
            GUARDED,
            ["accounts.b.certificates.ANA"],
        ),
        ({" ": KNOWN}, GUARDED, ["accounts. "]),
        (
            {"acme": AccountConfig(certificates={"Node.default.iscp": Role.ADMIN})},
            GUARDED,
            ["accounts.acme.certificates.Node.default.iscp"],
        ),
        ({}, replace(GUARDED, cluster_account=""), ["security.cluster_account"]),
    ],
)
def test_who_is_known_by_what_is_refused_by_its_path(
    accounts: dict[str, AccountConfig], security: SecurityConfig, paths: list[str]
) -> None:
    found = faults(replace(NODE, accounts=accounts, security=security))
    assert [fault.path for fault in found] == paths
    assert all(fault.remedy for fault in found)


@pytest.mark.parametrize(
    ("roots", "storage", "paths"),
    [
        (("/lake/acme", "file:///lake/more"), StorageConfig(), []),
        (("s3://lake/acme", "s3://"), StorageConfig(s3=S3Config(region="eu")), []),
        (("/lake/acme", "s3://lake/acme"), StorageConfig(), ["accounts.acme.roots.1"]),
        (("lake", "/lake/..", "/x"), StorageConfig(), ["accounts.acme.roots.0", "accounts.acme.roots.1"]),
        (("/lake",) * (ROOTS_MAX + 1), StorageConfig(), ["accounts.acme.roots"]),
    ],
)
def test_roots_of_accounts_are_refused_by_their_path(
    roots: tuple[str, ...], storage: StorageConfig, paths: list[str]
) -> None:
    accounts = {"acme": AccountConfig(roots=roots)}
    found = faults(replace(NODE, accounts=accounts, security=GUARDED, storage=storage))
    assert [fault.path for fault in found] == paths
    assert all(fault.remedy for fault in found)


def test_accounts_are_written_and_read(tmp_path: Path) -> None:
    config = replace(
        NODE, accounts={"acme corp": replace(KNOWN, roots=("/lake/a",)), "system": AccountConfig()}, security=GUARDED
    )
    file = tmp_path / "node.toml"
    file.write_text(to_toml(config))
    assert load_settings(file, {}) == config
    with pytest.raises(ConfigurationError) as refused:
        load_settings(file, {"ISCP_ACCOUNTS": '{"a": {"certificates": {"x": "king"}, "rots": 1}}'})
    assert "accounts.a.certificates.x" in str(refused.value)
    assert "accounts.a.rots" in str(refused.value)


def test_it_is_said_by_file_or_variable() -> None:
    said = {"ISCP_NODE_ID": "n", "ISCP_LOG__URI": "/lake", "ISCP_SECURITY__INSECURE": "true"}
    assert load_settings(None, said).security == SecurityConfig(insecure=True)
    assert "insecure = true" in to_toml(replace(NODE, security=SecurityConfig(insecure=True)))


def test_the_name_of_nodes_is_the_clusters() -> None:
    assert replace(NODE, cluster="lake").node_name == "node.lake.iscp"
    assert replace(NODE, security=SecurityConfig(tls=replace(FILES, node_name="n.corp"))).node_name == "n.corp"
