"""Put-if-absent on S3, with real processes: JVMs that use the log store for S3, and delta-rs, on a server of its own.

As on local paths (`test_put_if_absent`), but that the store is one whose writes wait for each other: what is tried here
is what the writers make of it, and not S3 itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError

from iscp.delta.selftest.commit_race import (
    Breach,
    Contender,
    DeltaRsContender,
    Round,
    breaches,
    commit_file,
    race,
)
from iscp.storage import files
from iscp.storage.s3_settings import LOG_STORE, s3_conf
from iscp.system.http_exchange import free_port
from tests.fakes.s3 import FakeS3, asking, s3_server
from tests.race.jvms import AtOnce, Jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

CHUNK = 100
DELTA_DEFAULT = "io.delta.storage.S3SingleDriverLogStore"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeS3]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as server, asking(server):
        yield server


def hadoop_settings(server: FakeS3, scratch: Path) -> dict[str, str]:
    conf = s3_conf(server.config, {}, scratch)
    prefix = "spark.hadoop."
    return {name.removeprefix(prefix): value for name, value in conf.items() if name.startswith(prefix)}


@pytest.fixture
def jvm(s3: FakeS3, jvms: Callable[..., Jvm], tmp_path: Path) -> Jvm:
    return jvms(hadoop_settings(s3, tmp_path))


@pytest.fixture
def table(s3: FakeS3, request: pytest.FixtureRequest) -> str:
    return s3.uri(request.node.name.replace("[", "-").replace("]", ""))


def raced(table: str, contenders: list[Contender], versions: int) -> list[Round]:
    rounds = list[Round]()
    for first in range(1, versions + 1, CHUNK):
        rounds += race(f"{table}/_delta_log", contenders, range(first, min(first + CHUNK, versions + 1)))
        DeltaTable(table).create_checkpoint()
    return rounds


@pytest.mark.parametrize("versions", [50, pytest.param(2_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])])
def test_two_jvms_and_delta_rs(
    s3: FakeS3,
    table: str,
    jvm: Jvm,
    jvms: Callable[..., Jvm],
    delta_rs: Callable[..., DeltaRsContender],
    pool: ThreadPoolExecutor,
    tmp_path: Path,
    versions: int,
) -> None:
    third, directory = delta_rs(table), f"{table}/_delta_log"
    first = AtOnce(jvm.contender(directory, "a", LOG_STORE), pool)
    second = AtOnce(jvms(hadoop_settings(s3, tmp_path)).contender(directory, "b", LOG_STORE), pool)
    contenders: list[Contender] = [first, second, third]
    rounds = raced(table, contenders, versions)
    wins = Counter(name for outcome in rounds for name in outcome.winners)
    log.info("%d versions, won by %s", len(rounds), dict(wins))
    assert breaches(rounds) == []
    assert DeltaTable(table).version() == versions
    # Otherwise it was no race.
    assert all(wins[contender.name] >= versions / 100 for contender in contenders), wins


@pytest.mark.full
def test_control_that_the_race_convicts_a_store_that_takes_every_write(
    tmp_path: Path,
    jvms: Callable[..., Jvm],
    delta_rs: Callable[..., DeltaRsContender],
    pool: ThreadPoolExecutor,
) -> None:
    with s3_server(tmp_path / "log", fault="ignore-conditions") as server, asking(server):
        table = server.uri("table")
        other = delta_rs(table)
        own = jvms(hadoop_settings(server, tmp_path)).contender(f"{table}/_delta_log", "spark", LOG_STORE)
        found = {breach for _, breach in breaches(race(f"{table}/_delta_log", [AtOnce(own, pool), other], range(1, 6)))}
    assert found & {Breach.SEVERAL_WINNERS, Breach.OVERWRITTEN}


@pytest.mark.full
def test_control_that_the_race_convicts_delta_own_store(
    s3: FakeS3, table: str, jvm: Jvm, jvms: Callable[..., Jvm], pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """It looks and then puts, under a lock that another JVM does not see."""
    machines = {"a": jvm, "b": jvms(hadoop_settings(s3, tmp_path))}
    contenders: list[Contender] = [
        AtOnce(machine.contender(f"{table}/_delta_log", name, DELTA_DEFAULT), pool)
        for name, machine in machines.items()
    ]
    found = breaches(race(f"{table}/_delta_log", contenders, range(1, 31)))
    assert {breach for _, breach in found} & {Breach.SEVERAL_WINNERS, Breach.OVERWRITTEN}


# --- The log store by itself ---


def write(jvm: Jvm, path: str, lines: Any, overwrite: bool = False) -> None:
    jvm.store(LOG_STORE).write(jvm.path(path), lines, overwrite, jvm.conf)


def test_the_log_store_by_itself(table: str, jvm: Jvm) -> None:
    """One test, as each would begin with a JVM: what is taken, what is overwritten, what is listed and read."""
    commit, hint = commit_file(f"{table}/_delta_log", 1), f"{table}/_delta_log/_last_checkpoint"
    store = jvm.store(LOG_STORE)
    with pytest.raises(Py4JJavaError) as missing:
        store.listFrom(jvm.path(commit), jvm.conf)
    assert "FileNotFoundException" in str(missing.value), "Delta takes this for a table that is not there"

    write(jvm, commit, jvm.lines("ours", "too"))
    assert files.read(commit)[0] == b"ours\ntoo\n"
    with pytest.raises(Py4JJavaError) as refused:
        write(jvm, commit, jvm.lines("theirs"))
    assert refused.value.java_exception.getClass().getName() == "java.nio.file.FileAlreadyExistsException"
    assert files.read(commit)[0] == b"ours\ntoo\n"

    write(jvm, hint, jvm.lines("old"), overwrite=True)
    write(jvm, hint, jvm.lines("new"), overwrite=True)
    assert files.read(hint)[0] == b"new\n"
    assert sorted(files.names(f"{table}/_delta_log")) == [commit.rpartition("/")[2], "_last_checkpoint"]
    listed = store.listFrom(jvm.path(commit), jvm.conf)
    assert listed.next().getPath().getName() == commit.rpartition("/")[2]
    lines = store.read(jvm.path(commit), jvm.conf)
    assert [lines.next(), lines.next(), lines.hasNext()] == ["ours", "too", False]
    lines.close()
    assert not store.isPartialWriteVisible(jvm.path(commit), jvm.conf), "checkpoints are written in place"

    with pytest.raises(Py4JJavaError):
        write(jvm, commit_file(f"{table}/_delta_log", 2), None)
    assert not files.exists(commit_file(f"{table}/_delta_log", 2)), "a fault in the lines puts nothing"


def test_a_writer_whose_answer_was_lost_learns_that_it_won(jvm: Jvm, tmp_path: Path) -> None:
    """The put is repeated, and refused, since the object is there: it is the writer's own, and no other's."""
    lossy = FakeS3(free_port(), bucket="lossy")
    jvm.conf.set("fs.s3a.bucket.lossy.endpoint", lossy.config.endpoint)
    commit = commit_file(lossy.uri("t/_delta_log"), 1)
    with s3_server(tmp_path / "log", lossy, fault="lose-answers"), asking(lossy):
        write(jvm, commit, jvm.lines("ours"))
        with pytest.raises(Py4JJavaError) as refused:
            write(jvm, commit, jvm.lines("ours"))
        assert refused.value.java_exception.getClass().getName() == "java.nio.file.FileAlreadyExistsException"
        assert files.read(commit)[0] == b"ours\n"
