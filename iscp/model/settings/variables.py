"""The variables of the environment that iscp reads: of settings, by their paths, and the few others."""

from __future__ import annotations

import re
from collections.abc import Mapping

VARIABLE_PREFIX = "ISCP_"

BUCKETS_VARIABLE = "ISCP_S3_BUCKETS"
TLS_VARIABLES = ("ISCP_CA_FILE", "ISCP_CERT_FILE", "ISCP_KEY_FILE", "ISCP_SERVER_NAME")

NOT_SETTINGS = frozenset(
    {
        *("ISCP_ETCD", "ISCP_ENDPOINT", "ISCP_CACHE", "ISCP_FAILPOINTS", "ISCP_IVY_SETTINGS"),
        *("ISCP_ACCOUNT", BUCKETS_VARIABLE, "ISCP_TOKEN", "ISCP_TOKEN_FILE", *TLS_VARIABLES),
    }
)
"""Variables of ours that set no setting."""

# A service named iscp makes Kubernetes set these in every pod of its namespace.
_SERVICE_LINK = re.compile(r"ISCP(_[A-Z0-9]+)*_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_\d+_(TCP|UDP)(_[A-Z]+)?)?)")


def setting_variable(path: str) -> str:
    """Return the variable of the setting at `path`."""
    return VARIABLE_PREFIX + path.replace(".", "__").upper()


def is_service_link(name: str) -> bool:
    return _SERVICE_LINK.fullmatch(name) is not None


def sets_any(environ: Mapping[str, str]) -> bool:
    """Return whether any variable is of a setting, known or not."""
    return any(name.startswith(VARIABLE_PREFIX) and name not in NOT_SETTINGS for name in environ)
