"""Find what is wrong with a configuration, beyond the types of its settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from iscp.model.access.authorization import ROOTS_MAX, is_bucket, is_root
from iscp.model.access.security_config import oidc_faults
from iscp.model.access.service_table import is_account
from iscp.model.settings.config import (
    BUCKETS_MAX,
    EtcdConfig,
    NodeConfig,
    NotifyConfig,
    S3Config,
    Setting,
    metrics_faults,
    openlineage_faults,
    tracing_faults,
)
from iscp.model.settings.embedder_config import embedder_faults
from iscp.model.values.untrusted_values import URL, SettingFault, is_loopback, unwritten_sign, url_fault

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_ACCOUNT_REMEDY = "Give one of at most 128 characters, without blanks around it"
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")

WEBHOOKS_MAX = 8
"""Receivers of notifications; more are refused at the node's start."""


def port_of(address: str) -> int | None:
    """Return the port of HOST:PORT, or None if it is not one."""
    found = _ADDRESS.fullmatch(address)
    return int(found["port"]) if found and int(found["port"]) < 65_536 else None


def range_fault(setting: Setting, value: object) -> SettingFault | None:
    """Return the fault of a number beyond its setting's bounds, or None; anything that is no number passes."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if value != value or value in (float("inf"), float("-inf")):
        return SettingFault.about(setting.path, f"{value} is not a finite number")
    if setting.least is not None and value < setting.least:
        return SettingFault.about(setting.path, f"{value:g} is too small", f"Give {setting.least:g} or more")
    if setting.above is not None and value <= setting.above:
        return SettingFault.about(setting.path, f"{value:g} is too small", f"Give more than {setting.above:g}")
    return None


def faults(config: NodeConfig) -> list[SettingFault]:
    """Return what no single number's bounds can check: forms of names and addresses, and settings that must agree."""
    return [
        *_name_faults(config),
        *_address_faults(config),
        *_etcd_faults(config.etcd),
        *_storage_faults(config),
        *_order_faults(config),
        *_notify_faults(config.notify),
        *metrics_faults(config.metrics),
        *tracing_faults(config.tracing),
        *openlineage_faults(config.openlineage),
        *embedder_faults(config.embedders, config.embedding.allow),
        *_security_faults(config),
        *access_faults(config),
        *oidc_faults(config.security),
    ]


def _name_faults(config: NodeConfig) -> Iterator[SettingFault]:
    for path, name in (("node_id", config.node_id), ("cluster", config.cluster)):
        if not _NAME.fullmatch(name):
            yield SettingFault.about(
                path, f"{name!r} is not a name", "Use up to 128 letters, digits, dots, dashes and underscores"
            )
    if not config.log.uri:
        yield SettingFault("log.uri", "is empty", "Name a directory or URI that all nodes of the cluster share")


def _address_faults(config: NodeConfig) -> Iterator[SettingFault]:
    listed = [("listen", config.listen), *((("advertise", config.advertise),) if config.advertise else ())]
    own = [(f"{each}.listen", getattr(config, each).listen) for each in ("gateway", "page", "health", "metrics")]
    listed += [each for each in own if each[1]]
    listed += [(f"etcd.endpoints.{n}", endpoint) for n, endpoint in enumerate(config.etcd.endpoints)]
    for path, address in listed:
        if port_of(address) is None:
            yield SettingFault.about(path, f"{address!r} is not an address", "Write HOST:PORT, as 127.0.0.1:2379")
    if not config.etcd.endpoints:
        yield SettingFault("etcd.endpoints", "is empty", "Name at least one member of etcd, as 127.0.0.1:2379")


