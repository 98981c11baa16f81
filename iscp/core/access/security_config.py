"""The settings of TLS, authentication and accounts in `NodeConfig`: who may reach a node, and who its callers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from iscp.core.values.access_roles import Role
from iscp.core.values.setting_fields import about, setting

SIGNATURE_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The algorithms with a public key. Whoever can verify a token of another algorithm can also make one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Mutual TLS of the node's gRPC and JSON, towards users and other nodes alike. Invariant: all files or none."""

    ca_file: str = setting("", "Authorities (PEM) that certificates of users and nodes must come from; empty: no TLS")
    cert_file: str = setting("", "The node's certificate (PEM), with what lies between it and an authority")
    key_file: str = setting("", "The certificate's key (PEM), without a password")
    node_name: str = setting("", "DNS name in certificates of nodes, and of nobody else; empty: node.CLUSTER.iscp")

    @property
    def used(self) -> bool:
        return bool(self.ca_file or self.cert_file or self.key_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcConfig:
    """Callers whom a provider of OpenID Connect knows, by tokens that it has signed (JWT).

    Invariant: issuer, audience and URL, or nothing.
    """

    issuer: str = setting(
        "", "What tokens have to name as their issuer (`iss`); empty: no provider's tokens are accepted"
    )
    audience: str = setting("", "What tokens have to name among their audiences (`aud`)")
    jwks_url: str = setting("", "URL of the provider's public keys (JWKS): https, or http on the loopback interface")
    ca_file: str = setting("", "Authorities (PEM) that its certificate must come from; empty: the system's")
    algorithms: tuple[str, ...] = setting(
        ("RS256", "ES256"), f"Algorithms by which tokens may be signed, of {', '.join(SIGNATURE_ALGORITHMS)}"
    )
    account_claim: str = setting("account", "The claim that says of which account somebody is")
    role_claim: str = setting("role", "The claim with a role, or a list of them, of which the highest counts")
    roles: Mapping[str, Role] = field(
        default_factory=dict,
        metadata=about("Roles by what `role_claim` may say, as `lake-editors`; empty: it says roles themselves"),
    )
    cluster_wide: bool = setting(False, "Whether tokens may assign callers to `security.cluster_account`")
    leeway_s: float = setting(30.0, "Seconds by which the provider's clock may differ; at most 300", least=0.0)
    lifetime_max_s: float = setting(
        86_400.0, "A token that is valid for longer, from `iat` to `exp`, is refused", above=0.0
    )

    @property
    def used(self) -> bool:
        return bool(self.issuer or self.audience or self.jwks_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """The settings of who may reach the node. See docs/security.md and docs/authorization.md."""

    authentication: bool = setting(
        False, "Whether callers have to be known, by a certificate or a token, and may do what their role allows"
    )
    cluster_account: str = setting(
        "system", "The account whose callers may act for all others, each as far as its role goes"
    )
    insecure: bool = setting(
        False,
        "Whether a node may listen elsewhere than on the loopback interface without TLS and authentication, and "
        "authenticate callers without TLS",
    )
    tls: TlsConfig = field(default_factory=TlsConfig)
    oidc: OidcConfig = field(default_factory=OidcConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountConfig:
    """The members of an account: the names in their certificates, each with a role. `roots` are directories and URIs
    below which its tables have to lie. See docs/authorization.md.
    """

    certificates: Mapping[str, Role] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}
