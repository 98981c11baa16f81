"""Put-if-absent on a local path, with real processes: JVMs that use Delta's log stores, and delta-rs.

A JVM here is a bare one with a gateway: the log store class itself is raced, with no Spark around it. These tests have
a process of their own: once a session of Spark was started in a process, pyspark translates the exceptions of every
gateway in it through that session's JVM, and takes one JVM's objects for another's.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError

from iscp.delta.selftest import commit_race as races
from iscp.delta.selftest.commit_race import (
    Breach,
    Contender,
    DeltaRsContender,
    Round,
    author_of,
    breaches,
    race,
)
from tests.race.jvms import AtOnce, Jvm

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

CHUNK = 100
"""Versions between checkpoints: delta-rs reads all commits since the last."""

SPARK_DEFAULT = "io.delta.storage.HDFSLogStore"
LOOK_THEN_RENAME = "io.delta.storage.LocalLogStore"


def commit_file(directory: Path, version: int) -> Path:
    return Path(races.commit_file(str(directory), version))


def race_on_one_table(table: Path, contenders: list[Contender], versions: int) -> tuple[list[Round], float]:
    """Races `versions` commits of one table, with a checkpoint every CHUNK.

    As log cleanup does, it deletes the commits before the checkpoint, once the chunk after them is over, and
    only if they still hold what was found when their own chunk ended.
    """
    directory = table / "_delta_log"
    rounds, old, began_s = list[Round](), list[Round](), time.monotonic()
    for first in range(1, versions + 1, CHUNK):
        chunk = race(str(directory), contenders, range(first, min(first + CHUNK, versions + 1)))
        rounds += chunk
        for outcome in old:
            assert commit_file(directory, outcome.version).read_bytes() == outcome.content, "overwritten later"
            commit_file(directory, outcome.version).unlink()
        old = chunk
        DeltaTable(table).create_checkpoint()
    return rounds, time.monotonic() - began_s


def assert_fair(table: Path, rounds: list[Round], took_s: float, contenders: list[Contender]) -> None:
    wins = Counter(name for outcome in rounds for name in outcome.winners)
    log.info("%d versions in %.1f s, won by %s", len(rounds), took_s, dict(wins))
    assert breaches(rounds) == []
    assert DeltaTable(table).version() == len(rounds)
    # Otherwise it was no race.
    assert all(wins[contender.name] >= len(rounds) / 1000 for contender in contenders), wins


def sizes(everyday: int) -> list[Any]:
    return [everyday, pytest.param(20_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])]


@pytest.mark.parametrize("versions", sizes(400))
def test_two_jvms(
    tmp_path: Path,
    jvms: Callable[[], Jvm],
    delta_rs: Callable[..., DeltaRsContender],
    pool: ThreadPoolExecutor,
    versions: int,
) -> None:
    delta_rs(tmp_path).close()  # makes the table
    contenders = [AtOnce(jvms().contender(tmp_path / "_delta_log", name), pool) for name in ("a", "b")]
    assert_fair(tmp_path, *race_on_one_table(tmp_path, [*contenders], versions), [*contenders])


@pytest.mark.parametrize("versions", sizes(200))
def test_a_jvm_and_delta_rs(
    tmp_path: Path,
    jvms: Callable[[], Jvm],
    delta_rs: Callable[..., DeltaRsContender],
    pool: ThreadPoolExecutor,
    versions: int,
) -> None:
    other = delta_rs(tmp_path)
    spark = AtOnce(jvms().contender(tmp_path / "_delta_log", "spark"), pool)
    contenders: list[Contender] = [spark, other]
    assert_fair(tmp_path, *race_on_one_table(tmp_path, contenders, versions), contenders)


@pytest.mark.parametrize("versions", sizes(200))
def test_two_of_delta_rs(tmp_path: Path, delta_rs: Callable[..., DeltaRsContender], versions: int) -> None:
    contenders: list[Contender] = [delta_rs(tmp_path, "a"), delta_rs(tmp_path, "b")]
    assert_fair(tmp_path, *race_on_one_table(tmp_path, contenders, versions), contenders)


@pytest.mark.parametrize(
    ("class_name", "versions"),
    [
        (LOOK_THEN_RENAME, CHUNK),
        pytest.param(SPARK_DEFAULT, 20_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
    ],
)
def test_control_that_the_race_convicts_delta_own_stores(
    tmp_path: Path, jvms: Callable[[], Jvm], pool: ThreadPoolExecutor, class_name: str, versions: int
) -> None:
    """They check and then rename: both return that they won, or one that returned a loss has overwritten."""
    contenders = [AtOnce(jvms().contender(tmp_path, name, class_name), pool) for name in ("a", "b")]
    found, raced = list[tuple[int, Breach]](), 0
    while not found and raced < versions:
        found = breaches(race(str(tmp_path), contenders, range(raced + 1, raced + CHUNK + 1)))
        raced += CHUNK
    log.info("%s: of %d went wrong: %s", class_name, raced, found)
    assert {breach for _, breach in found} & {Breach.SEVERAL_WINNERS, Breach.OVERWRITTEN}


# --- The log store by itself ---


@pytest.fixture
def jvm(jvms: Callable[[], Jvm]) -> Jvm:
    return jvms()


def java_class_of(fault: pytest.ExceptionInfo[Py4JJavaError]) -> str:
    return str(fault.value.java_exception.getClass().getName())


def test_a_taken_version_is_refused_and_left_alone(tmp_path: Path, jvm: Jvm) -> None:
    commit = tmp_path / "1.json"
    commit.write_text("theirs\n")
    with pytest.raises(Py4JJavaError) as refused:
        jvm.store().write(jvm.path(commit), jvm.lines("ours"), False, jvm.conf)
    assert java_class_of(refused) == "java.nio.file.FileAlreadyExistsException"
    assert commit.read_text() == "theirs\n"
    assert os.listdir(tmp_path) == ["1.json"], "no temporary file stays"


def test_overwrite_replaces_at_once_and_leaves_nothing_beside(tmp_path: Path, jvm: Jvm) -> None:
    hint = tmp_path / "_last_checkpoint"
    hint.write_text("old")
    with hint.open() as reader:
        jvm.store().write(jvm.path(hint), jvm.lines("new"), True, jvm.conf)
        assert reader.read() == "old", "one who reads meanwhile sees the whole of the old"
    assert hint.read_text() == "new\n"
    assert os.listdir(tmp_path) == ["_last_checkpoint"]


def test_a_missing_log_directory_is_said_to_be_missing(tmp_path: Path, jvm: Jvm) -> None:
    with pytest.raises(Py4JJavaError) as refused:
        jvm.store().write(jvm.path(tmp_path / "gone" / "1.json"), jvm.lines("x"), False, jvm.conf)
    assert java_class_of(refused) == "java.io.FileNotFoundException"
    with pytest.raises(Py4JJavaError) as unread:
        jvm.store().read(jvm.path(tmp_path / "1.json"), jvm.conf)
    assert java_class_of(unread) == "java.io.FileNotFoundException", "Delta takes this, and no other, for absent"


def test_other_file_systems_are_refused(jvm: Jvm) -> None:
    path = jvm.view.org.apache.hadoop.fs.Path("s3a://bucket/_delta_log/1.json")
    with pytest.raises(Py4JJavaError, match="HardLinkLogStore is for local paths"):
        jvm.store().write(path, jvm.lines("x"), False, jvm.conf)


def test_an_awkward_path_is_taken_literally(tmp_path: Path, jvm: Jvm) -> None:
    log = tmp_path / "a b%20c#d"
    log.mkdir()
    jvm.store().write(jvm.path(log / "1.json"), jvm.lines("x"), False, jvm.conf)
    assert (log / "1.json").read_text() == "x\n"


def test_a_stale_checksum_of_another_writer_breaks_no_read(tmp_path: Path, jvm: Jvm) -> None:
    """Hadoop's local file system verifies against `.NAME.crc`, which delta-rs neither writes nor removes."""
    hadoop = jvm.path(tmp_path).getFileSystem(jvm.conf)
    for name in ("1.json", "_last_checkpoint"):
        stream = hadoop.create(jvm.path(tmp_path / name))
        stream.writeBytes("an earlier content\n")
        stream.close()
        assert (tmp_path / f".{name}.crc").exists()
    (tmp_path / "1.json").unlink()  # as `rm *` does it: the hidden file stays

    jvm.store().write(jvm.path(tmp_path / "1.json"), jvm.lines("ours"), False, jvm.conf)
    stream = hadoop.open(jvm.path(tmp_path / "1.json"))
    assert stream.readLine() == "ours"
    stream.close()

    (tmp_path / "_last_checkpoint").write_text("by delta-rs\n")
    lines = jvm.store().read(jvm.path(tmp_path / "_last_checkpoint"), jvm.conf)
    assert lines.next() == "by delta-rs"
    lines.close()


