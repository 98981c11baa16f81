"""Make a caller of the claims in a provider's token, or say what is wrong with them.

The signature, the issuer and the audience were verified before (port `VerifyingKeys`); times, account and role are
decided here, after RFC 7519, RFC 8725 and RFC 9068.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from iscp.core.access.security_config import OidcConfig
from iscp.core.values.access_roles import KnownBy, Principal, Role, is_account
from iscp.core.values.errors import NotAuthenticated

SUBJECT_CHARS_MAX = 255
"""Characters of a subject, which is what OpenID Connect allows; a token with a longer one is refused."""

_SECTION = "security.oidc"
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
