"""Settings of a provider that would let in whoever likes, or nobody, are refused by their paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iscp.bootstrap.configuration.settings import load_settings, to_toml
from iscp.core.access.oidc_faults import LEEWAY_MAX_S
from iscp.core.access.security_config import SIGNATURE_ALGORITHMS, OidcConfig, SecurityConfig, TlsConfig
from iscp.core.settings.config import JobLogConfig, NodeConfig
from iscp.core.settings.config_faults import faults
from iscp.core.values.access_roles import Role
from iscp.core.values.errors import ConfigurationError

OIDC = OidcConfig(issuer="https://login.example", audience="iscp", jwks_url="https://login.example/keys")
FILES = TlsConfig(ca_file="a", cert_file="c", key_file="k")
NODE = NodeConfig(node_id="n", log=JobLogConfig(uri="/lake"))


def paths_of(oidc: OidcConfig, **security: Any) -> list[str]:
    guarded = SecurityConfig(**{"tls": FILES, "authentication": True, "oidc": oidc, **security})
    return [fault.path.removeprefix("security.oidc.") for fault in faults(replace(NODE, security=guarded))]


@pytest.mark.parametrize(
    ("changed", "paths"),
    [
        ({}, []),
        ({"issuer": ""}, ["issuer"]),
        ({"audience": "", "issuer": ""}, ["issuer", "audience"]),
        ({"jwks_url": ""}, ["jwks_url"]),
        ({"jwks_url": "http://login.example/keys"}, ["jwks_url"]),
        ({"jwks_url": "http://127.0.0.1.evil/keys"}, ["jwks_url"]),
        ({"jwks_url": "http://127.0.0.1:8080/keys"}, []),
        ({"jwks_url": "http://[::1]/keys"}, []),
        ({"jwks_url": "http://localhost/keys"}, []),
        ({"jwks_url": "file:///etc/keys"}, ["jwks_url"]),
        ({"jwks_url": "https://user:secret@login.example/keys"}, ["jwks_url"]),
        ({"algorithms": ()}, ["algorithms"]),
        ({"algorithms": ("RS256", "none", "HS256")}, ["algorithms.1", "algorithms.2"]),
        ({"algorithms": ("rs256",)}, ["algorithms.0"]),
        ({"algorithms": SIGNATURE_ALGORITHMS}, []),
        ({"account_claim": " "}, ["account_claim"]),
        ({"role_claim": ""}, ["role_claim"]),
        ({"leeway_s": LEEWAY_MAX_S + 1}, ["leeway_s"]),
        ({"issuer": "", "audience": "", "jwks_url": "", "cluster_wide": True}, ["issuer"]),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, Any], paths: list[str]) -> None:
    assert paths_of(replace(OIDC, **changed)) == paths


def test_it_needs_authentication() -> None:
    assert paths_of(OIDC, authentication=False) == ["security.authentication"]
    assert paths_of(OidcConfig(), authentication=False) == []


def test_a_fault_does_not_show_what_a_url_holds() -> None:
    guarded = SecurityConfig(authentication=True, tls=FILES, oidc=replace(OIDC, jwks_url="https://u:hunter2@x/"))
    assert "hunter2" not in str(faults(replace(NODE, security=guarded)))


def test_files_hold_what_the_settings_say(tmp_path: Path) -> None:
    oidc = replace(OIDC, roles={"lake-editors": Role.EDITOR}, algorithms=("ES256",), cluster_wide=True)
    config = replace(NODE, security=SecurityConfig(authentication=True, tls=FILES, oidc=oidc))
    file = tmp_path / "node.toml"
    file.write_text(to_toml(config))
    assert load_settings(file, {}) == config
    assert load_settings(file, {"ISCP_SECURITY__OIDC__ROLES": '{"x": "admin"}'}).security.oidc.roles == {"x": "admin"}
    with pytest.raises(ConfigurationError, match=r"security\.oidc\.roles"):
        load_settings(file, {"ISCP_SECURITY__OIDC__ROLES": '{"x": "root"}'})