def test_checkpoints_are_to_be_written_elsewhere_and_renamed(tmp_path: Path, jvm: Jvm) -> None:
    """Delta writes them past the log store: written in place, a kill would leave a torn one."""
    assert jvm.store().isPartialWriteVisible(jvm.path(tmp_path), jvm.conf)


def test_an_interrupted_thread_learns_that_its_commit_landed(tmp_path: Path, jvm: Jvm) -> None:
    jvm.view.java.lang.Thread.currentThread().interrupt()
    jvm.store().write(jvm.path(tmp_path / "1.json"), jvm.lines("x"), False, jvm.conf)
    assert (tmp_path / "1.json").exists()
    assert jvm.view.java.lang.Thread.interrupted(), "and the interrupt is not lost"


# --- kill -9 in the middle of commits ---

KILLS = [4, pytest.param(60, marks=[pytest.mark.full, pytest.mark.timeout(900)])]
LIFE_S = (0.02, 0.4)
SEED = 20_130_101


def commit_until_killed(contender: Contender, kill: Callable[[], None], first: int, life_s: float) -> int:
    """Commits one version after the other until `kill` ends the writer; the last that returned a win."""
    version = first - 1
    threading.Timer(life_s, kill).start()
    try:
        while True:
            contender.prepare(version + 1)
            contender.start()
            assert contender.result(), "nobody else writes"
            version += 1
    except (OSError, Py4JError):
        return version


