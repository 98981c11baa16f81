"""Names of environment variables: which of those that begin with ISCP_ are settings."""

from __future__ import annotations

from iscp.adapters.delta.storage.bucket_keys import BUCKETS_VARIABLE
from iscp.adapters.tls.tls_files import TLS_VARIABLES

VARIABLE_PREFIX = "ISCP_"
NOT_SETTINGS = frozenset(
    {
        *("ISCP_ETCD", "ISCP_ENDPOINT", "ISCP_CACHE", "ISCP_FAILPOINTS", "ISCP_IVY_SETTINGS"),
        *("ISCP_ACCOUNT", BUCKETS_VARIABLE, "ISCP_TOKEN", "ISCP_TOKEN_FILE", *TLS_VARIABLES),
    }
)
"""Variables of ours that are read elsewhere."""
