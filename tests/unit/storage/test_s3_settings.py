"""The S3 settings of Spark, deltalake and obstore lead to the same store, and the jars that Spark needs for it."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path

import pytest

from iscp.model.settings.config import BucketConfig, S3Config
from iscp.model.settings.variables import BUCKETS_VARIABLE
from iscp.model.values.errors import ConfigurationError
from iscp.spark.jvm_launch import SparkSettings, default_conf
from iscp.storage.s3_settings import (
    LOG_STORE,
    enter_s3,
    s3_conf,
    s3_environ,
    table_options,
)

AWS = S3Config(region="eu-central-1")
OWN = S3Config(region="us-east-1", endpoint="http://127.0.0.1:9000/")


def test_who_does_not_use_s3_gets_no_variables(tmp_path: Path) -> None:
    assert s3_environ(S3Config()) == {}
    assert not [name for name in default_conf(SparkSettings(work_dir=tmp_path)) if "s3" in name]


def test_all_go_to_the_same_store() -> None:
    environ, conf = s3_environ(OWN), s3_conf(OWN, {}, None)
    assert environ["AWS_ENDPOINT_URL"] == conf["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert environ["AWS_REGION"] == conf["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"
    assert environ["AWS_ALLOW_HTTP"] == conf["spark.hadoop.fs.s3a.path.style.access"] == "true"


def test_an_endpoint_of_the_environment_is_sparks_too() -> None:
    assert "AWS_ENDPOINT_URL" not in s3_environ(AWS)
    conf = s3_conf(AWS, {"AWS_ENDPOINT_URL": "https://store"}, None)
    assert conf["spark.hadoop.fs.s3a.endpoint"] == "https://store"
    assert "spark.hadoop.fs.s3a.endpoint" not in s3_conf(AWS, {}, None)


def test_keys_reach_executors_elsewhere_by_sparks_settings() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_SESSION_TOKEN": "now"}
    conf = s3_conf(AWS, keys, None, by_conf=True)
    assert conf["spark.hadoop.fs.s3a.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")
    assert conf["spark.hadoop.fs.s3a.secret.key"] == "hush"
    role = s3_conf(AWS, {}, None, by_conf=True)
    assert role["spark.hadoop.fs.s3a.aws.credentials.provider"].endswith(".DefaultCredentialsProvider")


def test_commits_go_through_the_log_store_however_s3_is_spelled(tmp_path: Path) -> None:
    conf = default_conf(SparkSettings(work_dir=tmp_path, s3=AWS))
    assert {conf[f"spark.delta.logStore.{scheme}.impl"] for scheme in ("s3", "s3a")} == {LOG_STORE}
    assert conf["spark.hadoop.fs.s3a.buffer.dir"].startswith(str(tmp_path))


def buckets(tmp_path: Path) -> S3Config:
    """Two in the store of all, and `far` in another one."""
    named = {}
    for name in ("acme", "acme.secret", "far"):
        (file := tmp_path / name).write_text(
            f"[default]\naws_access_key_id = {name}\naws_secret_access_key = hush-{name}\n"
        )
        named[name] = BucketConfig(credentials_file=str(file))
    (tmp_path / "far").open("a").write("aws_session_token = now\n")
    far = BucketConfig(credentials_file=named["far"].credentials_file, region="eu-1", endpoint="https://far/")
    return S3Config(region="us-east-1", endpoint="http://127.0.0.1:9000", buckets=named | {"far": far})


def test_spark_and_deltalake_reach_a_bucket_by_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = buckets(tmp_path)
    conf = s3_conf(config, {"AWS_ACCESS_KEY_ID": "all", "AWS_SECRET_ACCESS_KEY": "hush-all"}, None, by_conf=True)
    monkeypatch.setenv(BUCKETS_VARIABLE, s3_environ(config)[BUCKETS_VARIABLE])
    for name in config.buckets:
        options = table_options(f"s3://{name}/table") or {}
        own = f"spark.hadoop.fs.s3a.bucket.{name}."
        assert conf[f"{own}access.key"] == options["AWS_ACCESS_KEY_ID"] == name
        assert conf[f"{own}secret.key"] == options["AWS_SECRET_ACCESS_KEY"] == f"hush-{name}"
        assert conf.get(f"{own}session.token") == options.get("AWS_SESSION_TOKEN")
        assert conf.get(f"{own}endpoint") == options.get("AWS_ENDPOINT_URL")
        assert conf.get(f"{own}endpoint.region") == options.get("AWS_REGION")
        assert (conf[f"{own}aws.credentials.provider"].rpartition(".")[2]) == (
            "TemporaryAWSCredentialsProvider" if name == "far" else "SimpleAWSCredentialsProvider"
        )
    assert conf["spark.hadoop.fs.s3a.bucket.far.path.style.access"] == "true"
    assert conf["spark.hadoop.fs.s3a.access.key"] == "all"


def test_no_secret_of_a_bucket_is_in_the_environment(tmp_path: Path) -> None:
    environ = s3_environ(buckets(tmp_path))
    assert "hush" not in str(environ)
    assert "now" not in str(environ)


def test_a_file_without_a_key_is_named_before_the_environment_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BUCKETS_VARIABLE, "of whoever started it")
    config = buckets(tmp_path)
    (tmp_path / "far").unlink()
    with pytest.raises(ConfigurationError) as refused:
        enter_s3(config)
    assert os.environ[BUCKETS_VARIABLE] == "of whoever started it"
    assert refused.value.field == "storage.s3.buckets.far.credentials_file"
    enter_s3(S3Config())
    assert BUCKETS_VARIABLE not in os.environ


def test_a_key_that_is_replaced_counts_after_a_restart_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in s3_environ(config := buckets(tmp_path)):
        monkeypatch.setenv(name, "")
    enter_s3(config)
    (tmp_path / "acme").unlink()
    assert (table_options("s3://acme/table") or {})["AWS_SECRET_ACCESS_KEY"] == "hush-acme"


@pytest.mark.parametrize(("ivy", "sums"), [("ivy.xml", "jars.sha256"), ("ivy-s3.xml", "jars-s3.sha256")])
def test_what_is_resolved_is_what_is_trusted(ivy: str, sums: str) -> None:
    package = files("iscp.spark")
    named = re.findall(r'name="([^"]+)" rev="([^"]+)" transitive="false"', (package / ivy).read_text())
    trusted = [line.split()[1] for line in (package / sums).read_text().splitlines()]
    assert sorted(f"{name}-{rev}.jar" for name, rev in named) == sorted(trusted)
