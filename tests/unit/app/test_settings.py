"""Configuration from a file and from variables: every fault at once, each by its path."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from iscp.app.settings import check_files, load_settings, to_toml
from iscp.model.settings.config import (
    BackoffConfig,
    BucketConfig,
    EtcdConfig,
    JobLogConfig,
    LogFormat,
    NodeConfig,
    S3Config,
    SparkConfig,
    StorageConfig,
)
from iscp.model.settings.variables import setting_variable
from iscp.model.values.errors import ConfigurationError

LEAST = {"ISCP_NODE_ID": "n-1", "ISCP_LOG__URI": "/lake/iscp"}
DEFAULTS = NodeConfig(node_id="n-1", log=JobLogConfig(uri="/lake/iscp"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "iscp.toml"


def refused(file: Path | None, environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(file, environ)
    return str(refusal.value)


def test_variables_alone_will_do() -> None:
    assert load_settings(None, LEAST) == DEFAULTS


def test_a_file_alone_will_do(file: Path) -> None:
    file.write_text('node_id = "n-1"\nlog_format = "text"\n[log]\nuri = "/lake/iscp"\n[backoff]\nbase_s = 1\n')
    assert load_settings(file, {}) == replace(DEFAULTS, log_format=LogFormat.TEXT, backoff=BackoffConfig(base_s=1.0))


def test_a_variable_wins_over_the_file(file: Path) -> None:
    file.write_text('node_id = "other"\n[log]\nuri = "/else"\n')
    assert load_settings(file, LEAST) == DEFAULTS


def test_lists_and_sections_in_variables() -> None:
    environ = {
        "ISCP_ETCD__ENDPOINTS": "a:1, b:2",
        "ISCP_SPARK__CONF": '{"spark.x.y": "1"}',
        "ISCP_BACKOFF__CAP_S": "60",
        "ISCP_CONSUMERS__ALLOW": "sqlite",
    }
    config = load_settings(None, LEAST | environ)
    assert config.etcd.endpoints == ("a:1", "b:2")
    assert config.spark.conf == {"spark.x.y": "1"}
    assert config.backoff.cap_s == 60.0
    assert config.consumers.allow == ("sqlite",)
    assert load_settings(None, LEAST | {"ISCP_ETCD__ENDPOINTS": '["c:3"]'}).etcd.endpoints == ("c:3",)


def test_what_was_written_is_read_back(file: Path) -> None:
    config = replace(
        DEFAULTS,
        log_format=LogFormat.TEXT,
        catalog={"main.type": "hive", 'a"b\\': "ü\n"},
        etcd=EtcdConfig(endpoints=("a:1", "b:2"), lease_ttl_s=5.5),
        spark=SparkConfig(conf={"spark.sql.x": "y"}, driver_memory_mb=512),
        storage=StorageConfig(s3=S3Config(region="eu-1", buckets={"a.b": BucketConfig(credentials_file="/keys")})),
    )
    file.write_text(to_toml(config))
    assert load_settings(file, {}) == config


def test_a_key_where_its_file_is_to_be_named_is_not_repeated(file: Path) -> None:
    file.write_text(
        'node_id = "n-1"\n[log]\nuri = "/lake"\n[storage.s3]\nregion = "eu-1"\n'
        '[storage.s3.buckets.acme]\nsecret_access_key = "hush"\n'
    )
    with pytest.raises(ConfigurationError) as refused:
        load_settings(file, {})
    assert "storage.s3.buckets.acme.secret_access_key" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_every_bucket_without_a_key_is_named(tmp_path: Path) -> None:
    buckets = {name: BucketConfig(credentials_file=f"{tmp_path}/{name}") for name in ("acme", "beta", "whole")}
    (tmp_path / "beta").write_text("hush")
    (tmp_path / "whole").write_text("[default]\naws_access_key_id = who\naws_secret_access_key = hush\n")
    config = replace(DEFAULTS, storage=StorageConfig(s3=S3Config(region="eu-1", buckets=buckets)))
    with pytest.raises(ConfigurationError) as refused:
        check_files(config, {})
    message = str(refused.value)
    assert [line.split(":")[0].strip() for line in message.splitlines()[1:]] == [
        f"storage.s3.buckets.{name}.credentials_file" for name in ("acme", "beta")
    ]
    assert "hush" not in message


def test_every_fault_is_reported_at_once_by_its_path(file: Path) -> None:
    file.write_text(
        'node_id = "n 1"\nnod = 4\netcd = 3\n'
        '[scheduler]\nconcurrency = "abc"\n'
        "[log]\ncompact_commits = 1\n"
        "[probe]\ninterval_min_s = 400\n"
    )
    text = refused(file, {"ISCP_SPARK__CONF": "x", "ISCP_ETCD__MARGIN_S": "10", "ISCP_FOO": ""})
    for path in (
        *("node_id", "nod", "etcd", "scheduler.concurrency", "log.uri", "log.compact_commits"),
        *("probe.interval_max_s", "etcd.margin_s", "ISCP_SPARK__CONF", "ISCP_FOO"),
    ):
        assert re.search(rf"\n  {path}:? ", text), path
    assert text.startswith("10 settings are wrong")


def test_one_fault_has_field_and_remedy() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(None, LEAST | {"ISCP_LISTEN": "7430"})
    assert refusal.value.field == "listen"
    assert "HOST:PORT" in refusal.value.remedy


def test_what_is_missing_names_its_variable() -> None:
    text = refused(None, {})
    assert setting_variable("log.uri") in text
    assert setting_variable("node_id") in text


def test_a_misspelt_setting_names_the_right_one(file: Path) -> None:
    file.write_text("[etcd]\nlease_ttl = 5\n")
    assert "Did you mean etcd.lease_ttl_s?" in refused(file, LEAST)
    assert "Did you mean" not in refused(None, LEAST | {"ISCP_BOGUS": "1"}), "all begin with ISCP_"
    assert "Did you mean ISCP_ETCD__ENDPOINTS?" in refused(None, LEAST | {"ISCP_ETCD__ENDPOINT": "a:1"})


def test_variables_that_are_no_settings_are_left_alone() -> None:
    others = {"ISCP_ETCD": "/bin/etcd", "ISCP_CACHE": "/c", "ISCP_FAILPOINTS": "x", "ISCP_ENDPOINT": "a:1"}
    links = {"ISCP_PORT": "tcp://1", "ISCP_PORT_7430_TCP_ADDR": "1", "ISCP_ETCD_SERVICE_HOST": "1"}
    assert load_settings(None, LEAST | others | links) == DEFAULTS


def test_a_wrong_password_is_not_repeated(file: Path) -> None:
    file.write_text('[etcd]\nuser = "u"\npassword = 123456\n')
    assert "123456" not in refused(file, LEAST)


def test_a_webhook_that_is_no_list_is_not_repeated(file: Path) -> None:
    file.write_text('[notify]\nwebhooks = "https://hooks.example/T/TOKEN"\n')
    assert "TOKEN" not in refused(file, LEAST)


def test_a_section_in_the_place_of_a_value(file: Path) -> None:
    file.write_text("[listen]\nport = 1\n")
    assert "listen: " in refused(file, LEAST)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    assert refused(file, LEAST).startswith(f"{file} cannot be read (No such file or directory)")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node_id =", "is not TOML"),
        ("a = " + "[" * 90_000, "is not TOML"),
        (f"x = {'9' * 5_000}", "is not TOML"),
        (".".join("a" * 20_000) + " = 1", "has a key of more than 100 parts in line 1"),
        ("#" * 200_000, "has more than 100000 characters"),
    ],
    ids=["broken", "deep", "too many digits", "too many parts", "too long"],
)
def test_a_file_that_cannot_be_read_is_one_fault(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    message = refused(file, LEAST)
    assert message.startswith(f"{file} {words}")
    assert message.endswith("See docs/configuration.md")


def test_a_variable_that_is_nested_too_deep_is_named() -> None:
    assert "ISCP_SPARK__CONF is not JSON" in refused(None, LEAST | {"ISCP_SPARK__CONF": "[" * 50_000})
