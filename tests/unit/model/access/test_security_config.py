"""Who somebody is by the claims of a verified token, and which claims make them nobody.

Settings of a provider that would let in whoever likes, or nobody, are refused by their paths.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.app.settings import load_settings, to_toml
from iscp.model.access.security_config import (
    LEEWAY_MAX_S,
    SIGNATURE_ALGORITHMS,
    SUBJECT_CHARS_MAX,
    OidcConfig,
    SecurityConfig,
    TlsConfig,
    caller_of,
)
from iscp.model.access.service_table import KnownBy, Principal, Role
from iscp.model.settings.config import JobLogConfig, NodeConfig
from iscp.model.settings.config_faults import faults
from iscp.model.values.errors import ConfigurationError, NotAuthenticated

CONFIG = OidcConfig(issuer="i", audience="a", jwks_url="https://i/keys")
NOW_S = 1_700_000_000.0
CLAIMS: dict[str, object] = {
    "sub": "ana",
    "account": "acme",
    "role": "editor",
    "iat": NOW_S - 10,
    "nbf": NOW_S - 10,
    "exp": NOW_S + 600,
}


def caller(config: OidcConfig = CONFIG, **changed: object) -> Principal:
    claims = {name: value for name, value in {**CLAIMS, **changed}.items() if value is not None}
    return caller_of(claims, config, "system", NOW_S)


def test_account_and_role_are_what_the_claims_say() -> None:
    end_s = NOW_S + 600 + CONFIG.leeway_s
    assert caller() == Principal("acme", Role.EDITOR, "oidc:ana", KnownBy.OIDC, expires_at_s=end_s)
    other = replace(CONFIG, account_claim="https://x/tenant", role_claim="groups")
    assert caller(other, **{"https://x/tenant": "b c", "groups": ["viewer", "x", "operator", 7]}).role is Role.OPERATOR


def test_roles_may_be_called_otherwise() -> None:
    config = replace(CONFIG, role_claim="groups", roles={"lake-editors": Role.EDITOR, "lake": Role.VIEWER})
    assert caller(config, groups=["all", "lake", "lake-editors"]).role is Role.EDITOR
    assert caller(config, groups="lake").role is Role.VIEWER
    with pytest.raises(NotAuthenticated, match="no role"):
        caller(config, groups=["admin"])  # what it says itself does not count then


def test_nobody_is_of_the_cluster_wide_account_unless_that_is_said() -> None:
    with pytest.raises(NotAuthenticated, match="cluster-wide"):
        caller(account="system", role="admin")
    assert caller(replace(CONFIG, cluster_wide=True), account="system", role="admin").everywhere
    assert not caller(replace(CONFIG, cluster_wide=True)).everywhere


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"exp": None}, "exp"),
        ({"exp": str(NOW_S + 60)}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": float("nan")}, "exp"),
        ({"exp": float("inf")}, "exp"),
        ({"exp": 10**400}, "exp"),
        ({"exp": NOW_S - CONFIG.leeway_s}, "has ended"),
        ({"exp": -1}, "has ended"),
        ({"exp": NOW_S + CONFIG.lifetime_max_s}, "longer than"),
        ({"iat": None}, "iat"),
        ({"iat": [NOW_S]}, "iat"),
        ({"iat": NOW_S + CONFIG.leeway_s + 1}, "not valid yet"),
        ({"iat": -(10**18)}, "longer than"),
        ({"nbf": NOW_S + CONFIG.leeway_s + 1}, "not valid yet"),
        ({"nbf": "now"}, "nbf"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": 7}, "sub"),
        ({"sub": "a\nb"}, "sub"),
        ({"sub": "a" * (SUBJECT_CHARS_MAX + 1)}, "sub"),
        ({"account": None}, "account"),
        ({"account": ["acme"]}, "account"),
        ({"account": " acme"}, "account"),
        ({"account": "a" * 129}, "account"),
        ({"account": "a\x00b"}, "account"),
        ({"role": None}, "role"),
        ({"role": "root"}, "role"),
        ({"role": "Admin"}, "role"),
        ({"role": {"admin": True}}, "role"),
        ({"role": [["admin"]]}, "role"),
    ],
)
def test_other_claims_are_nobodys(changed: dict[str, object], message: str) -> None:
    with pytest.raises(NotAuthenticated, match=message) as refused:
        caller(CONFIG, **changed)
    assert refused.value.remedy


def test_clocks_may_differ_a_little() -> None:
    assert caller(exp=NOW_S - CONFIG.leeway_s + 1)
    assert caller(iat=NOW_S + CONFIG.leeway_s, nbf=None)
    with pytest.raises(NotAuthenticated, match="has ended"):
        caller(replace(CONFIG, leeway_s=0.0), exp=NOW_S)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from((*CLAIMS, "x")), values))
def test_whatever_the_claims_are_they_say_who_it_is_or_are_refused(changed: dict[str, object]) -> None:
    """Nothing of what they say is shown, but where the refusal says it itself."""
    try:
        found = caller(CONFIG, **changed)
    except NotAuthenticated:
        return
    assert found.account != "system"
    assert found.known_by is KnownBy.OIDC
    assert NOW_S < found.expires_at_s <= NOW_S + CONFIG.lifetime_max_s + 2 * CONFIG.leeway_s


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
