"""Settings of the ports that Spark opens: this machine alone reaches them, or others who know its secret do."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from iscp.core.values.errors import ConfigurationError
from iscp.core.values.setting_faults import is_loopback

_HERE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.io.encryption.enabled": "true",
}


def stays_here(master: str) -> bool:
    """Return whether nobody on another machine takes part: a local master, or a standalone one on the loopback
    interface.
    """
    if master.partition("[")[0] in ("local", "local-cluster"):
        return True
    parts = urlsplit(master)
    return parts.scheme == "spark" and all(is_loopback(address) for address in parts.netloc.split(","))


def network_conf(master: str, insecure: bool) -> dict[str, str]:
    """Return the settings that bind or protect Spark's ports, for where nobody sets them otherwise."""
    if stays_here(master):
        return dict(_HERE)
    return {} if insecure else dict(_ENCRYPTED)


def refuse_open_ports(master: str, insecure: bool, conf: Mapping[str, str]) -> None:
    """Raise ConfigurationError where others could reach Spark's ports without a secret, by the user's `conf`."""
    if insecure or stays_here(master):
        return
    for name in ("spark.authenticate", "spark.network.crypto.enabled"):
        if conf.get(name, "true").strip().lower() != "true" and not (
            name.endswith("crypto.enabled") and conf.get("spark.ssl.rpc.enabled", "").strip().lower() == "true"
        ):
            raise ConfigurationError(
                f"has {name} turned off, and {master} is on other machines",
                field="spark.conf",
                remedy="Leave it out, or set security.insecure = true",
            )
    # Of other masters Spark makes the secret, and hands it over by theirs.
    if master.startswith("spark://") and not conf.get("spark.authenticate.secret"):
        raise ConfigurationError(
            f"does not have spark.authenticate.secret, and {master} is on other machines",
            field="spark.conf",
            remedy="Give the secret of the master and its workers (as ISCP_SPARK__CONF, or in spark-defaults.conf), or "
            "set security.insecure = true",
        )
