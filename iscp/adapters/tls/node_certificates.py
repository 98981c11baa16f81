"""The certificates of a node's configuration: towards users and other nodes, towards etcd and a provider of OIDC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from iscp.adapters.tls.certificate_watch import CertificateWatch
from iscp.adapters.tls.tls_files import TlsFiles, examine, node_faults
from iscp.core.access.security_config import TlsConfig
from iscp.core.settings.config import EtcdConfig, NodeConfig
from iscp.core.values.setting_faults import SettingFault

SECTION = "security.tls."
ETCD_SECTION = "etcd."
OIDC_SECTION = "security.oidc."


def certificate_watch(config: NodeConfig) -> CertificateWatch | None:
    """Return a watch of the node's files, for servers and for calls to other nodes; None without TLS.

    Raises ConfigurationError.
    """
    files = _files_of(config)
    return CertificateWatch(files, SECTION) if files else None


def etcd_files(config: EtcdConfig) -> TlsFiles | None:
    """Return the files for etcd, or None where no file is named."""
    files = _files(config, "")
    return None if files == TlsFiles() else files


def certificate_faults(config: NodeConfig) -> Iterator[SettingFault]:
    """Yield the faults of the files that a configuration names; missing settings are reported elsewhere."""
    now = datetime.now(UTC)
    if files := etcd_files(config.etcd):
        yield from examine(files, ETCD_SECTION, now)[1]
    if authorities := config.security.oidc.ca_file:
        yield from examine(TlsFiles.named(authorities, "", ""), OIDC_SECTION, now)[1]
    if (files := _files_of(config)) is None or None in (files.ca_file, files.cert_file, files.key_file):
        return
    tls, faults = examine(files, SECTION, now)
    yield from faults or node_faults(tls, SECTION, config.node_name)


def _files_of(config: NodeConfig) -> TlsFiles | None:
    tls = config.security.tls
    if not tls.used:
        return None
    # Nodes know each other by this name, not by their addresses, which may change and be given to others.
    return _files(tls, config.node_name)


def _files(config: EtcdConfig | TlsConfig, server_name: str) -> TlsFiles:
    return TlsFiles.named(config.ca_file, config.cert_file, config.key_file, server_name)