def _etcd_faults(etcd: EtcdConfig) -> Iterator[SettingFault]:
    if not etcd.prefix.startswith("/"):
        yield SettingFault.about("etcd.prefix", f"{etcd.prefix!r} does not begin with /", "Write it as /iscp")
    if etcd.margin_s >= etcd.lease_ttl_s:
        yield SettingFault("etcd.margin_s", "leaves no time to write in", "Give less than etcd.lease_ttl_s")
    if etcd.password and not etcd.user:
        yield SettingFault("etcd.user", "is missing beside etcd.password", "Name the user")
    if bool(etcd.cert_file) != bool(etcd.key_file):
        missing = "etcd.key_file" if etcd.cert_file else "etcd.cert_file"
        yield SettingFault(missing, "is missing", "A client certificate and its key go together")
    elif etcd.cert_file and not etcd.ca_file:
        yield SettingFault(
            "etcd.ca_file", "is missing", "Name the authorities to trust; TLS is used where they are given"
        )


def _listens_elsewhere(config: NodeConfig) -> Iterator[tuple[str, str]]:
    """Yield where the node can be reached from other machines, unless that is admitted."""
    listens = {
        "listen": config.listen,
        "gateway.listen": config.gateway.listen,
        "page.listen": config.page.listen,
        "metrics.listen": config.metrics.listen,
    }
    for path, listen in listens.items():
        if listen and port_of(listen) is not None and not is_loopback(listen) and not config.security.insecure:
            yield path, listen


def access_faults(config: NodeConfig) -> Iterator[SettingFault]:
    """Yield faults in who is known, and by what."""
    security, known = config.security, dict[str, str]()
    if config.accounts and not security.authentication:
        yield SettingFault("security.authentication", "is false beside accounts", "Set it, or leave out the accounts")
    if security.authentication and not security.tls.used and not security.insecure:
        yield SettingFault(
            "security.tls.ca_file",
            "is missing beside security.authentication: nodes are known by certificates, and what they call each other "
            "for would be for everybody",
            "Set security.tls.*, or security.insecure = true where everybody who reaches it may do what nodes may",
        )
    for path, listen in _listens_elsewhere(config):
        if security.tls.used and not security.authentication:
            yield SettingFault(
                "security.authentication",
                f"is false, and {path} = {listen} can be reached from other machines",
                "Set it, or security.insecure = true where everybody who has a certificate may do everything",
            )
            break
    if not is_account(security.cluster_account):
        yield SettingFault.about(
            "security.cluster_account", f"{security.cluster_account!r} is no name", _ACCOUNT_REMEDY
        )
    for account, each in config.accounts.items():
        if not is_account(account):
            yield SettingFault.about(f"accounts.{account}", f"{account!r} is no name of an account", _ACCOUNT_REMEDY)
        for name in each.certificates:
            path = f"accounts.{account}.certificates.{name}"
            if not security.tls.used:
                yield SettingFault(path, "is a name in certificates, and there is no TLS", "Set security.tls.*")
            elif name.lower() == config.node_name.lower():
                yield SettingFault(path, "is what nodes are known by", "Use a name that no node's certificate has")
            elif name.lower() in known:
                yield SettingFault(path, f"stands in {known[name.lower()]} too", "Remove one of the two")
            known.setdefault(name.lower(), path)
        yield from _root_faults(config, account, each.roots)


def _root_faults(config: NodeConfig, account: str, roots: Sequence[str]) -> Iterator[SettingFault]:
    if len(roots) > ROOTS_MAX:
        yield SettingFault(f"accounts.{account}.roots", f"has more than {ROOTS_MAX} of them", "Name what is above them")
    for number, root in enumerate(roots):
        path = f"accounts.{account}.roots.{number}"
        if not is_root(root):
            yield SettingFault.about(
                path,
                f"{root!r} is no root",
                "Write an absolute path, or s3://BUCKET/KEY, without escapes, patterns, `.` and `..`",
            )
        elif root.startswith(("s3://", "s3a://")) and not config.storage.s3.used:
            yield SettingFault.about(path, f"{root} lies on S3", "Set storage.s3.region")


