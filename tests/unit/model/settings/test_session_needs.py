"""What a user's session must have, and how each thing that it lacks is named with the line that adds it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from iscp.model.settings.session_needs import (
    CATALOG,
    DEFAULT_FILES,
    DELTA_EXTENSION,
    EXTENSIONS,
    FILE_NEEDS,
    JARS,
    KNOWN_DELTA,
    KNOWN_SPARK,
    S3_NEEDS,
    SESSION_NEEDS,
    JarState,
    SessionFacts,
    require_session,
)
from iscp.model.values.errors import InvalidRequest

JAR = "/opt/iscp/iscp-logstore.jar"
FIT = SessionFacts(
    pyspark=f"{KNOWN_SPARK}.1",
    spark=f"{KNOWN_SPARK}.1",
    delta=f"{KNOWN_DELTA}.1",
    jar=JarState.OURS,
    s3=True,
    pinned=True,
    conf=SESSION_NEEDS,
)


def refusal(facts: SessionFacts) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        require_session(facts, JAR)
    assert refused.value.field == "spark"
    assert refused.value.remedy
    return refused.value


def without(name: str, value: str | None = None) -> SessionFacts:
    conf = {**SESSION_NEEDS, name: value}
    return replace(FIT, conf={each: setting for each, setting in conf.items() if setting is not None})


def test_what_has_all_is_taken() -> None:
    require_session(FIT, JAR)
    require_session(replace(FIT, spark=f"{KNOWN_SPARK}.0", delta=f"{KNOWN_DELTA}.0"), JAR)
    require_session(without(DEFAULT_FILES, "file:///"), JAR)
    require_session(without(EXTENSIONS, f"a.b.Other, {DELTA_EXTENSION}"), JAR)
    require_session(without(CATALOG, "io.unitycatalog.spark.UCSingleCatalog"), JAR)


@pytest.mark.parametrize("name", [*FILE_NEEDS, *S3_NEEDS, CATALOG, EXTENSIONS])
def test_each_setting_is_named_with_its_line(name: str) -> None:
    refused = refusal(without(name))
    assert name in refused.message
    assert refused.remedy.splitlines()[1:] == [f'  .config("{name}", "{SESSION_NEEDS[name]}")']


def test_all_that_is_missing_is_named_at_once() -> None:
    refused = refusal(replace(FIT, conf={CATALOG: "builtin"}, jar=JarState.ABSENT))
    wanted = {JARS: JAR, **SESSION_NEEDS}
    assert sorted(refused.remedy.splitlines()[1:]) == sorted(f'  .config("{n}", "{v}")' for n, v in wanted.items())


def test_what_a_user_has_besides_stays_in_the_lines() -> None:
    assert f'"{EXTENSIONS}", "a.Other,{DELTA_EXTENSION}"' in refusal(without(EXTENSIONS, "a.Other")).remedy
    jars = {**SESSION_NEEDS, JARS: f"/lib/delta.jar,/old/{Path(JAR).name}"}
    refused = refusal(replace(FIT, conf=jars, jar=JarState.OTHER))
    assert f'"{JARS}", "/lib/delta.jar,{JAR}"' in refused.remedy
    assert "another version" in refused.message


def test_buckets_need_nothing_where_spark_cannot_open_them() -> None:
    conf = {name: value for name, value in SESSION_NEEDS.items() if name not in S3_NEEDS}
    require_session(replace(FIT, conf=conf, s3=False), JAR)
    refusal(replace(FIT, conf=conf, s3=True))


def test_paths_that_spark_would_open_elsewhere_are_refused() -> None:
    assert "hdfs://there" in refusal(without(DEFAULT_FILES, "hdfs://there")).message


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        (replace(FIT, spark="4.0.1", pyspark="4.0.1"), "Spark 4.0.1"),
        (replace(FIT, spark="4.0.1"), "pyspark==4.0.1"),
        (replace(FIT, delta="4.4.0"), "Delta 4.4.0"),
        (replace(FIT, delta=""), "io.delta:delta-spark"),
        (replace(FIT, pinned=False), "PYSPARK_PIN_THREAD"),
    ],
    ids=["spark", "pyspark", "delta", "no-delta", "threads"],
)
def test_versions_and_threads_are_refused_by_name(facts: SessionFacts, named: str) -> None:
    assert named in str(refusal(facts))


def test_the_known_versions_are_those_that_are_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    node = project["optional-dependencies"]["node"]
    pins = {found[1]: found[2] for each in node if (found := re.match(r"([\w-]+)==(\d+\.\d+)", each))}
    assert (pins["pyspark"], pins["delta-spark"]) == (KNOWN_SPARK, KNOWN_DELTA)
