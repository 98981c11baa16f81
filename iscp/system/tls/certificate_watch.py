"""Certificates that are taken up while they are in use: files are read again when they have changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from iscp.model.access.security_config import TlsConfig
from iscp.model.settings.config import EtcdConfig, NodeConfig
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.untrusted_values import SettingFault
from iscp.system.tls.tls_files import Tls, TlsFiles, certificates_of, examine, node_faults

log = logging.getLogger(__name__)

CHECK_S = 1.0
"""Least time between two checks whether the files of certificates have changed; connections that open later use what
they hold then.
"""

_Stamp = tuple[tuple[int, int, int] | None, ...]


class CertificateWatch:
    """The present content of some files; several threads may use it. `section` begins the names of fields in errors.

    Raises ConfigurationError where they are unfit at first. Later ones that are unfit, or of which only the first has
    been written, are logged, and what was read before them is used.
    """

    def __init__(self, files: TlsFiles, section: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._section = section
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._current = files.read(section)
        self._due_s = clock() + CHECK_S

    def current(self) -> Tls:
        """Return the very same object until the files have other content. Never waits for another thread's reading."""
        if self._clock() >= self._due_s and self._lock.acquire(blocking=False):
            try:
                self._check()
            finally:
                self._due_s = self._clock() + CHECK_S
                self._lock.release()
        return self._current

    def _check(self) -> None:
        stamp = self._stamp()  # before they are read: what is written meanwhile changes the next one
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            found = self._files.read(self._section)
        except ConfigurationError as error:
            log.warning("tls.not_renewed", extra={"reason": str(error), "file": str(self._files.cert_file)})
            return
        if found != self._current:
            self._current = found
            log.info("tls.renewed", extra={"file": str(self._files.cert_file), "days": days_left(found)})

    def _stamp(self) -> _Stamp:
        return tuple(
            _stamp_of(file) if file else None
            for file in (self._files.ca_file, self._files.cert_file, self._files.key_file)
        )


def days_left(tls: Tls) -> int:
    """Return the whole days until the own certificate ends, or the last authority where there is none."""
    expiries = [each.not_valid_after_utc for each in certificates_of(tls.certificate or tls.authority)]
    return ((expiries[0] if tls.certificate else max(expiries)) - datetime.now(UTC)).days


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()  # of what a link leads to, as it is in a secret that Kubernetes mounts
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


# --- certificates of a node's configuration ---------------------------------------------------------------------------
# They are used towards users and other nodes, towards etcd, and towards a provider of OIDC.

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
