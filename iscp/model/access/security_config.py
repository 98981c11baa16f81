"""The settings of TLS, authentication and accounts in `NodeConfig`: who may reach a node, and who its callers are.

The module also checks the settings of a provider of OpenID Connect, and makes a caller of the claims in a provider's
token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import ClassVar
from urllib.parse import urlsplit

from iscp.model.access.service_table import KnownBy, Principal, Role, is_account
from iscp.model.values.errors import NotAuthenticated
from iscp.model.values.untrusted_values import SettingFault, about, is_loopback, setting, url_fault

# --- settings ---------------------------------------------------------------------------------------------------------

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


# --- faults of the settings of OpenID Connect -------------------------------------------------------------------------

LEEWAY_MAX_S = 300.0
"""Most seconds by which a provider's clock may differ; a longer `security.oidc.leeway_s` is refused."""

_SECTION = "security.oidc"


def oidc_faults(security: SecurityConfig) -> Iterator[SettingFault]:
    oidc = security.oidc
    if not oidc.used:
        if oidc != OidcConfig():
            yield SettingFault(f"{_SECTION}.issuer", "is missing beside other settings of it", "Name the issuer")
        return
    if not security.authentication:
        yield SettingFault("security.authentication", f"is false beside {_SECTION}", "Set it, or leave that out")
    for name in ("issuer", "audience", "jwks_url"):
        if not getattr(oidc, name):
            yield SettingFault(f"{_SECTION}.{name}", "is missing", "Issuer, audience and URL of the keys go together")
    if oidc.jwks_url and (fault := _keys_url_fault(oidc.jwks_url)):
        yield SettingFault(f"{_SECTION}.jwks_url", fault, "Write https://HOST/PATH; http is for the loopback interface")
    yield from _algorithm_faults(oidc)
    for name in ("account_claim", "role_claim"):
        if not getattr(oidc, name).strip():
            yield SettingFault(f"{_SECTION}.{name}", "is empty", "Name the claim, as tokens have it")
    if oidc.leeway_s > LEEWAY_MAX_S:
        yield SettingFault.about(
            f"{_SECTION}.leeway_s", f"{oidc.leeway_s:g} is too much", f"Give at most {LEEWAY_MAX_S:g}"
        )


def _keys_url_fault(url: str) -> str:
    """Return what is wrong with the URL, or an empty text if nothing is."""
    if fault := url_fault(url):
        return fault
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(f"{parts.hostname}:80"):
        return "is http: whoever is on the way could say which keys there are"
    return ""


def _algorithm_faults(oidc: OidcConfig) -> Iterator[SettingFault]:
    path, remedy = f"{_SECTION}.algorithms", f"Give some of {', '.join(SIGNATURE_ALGORITHMS)}"
    if not oidc.algorithms:
        yield SettingFault(path, "is empty", remedy)
    for number, name in enumerate(oidc.algorithms):
        if name not in SIGNATURE_ALGORITHMS:
            yield SettingFault.about(f"{path}.{number}", f"{name!r} is no algorithm with a public key", remedy)


# --- callers by the claims of a token ---------------------------------------------------------------------------------
# The signature, the issuer and the audience were verified before (port `VerifyingKeys`). Times, account and role are
# decided here, after RFC 7519, RFC 8725 and RFC 9068.

SUBJECT_CHARS_MAX = 255
"""Characters of a subject, which is what OpenID Connect allows; a token with a longer one is refused."""

_ANOTHER = "Get another one of the provider"
_ADD_CLAIM = "Have whoever runs the provider add it, or name the right claim"


def caller_of(claims: Mapping[str, object], config: OidcConfig, cluster_account: str, now_s: float) -> Principal:
    """Return the caller whom the claims name at `now_s` (Unix seconds).

    Raises NotAuthenticated, which shows the value of no claim.
    """
    expires_at_s = _check_times(claims, config, now_s)
    subject, account = _text(claims, "sub"), _text(claims, config.account_claim)
    if subject is None or len(subject) > SUBJECT_CHARS_MAX:
        raise _refused(f"has no `sub` of at most {SUBJECT_CHARS_MAX} characters", _ANOTHER)
    if account is None or not is_account(account):
        raise _refused(
            f"names no account in its claim `{config.account_claim}`", f"{_ADD_CLAIM} ({_SECTION}.account_claim)"
        )
    everywhere = account == cluster_account
    if everywhere and not config.cluster_wide:
        raise _refused(
            "is of the cluster-wide account, which those of a provider may not be",
            f"Use a certificate or a token of iscp, or set {_SECTION}.cluster_wide on all nodes",
        )
    return Principal(account, _role(claims, config), f"oidc:{subject}", KnownBy.OIDC, everywhere, expires_at_s)


def _check_times(claims: Mapping[str, object], config: OidcConfig, now_s: float) -> float:
    """Return the Unix seconds from which the token is no longer valid."""
    issued_at_s, ends_at_s = _seconds(claims, "iat"), _seconds(claims, "exp")
    begins_at_s = max(issued_at_s, _seconds(claims, "nbf")) if "nbf" in claims else issued_at_s
    if now_s >= ends_at_s + config.leeway_s:
        raise _refused("has ended", f"{_ANOTHER}; a file with a token is read again when it changes")
    if now_s < begins_at_s - config.leeway_s:
        raise _refused("is not valid yet", f"Compare the clocks of provider and node ({_SECTION}.leeway_s)")
    if ends_at_s - issued_at_s > config.lifetime_max_s:
        raise _refused(
            f"is valid for longer than {config.lifetime_max_s:g} seconds",
            f"Have the provider sign shorter ones, or raise {_SECTION}.lifetime_max_s on all nodes",
        )
    return ends_at_s + config.leeway_s


def _role(claims: Mapping[str, object], config: OidcConfig) -> Role:
    given = claims.get(config.role_claim)
    texts = [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)]
    known = config.roles or {role.value: role for role in Role}
    found = {known[each] for each in texts if each in known}
    for role in reversed(Role):
        if role in found:
            return role
    raise _refused(
        f"names no role that is known in its claim `{config.role_claim}`",
        f"{_ADD_CLAIM} ({_SECTION}.role_claim and .roles)",
    )


def _text(claims: Mapping[str, object], name: str) -> str | None:
    value = claims.get(name)
    return value if isinstance(value, str) and value and value.isprintable() else None


def _seconds(claims: Mapping[str, object], name: str) -> float:
    value = claims.get(name)
    try:
        seconds = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else inf
    except OverflowError:
        seconds = inf
    if not isfinite(seconds):
        raise _refused(f"has no time in its claim `{name}`", _ANOTHER)
    return seconds


def _refused(message: str, remedy: str) -> NotAuthenticated:
    return NotAuthenticated(message, field="token", remedy=remedy)
