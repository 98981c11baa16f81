"""What is refused before any call to a JVM, and what a session has on its class path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import iscp
from iscp.model.settings.config import S3Config
from iscp.model.settings.session_needs import FILE_NEEDS, JARS, S3_NEEDS
from iscp.model.values.errors import InvalidRequest
from iscp.spark.given_spark import GivenSpark
from iscp.spark.java import log_store_jar
from iscp.spark.jvm_launch import SparkSettings, default_conf
from iscp.storage.s3_settings import s3_conf

Connected: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})


def test_a_session_of_spark_connect_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidRequest, match=r"spark is a session of Spark Connect.* no way to the JVM") as refused:
        GivenSpark(Connected())
    assert "leave it out" in refused.value.remedy


def test_what_is_no_session_is_refused() -> None:
    nothing: Any = "local[2]"
    with pytest.raises(InvalidRequest, match="spark is a str"):
        GivenSpark(nothing)


def test_the_jar_and_the_settings_are_those_of_nodes(tmp_path: Path) -> None:
    conf = iscp.spark_conf()
    assert conf[JARS] == iscp.spark_jar() == str(log_store_jar())
    of_nodes = default_conf(SparkSettings(work_dir=tmp_path)) | s3_conf(S3Config(region="eu"), {}, None)
    assert {name: of_nodes[name] for name in conf if name != JARS} == {n: v for n, v in conf.items() if n != JARS}
    assert conf.keys() >= {*FILE_NEEDS, *S3_NEEDS}
