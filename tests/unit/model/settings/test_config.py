"""The configuration's values: defaults that are valid, bounds, and settings that must agree.

Who may reach a node: nobody on other machines without TLS and authentication, unless that is said.

Waits after failures double up to a cap, with jitter, and a quarantined job is tried rarely.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.app.settings import load_settings, to_toml
from iscp.model.access.authorization import ROOTS_MAX
from iscp.model.access.security_config import AccountConfig, SecurityConfig, TlsConfig
from iscp.model.access.service_table import Role
from iscp.model.settings.config import (
    BUCKETS_MAX,
    JITTER,
    JOBS_NAMED_MAX,
    BackoffConfig,
    BucketConfig,
    EtcdConfig,
    GatewayConfig,
    JobLogConfig,
    MetricsConfig,
    NodeConfig,
    PageConfig,
    ProbeConfig,
    S3Config,
    Setting,
    StorageConfig,
    delay_s,
    quarantined,
    settings,
)
from iscp.model.settings.config_faults import faults, port_of, range_fault
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.untrusted_values import is_loopback

VALID = NodeConfig(node_id="n-1", log=JobLogConfig(uri="/lake/iscp"))
UNITLESS = {  # counts, and what is no number
    *("compact_commits", "tables_at_once", "quarantine_after", "concurrency", "sample_ratio"),
}
UNITS = ("_s", "_mb", "_max", "_min", "_bytes")


def of_s3(region: str = "eu-1", name: str = "acme", buckets: int = 1, **bucket: str) -> NodeConfig:
    own = BucketConfig(**{"credentials_file": "/keys", **bucket})
    named = {name: own} | {f"bucket-{number}": own for number in range(1, buckets)}
    return replace(VALID, storage=StorageConfig(s3=S3Config(region=region, buckets=named)))


def test_buckets_with_keys_of_their_own_are_valid() -> None:
    assert faults(of_s3(buckets=BUCKETS_MAX, region="us-east-1", endpoint="https://own")) == []


def test_the_defaults_are_valid() -> None:
    assert faults(VALID) == []
    assert [fault for each in settings() if (fault := range_fault(each, each.default))] == []


def test_every_number_names_its_unit_and_its_bounds() -> None:
    for each in settings():
        if each.kind in (int, float):
            name = each.path.rpartition(".")[2]
            assert name.endswith(UNITS) or name in UNITLESS, each.path
            assert each.least is not None or each.above is not None or "0 or less" in each.text, each.path


def test_every_setting_is_documented_with_its_default() -> None:
    text = (Path(__file__).parents[4] / "docs" / "configuration.md").read_text()
    rows = {line.split("|")[1].strip().strip("`"): line for line in text.splitlines() if line.startswith("| `")}
    for each in settings():
        row = rows.pop(each.path)
        assert each.text in row
        assert each.required or str(each.default) == "" or shown(each.default) in row, (each.path, row)
    assert not rows, "these are documented, but no settings"


def shown(default: object) -> str:
    match default:
        case bool():
            return str(default).lower()
        case float():
            return f"{default:g}"
        case tuple():
            return ", ".join(default)
        case dict():
            return ""
        case _:
            return str(default)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (replace(VALID, node_id=""), "node_id"),
        (replace(VALID, node_id="a/b"), "node_id"),
        (replace(VALID, cluster=" "), "cluster"),
        (replace(VALID, log=JobLogConfig(uri="")), "log.uri"),
        (replace(VALID, listen="7430"), "listen"),
        (replace(VALID, advertise="host:70000"), "advertise"),
        (replace(VALID, etcd=EtcdConfig(endpoints=())), "etcd.endpoints"),
        (replace(VALID, etcd=EtcdConfig(endpoints=("a:1", "b"))), "etcd.endpoints.1"),
        (replace(VALID, etcd=EtcdConfig(prefix="iscp")), "etcd.prefix"),
        (replace(VALID, etcd=EtcdConfig(margin_s=10.0)), "etcd.margin_s"),
        (replace(VALID, etcd=EtcdConfig(password="x")), "etcd.user"),
        (replace(VALID, etcd=EtcdConfig(cert_file="c", ca_file="a")), "etcd.key_file"),
        (replace(VALID, etcd=EtcdConfig(key_file="k", ca_file="a")), "etcd.cert_file"),
        (replace(VALID, etcd=EtcdConfig(cert_file="c", key_file="k")), "etcd.ca_file"),
        (replace(VALID, storage=StorageConfig(s3=S3Config(endpoint="https://s3"))), "storage.s3.region"),
        (
            replace(VALID, storage=StorageConfig(s3=S3Config(region="eu-central-1", endpoint="s3:9000"))),
            "storage.s3.endpoint",
        ),
        (of_s3(region=""), "storage.s3.region"),
        (of_s3(endpoint="own:9000"), "storage.s3.buckets.acme.endpoint"),
        (of_s3(credentials_file=""), "storage.s3.buckets.acme.credentials_file"),
        (of_s3(name="s3://acme"), "storage.s3.buckets.s3://acme"),
        (of_s3(buckets=BUCKETS_MAX + 1), "storage.s3.buckets"),
        (replace(VALID, storage=StorageConfig(self_test=("/a", "s3a://b/c"))), "storage.self_test.1"),
        (replace(VALID, log=JobLogConfig(uri="s3://b/log")), "log.uri"),
        (replace(VALID, probe=ProbeConfig(interval_min_s=301.0)), "probe.interval_max_s"),
        (replace(VALID, backoff=BackoffConfig(cap_s=1.0)), "backoff.cap_s"),
    ],
)
def test_a_fault_is_found_by_its_path(config: NodeConfig, path: str) -> None:
    assert [fault.path for fault in faults(config)] == [path]


def test_faults_of_different_settings_are_reported_at_once() -> None:
    config = replace(VALID, node_id="/", listen="x", etcd=EtcdConfig(prefix=""))
    assert [fault.path for fault in faults(config)] == ["node_id", "listen", "etcd.prefix"]


@pytest.mark.parametrize(("value", "fine"), [(1.0, False), (1.5, True), (float("nan"), False), (float("inf"), False)])
def test_an_exclusive_bound(value: float, fine: bool) -> None:
    assert (range_fault(Setting("a", float, 2.0, "", above=1.0), value) is None) is fine


@pytest.mark.parametrize(("value", "fine"), [(0, False), (1, True)])
def test_an_inclusive_bound(value: int, fine: bool) -> None:
    assert (range_fault(Setting("a", int, 2, "", least=1), value) is None) is fine


def test_the_password_is_not_shown() -> None:
    assert "s3cr3t" not in repr(replace(VALID, etcd=EtcdConfig(user="u", password="s3cr3t")))


def test_addresses() -> None:
    assert port_of("[::1]:80") == 80
    assert port_of("node-0.iscp.svc:7430") == 7430
    assert port_of("::1:80") is None


def test_what_others_call_a_node() -> None:
    assert VALID.address == VALID.listen
    assert replace(VALID, advertise="n:1").address == "n:1"
    assert replace(VALID, cluster="c", etcd=EtcdConfig(prefix="/x/")).etcd_prefix == "/x/c"


NODE = NodeConfig(node_id="n-1", log=JobLogConfig(uri="/lake"))
FILES = TlsConfig(ca_file="a", cert_file="c", key_file="k")


def test_loopback_is_this_machine_alone() -> None:
    here = ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1")
    elsewhere = ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1", "localhost.evil:1", "n0:1")
    assert [is_loopback(each) for each in (*here, *elsewhere)] == [True] * 4 + [False] * 6


@pytest.mark.parametrize(
    ("changed", "paths"),
    [
        ({"listen": "0.0.0.0:7430"}, ["listen"]),
        ({"listen": "n0.lake:7430", "gateway": GatewayConfig(listen="[::]:80")}, ["listen", "gateway.listen"]),
        ({"page": PageConfig(listen="0.0.0.0:7432")}, ["page.listen"]),
        ({"listen": "0.0.0.0:7430", "security": SecurityConfig(insecure=True)}, []),
        ({"listen": "0.0.0.0:7430", "security": SecurityConfig(tls=FILES)}, ["security.authentication"]),
        ({"listen": "0.0.0.0:7430", "security": SecurityConfig(tls=FILES, authentication=True)}, []),
        ({"listen": "0.0.0.0:7430", "security": SecurityConfig(tls=FILES, insecure=True)}, []),
        (
            {"listen": "0.0.0.0:7430", "security": SecurityConfig(authentication=True)},
            ["listen", "security.tls.ca_file"],
        ),
        ({"security": SecurityConfig(authentication=True)}, ["security.tls.ca_file"]),
        ({"security": SecurityConfig(authentication=True, insecure=True)}, []),
        ({"security": SecurityConfig(tls=FILES)}, []),
        ({"listen": "127.0.0.1:7430"}, []),
        ({"security": SecurityConfig(tls=replace(FILES, ca_file=""))}, ["security.tls.ca_file"]),
        (
            {"security": SecurityConfig(tls=TlsConfig(key_file="k"))},
            ["security.tls.ca_file", "security.tls.cert_file"],
        ),
        ({"security": SecurityConfig(tls=TlsConfig(node_name="x"))}, ["security.tls.ca_file"]),
    ],
)
def test_a_node_that_others_reach_needs_tls_and_authentication(changed: dict[str, Any], paths: list[str]) -> None:
    assert [fault.path for fault in faults(replace(NODE, **changed))] == paths


KNOWN = AccountConfig(certificates={"ana": Role.EDITOR})
GUARDED = SecurityConfig(tls=FILES, authentication=True)


@pytest.mark.parametrize(
    ("accounts", "security", "paths"),
    [
        ({"acme": KNOWN}, GUARDED, []),
        ({"acme": KNOWN}, SecurityConfig(tls=FILES), ["security.authentication"]),
        ({"acme": KNOWN}, SecurityConfig(authentication=True, insecure=True), ["accounts.acme.certificates.ana"]),
        (
            {"acme": KNOWN, "b": AccountConfig(certificates={"ANA": Role.ADMIN})},
            GUARDED,
            ["accounts.b.certificates.ANA"],
        ),
        ({" ": KNOWN}, GUARDED, ["accounts. "]),
        (
            {"acme": AccountConfig(certificates={"Node.default.iscp": Role.ADMIN})},
            GUARDED,
            ["accounts.acme.certificates.Node.default.iscp"],
        ),
        ({}, replace(GUARDED, cluster_account=""), ["security.cluster_account"]),
    ],
)
def test_who_is_known_by_what_is_refused_by_its_path(
    accounts: dict[str, AccountConfig], security: SecurityConfig, paths: list[str]
) -> None:
    found = faults(replace(NODE, accounts=accounts, security=security))
    assert [fault.path for fault in found] == paths
    assert all(fault.remedy for fault in found)


@pytest.mark.parametrize(
    ("roots", "storage", "paths"),
    [
        (("/lake/acme", "file:///lake/more"), StorageConfig(), []),
        (("s3://lake/acme", "s3://"), StorageConfig(s3=S3Config(region="eu")), []),
        (("/lake/acme", "s3://lake/acme"), StorageConfig(), ["accounts.acme.roots.1"]),
        (("lake", "/lake/..", "/x"), StorageConfig(), ["accounts.acme.roots.0", "accounts.acme.roots.1"]),
        (("/lake",) * (ROOTS_MAX + 1), StorageConfig(), ["accounts.acme.roots"]),
    ],
)
def test_roots_of_accounts_are_refused_by_their_path(
    roots: tuple[str, ...], storage: StorageConfig, paths: list[str]
) -> None:
    accounts = {"acme": AccountConfig(roots=roots)}
    found = faults(replace(NODE, accounts=accounts, security=GUARDED, storage=storage))
    assert [fault.path for fault in found] == paths
    assert all(fault.remedy for fault in found)


def test_accounts_are_written_and_read(tmp_path: Path) -> None:
    config = replace(
        NODE, accounts={"acme corp": replace(KNOWN, roots=("/lake/a",)), "system": AccountConfig()}, security=GUARDED
    )
    file = tmp_path / "node.toml"
    file.write_text(to_toml(config))
    assert load_settings(file, {}) == config
    with pytest.raises(ConfigurationError) as refused:
        load_settings(file, {"ISCP_ACCOUNTS": '{"a": {"certificates": {"x": "king"}, "rots": 1}}'})
    assert "accounts.a.certificates.x" in str(refused.value)
    assert "accounts.a.rots" in str(refused.value)


def test_it_is_said_by_file_or_variable() -> None:
    said = {"ISCP_NODE_ID": "n", "ISCP_LOG__URI": "/lake", "ISCP_SECURITY__INSECURE": "true"}
    assert load_settings(None, said).security == SecurityConfig(insecure=True)
    assert "insecure = true" in to_toml(replace(NODE, security=SecurityConfig(insecure=True)))


def test_the_name_of_nodes_is_the_clusters() -> None:
    assert replace(NODE, cluster="lake").node_name == "node.lake.iscp"
    assert replace(NODE, security=SecurityConfig(tls=replace(FILES, node_name="n.corp"))).node_name == "n.corp"


CONFIG = NodeConfig(node_id="n", log=JobLogConfig(uri="/log"))


def paths(metrics: MetricsConfig) -> list[str]:
    return [fault.path for fault in faults(replace(CONFIG, metrics=metrics))]


def test_a_node_measures_only_for_whom_it_has_a_place() -> None:
    assert not MetricsConfig().used
    assert MetricsConfig(listen="127.0.0.1:9464").used
    assert MetricsConfig(otlp_endpoint="http://collector:4318").used


def test_right_settings_have_no_fault() -> None:
    assert paths(MetricsConfig(listen="127.0.0.1:9464", otlp_endpoint="https://collector/otlp")) == []


@pytest.mark.parametrize("endpoint", ["collector:4318", "http://user:secret@collector:4318", "ftp://collector"])
def test_a_wrong_url_is_refused_without_being_repeated(endpoint: str) -> None:
    (fault,) = faults(replace(CONFIG, metrics=MetricsConfig(otlp_endpoint=endpoint)))
    assert fault.path == "metrics.otlp_endpoint"
    assert endpoint not in fault.message


def test_no_more_jobs_are_named_than_a_scrape_can_carry() -> None:
    assert paths(MetricsConfig(per_job_max=JOBS_NAMED_MAX)) == []
    assert paths(MetricsConfig(per_job_max=JOBS_NAMED_MAX + 1)) == ["metrics.per_job_max"]


def test_where_metrics_are_served_has_to_be_an_address() -> None:
    assert paths(MetricsConfig(listen="9464")) == ["metrics.listen"]


def test_metrics_are_not_served_to_other_machines_without_tls() -> None:
    assert paths(MetricsConfig(listen="0.0.0.0:9464")) == ["metrics.listen"]
    insecure = replace(CONFIG.security, insecure=True)
    assert faults(replace(CONFIG, security=insecure, metrics=MetricsConfig(listen="0.0.0.0:9464"))) == []


def test_code_that_is_not_ours_runs_where_any_kind_of_it_is_allowed() -> None:
    assert not VALID.allows_foreign_code
    for section in ("consumers", "triggers", "embedding"):
        allowing = replace(getattr(VALID, section), allow=("own",))
        assert replace(VALID, **{section: allowing}).allows_foreign_code


CONFIG_OF_BACKOFF = BackoffConfig(base_s=5, cap_s=300, quarantine_after=10, quarantine_s=3_600)


def test_five_seconds_double_up_to_five_minutes_and_then_it_is_quarantined() -> None:
    waits = [delay_s(CONFIG_OF_BACKOFF, failures, draw=0.0) for failures in range(1, 12)]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300, 3_600, 3_600]
    assert [quarantined(CONFIG_OF_BACKOFF, failures) for failures in (1, 9, 10, 11)] == [False, False, True, True]


@given(
    failures=st.integers(1, 10**9),
    draw=st.floats(0, 1, exclude_max=True),
    base_s=st.floats(1e-3, 1e3),
    factor=st.floats(1, 1e6),
)
def test_a_wait_is_never_nothing_and_never_beyond_the_cap(
    failures: int, draw: float, base_s: float, factor: float
) -> None:
    config = BackoffConfig(base_s=base_s, cap_s=base_s * factor, quarantine_after=2 * 10**9)
    wait_s = delay_s(config, failures, draw)
    assert base_s * (1 - JITTER) <= wait_s <= config.cap_s
