"""A SparkSession of the user's own: iscp works beside it, and changes nothing of it; what it lacks is named.

Each case is a process, as one has one JVM; within it sessions follow on each other.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import iscp
from iscp.model.settings.session_needs import DEFAULT_FILES, FILE_NEEDS, JARS, S3_NEEDS, SESSION_NEEDS
from iscp.spark.java import delta_jars, find_java
from iscp.spark.jvm_launch import default_cache_dir
from tests import quick_spark

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 280.0
QUICK = {name: value for name, value in quick_spark.CONF.items() if name != "spark.sql.codegen.factoryMode"}
"""Without expressions compiled, Spark cannot list a session's tables."""
LINE = re.compile(r'^  \.config\("(.+)", "(.+)"\)$', re.M)


def users_java(root: Path) -> Path:
    """A home of Java that pyspark's launcher takes: it wants a module that not every Java has, and no test needs."""
    java = root / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    without = 'for each do shift; [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"; done'
    java.write_text(f'#!/bin/sh\n{without}\nexec {find_java(os.environ).executable} "$@"\n')
    java.chmod(0o755)
    return java.parents[1]


def delta_of_users() -> list[str]:
    return [str(jar) for jar in delta_jars(default_cache_dir(os.environ), find_java(os.environ), os.environ)]


def play(
    root: Path,
    acts: Sequence[dict[str, Any]],
    *,
    jars: Sequence[str],
    master: str = "local[2]",
    conf: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """What each of the acts has found (tests/fakes/given_program.py)."""
    launch = QUICK | {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", JARS: ",".join(jars)}
    launch |= conf or {}
    order = json.dumps({"master": master, "launch": launch, "acts": acts})
    own = {"JAVA_HOME": str(users_java(root)), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "tests.fakes.given_program", str(root), order]
    ended = subprocess.run(
        command, env=os.environ | own, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert ended.returncode == 0, ended.stderr[ended.stderr.find("Traceback") :][:4000]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def lines(refused: str) -> dict[str, str]:
    return dict(LINE.findall(refused))


def assert_followed(found: dict[str, Any]) -> None:
    assert found["seen"] == ["update", "update"]
    assert found["equal"] == [True, True]
    assert found["held"] == found["wanted"]
    assert (found["changed_by_giving"], found["changed"]) == ([], [])
    assert found["written_by"].startswith("Apache-Spark")
    assert found["users_rows"] == 3  # in the user's view of the name that the view's query has for its table
    assert not found["stopped"]


@pytest.mark.slow
def test_jobs_are_kept_on_a_users_session_and_nothing_of_it_changes(tmp_path: Path) -> None:
    acts: list[dict[str, Any]] = [
        {"act": "give"},
        {"act": "follow", "by_iscp": True},
        {"act": "kill", "by_iscp": True},
        {"act": "give", "by_iscp": True, "conf": {DEFAULT_FILES: "hdfs://nowhere:1/"}},
        {"act": "stopped", "by_iscp": True},
    ]
    bare, followed, killed, elsewhere, stopped = play(tmp_path, acts, jars=[*delta_of_users(), iscp.spark_jar()])
    assert_followed(followed)
    assert killed["said"] == {"iscp": "cancelled", "user": "done"}
    assert killed["zone"] == "UTC"  # as on nodes, whatever the user has set for their own session
    assert (killed["alive"], killed["users"]) == (False, 5)
    assert "has been ended" in killed["refused"]

    needed = {name: value for name, value in SESSION_NEEDS.items() if name not in S3_NEEDS}
    assert lines(bare["refused"]) == needed  # Hadoop's S3A is not there
    assert lines(elsewhere["refused"]) == {DEFAULT_FILES: "file:///"}
    assert "has been stopped" in stopped["refused"]


def test_a_session_without_the_jar_is_refused_with_all_lines(tmp_path: Path) -> None:
    (refused,) = (each["refused"] for each in play(tmp_path, [{"act": "give"}], jars=delta_of_users()))
    assert "iscp's jar on the class path (none is beside Delta's)" in refused
    jars = ",".join([*delta_of_users(), iscp.spark_jar()])
    assert lines(refused) == {JARS: jars, **{n: v for n, v in SESSION_NEEDS.items() if n not in S3_NEEDS}}
    assert FILE_NEEDS.keys() <= lines(refused).keys()


@pytest.mark.further  # each time: the jar that is missing, above
def test_a_jar_of_another_version_and_a_session_without_delta_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "iscp-logstore.jar"
    other.write_bytes(Path(iscp.spark_jar()).read_bytes() + b"\0")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (found,) = play(first, [{"act": "give", "by_iscp": True}], jars=[*delta_of_users(), str(other)])
    assert "that of another version is there" in found["refused"]
    assert lines(found["refused"]) == {JARS: ",".join([*delta_of_users(), iscp.spark_jar()])}
    (found,) = play(second, [{"act": "give"}], jars=[iscp.spark_jar()])
    assert "has no Delta on its class path" in found["refused"]


CLUSTER = "local-cluster[1,1,1024]"
"""Executors are processes of their own there, as on a standalone cluster."""


@pytest.mark.further  # each time: a local master, above
def test_executors_that_have_the_jar_keep_jobs(tmp_path: Path) -> None:
    acts: list[dict[str, Any]] = [{"act": "follow", "by_iscp": True}]
    (followed,) = play(tmp_path, acts, jars=[*delta_of_users(), iscp.spark_jar()], master=CLUSTER)
    assert_followed(followed)


@pytest.mark.further  # each time: the jar that the driver lacks, above
def test_executors_without_the_jar_are_refused(tmp_path: Path) -> None:
    jars = delta_of_users()
    # On the class path of the driver alone, where Delta's jars have to be beside it.
    conf = {"spark.driver.extraClassPath": os.pathsep.join([*jars, iscp.spark_jar()])}
    (found,) = play(tmp_path, [{"act": "give", "by_iscp": True}], jars=jars, master=CLUSTER, conf=conf)
    assert "executors without iscp's jar" in found["refused"]
    assert lines(found["refused"]) == {JARS: ",".join([*jars, iscp.spark_jar()])}
