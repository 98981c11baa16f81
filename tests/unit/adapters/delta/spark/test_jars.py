"""Delta's jars: resolved once, verified always, never half there. With a real Java and a real Ivy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iscp.adapters.delta.spark.jars import IVY_SETTINGS, delta_jars, spark_jars
from iscp.adapters.delta.spark.java import Java, find_java
from iscp.adapters.delta.spark.jvm_launch import default_cache_dir
from iscp.core.values.errors import ConfigurationError, Unavailable

NO_JAVA = Java(Path("/nowhere"), 17, "none")


@pytest.fixture(scope="module")
def java() -> Java:
    return find_java(os.environ)


@pytest.fixture(scope="module")
def repository(java: Java) -> Path:
    """The directory of the machine's own cached jars."""
    return delta_jars(default_cache_dir(os.environ), java, os.environ)[0].parent


def from_directory(settings: Path, directory: Path) -> dict[str, str]:
    """An environment whose Ivy knows only `directory`."""
    settings.write_text(
        '<ivysettings><settings defaultResolver="files"/><resolvers><filesystem name="files">'
        f'<artifact pattern="{directory}/[artifact]-[revision].[ext]"/>'
        "</filesystem></resolvers></ivysettings>"
    )
    return {**os.environ, IVY_SETTINGS: str(settings)}


def test_cached_jars_need_neither_network_nor_java(tmp_path: Path, repository: Path) -> None:
    nowhere = from_directory(tmp_path / "ivy.xml", tmp_path / "empty")
    jars = delta_jars(repository.parent, NO_JAVA, nowhere)
    assert len(jars) == 7
    assert all(jar.parent == repository for jar in jars)


def test_an_empty_cache_is_filled_from_where_the_settings_point(tmp_path: Path, repository: Path, java: Java) -> None:
    environ = from_directory(tmp_path / "ivy.xml", repository)
    jars = delta_jars(tmp_path / "cache", java, environ)
    assert [jar.read_bytes() for jar in jars] == [(repository / jar.name).read_bytes() for jar in jars]
    left = sorted(path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith("trust-"))
    assert left == [repository.name, "jars.lock"]


def test_a_damaged_jar_is_resolved_again(tmp_path: Path, repository: Path, java: Java) -> None:
    environ = from_directory(tmp_path / "ivy.xml", repository)
    (damaged, *_) = delta_jars(tmp_path / "cache", java, environ)
    damaged.write_bytes(b"half of it")
    delta_jars(tmp_path / "cache", java, environ)
    assert damaged.read_bytes() == (repository / damaged.name).read_bytes()


def test_jars_that_cannot_be_had_are_temporary_and_leave_nothing(tmp_path: Path, java: Java) -> None:
    environ = from_directory(tmp_path / "ivy.xml", tmp_path / "empty")
    with pytest.raises(Unavailable, match=r"(?s)delta-spark.*ISCP_IVY_SETTINGS"):
        delta_jars(tmp_path / "cache", java, environ)
    assert not list((tmp_path / "cache").glob("*jars-*"))


def test_other_jars_than_the_trusted_are_refused(tmp_path: Path, repository: Path, java: Java) -> None:
    (tmp_path / "forged").mkdir()
    for jar in repository.iterdir():
        (tmp_path / "forged" / jar.name).write_bytes(b"something else")
    environ = from_directory(tmp_path / "ivy.xml", tmp_path / "forged")
    with pytest.raises(ConfigurationError, match=r"not what the package trusts: delta-kernel-api-4\.3\.1\.jar"):
        delta_jars(tmp_path / "cache", java, environ)
    assert not list((tmp_path / "cache").glob("*jars-*"))


def test_two_processes_that_fill_one_cache_both_get_whole_jars(tmp_path: Path, repository: Path) -> None:
    environ = from_directory(tmp_path / "ivy.xml", repository)
    program = (
        "import os, pathlib, sys; from iscp.adapters.delta.spark import jars, java;"
        "print(len(jars.delta_jars(pathlib.Path(sys.argv[1]), java.find_java(os.environ), os.environ)))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cache")]
    both = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [child.communicate(timeout=60)[0].strip() for child in both] == ["7", "7"]


def test_sparks_own_jars_come_in_a_fixed_order() -> None:
    jars = spark_jars()
    assert jars == sorted(jars)
    assert any(jar.name.startswith("spark-core_") for jar in jars)
