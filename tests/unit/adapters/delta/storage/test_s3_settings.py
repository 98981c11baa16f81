"""The S3 settings of Spark, deltalake and obstore lead to the same store, and the jars that Spark needs for it."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from iscp.adapters.delta.spark.jvm_launch import SparkSettings, default_conf
from iscp.adapters.delta.storage.s3_settings import LOG_STORE, s3_conf, s3_environ
from iscp.core.config import S3Config

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


@pytest.mark.parametrize(("ivy", "sums"), [("ivy.xml", "jars.sha256"), ("ivy-s3.xml", "jars-s3.sha256")])
def test_what_is_resolved_is_what_is_trusted(ivy: str, sums: str) -> None:
    package = files("iscp.adapters.delta.spark")
    named = re.findall(r'name="([^"]+)" rev="([^"]+)" transitive="false"', (package / ivy).read_text())
    trusted = [line.split()[1] for line in (package / sums).read_text().splitlines()]
    assert sorted(f"{name}-{rev}.jar" for name, rev in named) == sorted(trusted)
