"""When an archive of the JVM's classes is used, and which archives are kept."""

from __future__ import annotations

import os
from pathlib import Path

from iscp.adapters.delta.spark.class_archive import ARCHIVES_MAX, ClassArchive
from iscp.adapters.delta.spark.java import Java

JAVA = Java(Path("/java"), 17, "Maker 17.0.15+1")


def jar(directory: Path, content: str = "x", time_s: int = 1_000_000) -> Path:
    path = directory / "a.jar"
    path.write_text(content)
    os.utime(path, (time_s, time_s))
    return path


def test_another_java_or_jar_requires_another_archive(tmp_path: Path) -> None:
    first = ClassArchive(tmp_path, JAVA, [jar(tmp_path)]).path
    assert ClassArchive(tmp_path, JAVA, [jar(tmp_path)]).path == first
    assert ClassArchive(tmp_path, Java(JAVA.home, 17, "Maker 17.0.16+1"), [jar(tmp_path)]).path != first
    assert ClassArchive(tmp_path, JAVA, [jar(tmp_path, content="xy")]).path != first
    assert ClassArchive(tmp_path, JAVA, [jar(tmp_path, time_s=2_000_000)]).path != first


def test_nothing_is_mapped_before_it_is_made(tmp_path: Path) -> None:
    assert ClassArchive(tmp_path, JAVA, []).options() == []


def test_a_made_archive_is_mapped_on_top_of_javas_own(tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    bare = ClassArchive(tmp_path, JAVA, [])
    whole = ClassArchive(tmp_path, Java(home, 17, "Maker"), [])
    for archive in (bare, whole):
        made = tmp_path / "made"
        made.touch()
        archive.publish(made)
    assert whole.options()[0] == f"-XX:SharedArchiveFile={whole.path}"
    base, top = bare.options()[0].removeprefix("-XX:SharedArchiveFile=").split(":")
    assert top == str(bare.path)
    assert Path(base).parent == tmp_path


def test_only_the_latest_archives_are_kept(tmp_path: Path) -> None:
    for age in range(ARCHIVES_MAX + 2):
        old = tmp_path / f"classes-{age}.jsa"
        old.touch()
        os.utime(old, (1_000 - age, 1_000 - age))
    made = tmp_path / "made"
    made.touch()
    archive = ClassArchive(tmp_path, JAVA, [])
    archive.publish(made)
    kept = sorted(path.name for path in tmp_path.glob("classes-*.jsa") if path != archive.path)
    assert archive.path.exists()
    assert kept == [f"classes-{age}.jsa" for age in range(ARCHIVES_MAX)]
