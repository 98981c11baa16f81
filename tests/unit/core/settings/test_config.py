"""The configuration's values: defaults that are valid, bounds, and settings that must agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from iscp.core.settings.config import (
    BUCKETS_MAX,
    BackoffConfig,
    BucketConfig,
    EtcdConfig,
    JobLogConfig,
    NodeConfig,
    ProbeConfig,
    S3Config,
    StorageConfig,
)
from iscp.core.settings.config_faults import faults, port_of, range_fault
from iscp.core.settings.setting_list import Setting, settings

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