def intact_versions(log: Path) -> list[int]:
    """The versions of a log, each of which must be whole."""
    versions = sorted(int(path.stem) for path in log.glob("*.json"))
    for version in versions[1:]:
        assert author_of(commit_file(log, version).read_bytes(), version), f"{version} is torn"
    return versions


def assert_survived(log: Path, confirmed: int) -> int:
    """None that was confirmed is lost, none is torn; at most the one under way landed unconfirmed."""
    versions = intact_versions(log)
    assert versions == list(range(len(versions)))
    assert confirmed <= versions[-1] <= confirmed + 1
    return versions[-1]


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_jvm_leaves_no_torn_or_lost_version(
    tmp_path: Path, jvms: Callable[[], Jvm], delta_rs: Callable[..., DeltaRsContender], kills: int
) -> None:
    delta_rs(tmp_path).close()
    directory, last, lives = tmp_path / "_delta_log", 0, random.Random(SEED)
    for _ in range(kills):
        jvm = jvms()
        contender = jvm.contender(directory, "spark")
        confirmed = commit_until_killed(contender, jvm.child.kill, last + 1, lives.uniform(*LIFE_S))
        jvm.close()
        last = assert_survived(directory, confirmed)
        DeltaTable(tmp_path).create_checkpoint()
    log.info("%d kills in %d commits; orphans: %d", kills, last, len(list(directory.glob(".*"))))
    assert DeltaTable(tmp_path).version() == last
    orphans = {path.name for path in directory.iterdir()} - {f"{v:020}.json" for v in range(last + 1)}
    assert all(name.startswith(".") or "checkpoint" in name for name in orphans)


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_delta_rs_leaves_no_torn_or_lost_version(
    tmp_path: Path, jvm: Jvm, delta_rs: Callable[..., DeltaRsContender], kills: int
) -> None:
    delta_rs(tmp_path).close()
    directory, last, lives = tmp_path / "_delta_log", 0, random.Random(SEED)
    for _ in range(kills):
        contender = delta_rs(tmp_path)
        confirmed = commit_until_killed(contender, contender.kill, last + 1, lives.uniform(*LIFE_S))
        last = assert_survived(directory, confirmed)
        # The other kind of writer goes on from there, and past what the dead one has left.
        successor = jvm.contender(directory, "spark")
        successor.prepare(last + 1)
        successor.start()
        assert successor.result()
        last += 1
        DeltaTable(tmp_path).create_checkpoint()
    log.info("%d kills in %d commits; orphans: %d", kills, last, len(list(directory.glob("*#*"))))
    assert DeltaTable(tmp_path).version() == last
    found = jvm.store().listFrom(jvm.path(commit_file(directory, 0)), jvm.conf)
    assert found.next().getPath().getName() == commit_file(directory, 0).name
