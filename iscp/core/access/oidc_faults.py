"""Find what is wrong with the settings of callers whom a provider of OpenID Connect knows."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from iscp.core.access.security_config import SIGNATURE_ALGORITHMS, OidcConfig, SecurityConfig
from iscp.core.values.setting_faults import SettingFault, is_loopback, url_fault

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
