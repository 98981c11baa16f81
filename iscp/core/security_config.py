"""Who may reach a node, and who its callers are: the settings of TLS, authentication and accounts in `NodeConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from iscp.core.access_roles import Role
from iscp.core.setting_fields import setting


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
class SecurityConfig:
    """Who may reach the node. See docs/security.md and docs/authorization.md."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountConfig:
    """Who is of an account: the names in certificates, each with a role. See docs/authorization.md."""

    certificates: Mapping[str, Role] = field(default_factory=dict)
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}