def _security_faults(config: NodeConfig) -> Iterator[SettingFault]:
    tls = config.security.tls
    files = {"ca_file": tls.ca_file, "cert_file": tls.cert_file, "key_file": tls.key_file}
    if tls.used:
        for name in (name for name, file in files.items() if not file):
            yield SettingFault(
                f"security.tls.{name}", "is missing", "Authorities, a certificate and its key go together"
            )
        return
    if tls.node_name:
        yield SettingFault("security.tls.ca_file", "is missing beside security.tls.node_name", "Name the files of TLS")
    for path, listen in _listens_elsewhere(config):
        yield SettingFault.about(
            path,
            f"{listen} can be reached from other machines, and there is no TLS",
            "Set security.tls.* and security.authentication, or security.insecure = true where everybody who reaches "
            "it may do everything",
        )


def _s3_faults(s3: S3Config) -> Iterator[SettingFault]:
    endpoints = [("storage.s3.endpoint", s3.endpoint)]
    endpoints += [(f"storage.s3.buckets.{name}.endpoint", each.endpoint) for name, each in s3.buckets.items()]
    for path, endpoint in endpoints:
        if endpoint and not URL.fullmatch(endpoint):
            yield SettingFault.about(path, f"{endpoint!r} is not a URL", "Write https://HOST or https://HOST:PORT")
    for name in (name for name in ("endpoint", "buckets") if getattr(s3, name) and not s3.used):
        yield SettingFault(
            "storage.s3.region", f"is missing beside storage.s3.{name}", "Write us-east-1 if it has none"
        )
    if len(s3.buckets) > BUCKETS_MAX:
        yield SettingFault("storage.s3.buckets", f"has more than {BUCKETS_MAX} of them", "Reach some as all others are")
    for name, bucket in s3.buckets.items():
        if not is_bucket(name):
            yield SettingFault.about(
                f"storage.s3.buckets.{name}", f"{name!r} is no name of a bucket", "Write it without s3:// and key"
            )
        if not bucket.credentials_file:
            yield SettingFault(
                f"storage.s3.buckets.{name}.credentials_file",
                "is missing",
                "Name the file with the bucket's key, or leave out the bucket if it is reached as all others are",
            )


def _storage_faults(config: NodeConfig) -> Iterator[SettingFault]:
    s3 = config.storage.s3
    yield from _s3_faults(s3)
    written = [("log.uri", config.log.uri)]
    written += [(f"storage.self_test.{n}", uri) for n, uri in enumerate(config.storage.self_test)]
    for path, uri in written:
        if fault := unwritten_sign(uri):
            yield SettingFault.about(path, *fault)
        if uri.startswith(("s3://", "s3a://")) and not s3.used:
            yield SettingFault.about(path, f"{uri} lies on S3", "Set storage.s3.region")


def _order_faults(config: NodeConfig) -> Iterator[SettingFault]:
    if config.probe.interval_min_s > config.probe.interval_max_s:
        yield SettingFault("probe.interval_max_s", "is less than probe.interval_min_s", "Give the same or more")
    if config.backoff.base_s > config.backoff.cap_s:
        yield SettingFault("backoff.cap_s", "is less than backoff.base_s", "Give the same or more")


def _notify_faults(notify: NotifyConfig) -> Iterator[SettingFault]:
    if len(notify.webhooks) > WEBHOOKS_MAX:
        yield SettingFault("notify.webhooks", f"has more than {WEBHOOKS_MAX} URLs", "Leave some out")
    for number, url in enumerate(notify.webhooks):
        path = f"notify.webhooks.{number}"
        if fault := url_fault(url):  # which does not repeat the URL: it may hold a secret
            yield SettingFault(path, fault, "Write https://HOST/PATH or http://HOST:PORT/PATH")
        elif url in notify.webhooks[:number]:
            yield SettingFault(path, "is there twice", "Remove one of the two")
    if notify.secret_file and not notify.webhooks:
        yield SettingFault("notify.webhooks", "is empty beside notify.secret_file", "Name whom to notify")
