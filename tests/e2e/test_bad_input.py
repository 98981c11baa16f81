"""What is wrong in a request is refused by a real node, in words that help, and before anything is written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.e2e.evidence import Answer, admin, admin_process
from tests.e2e.harness import Cluster, Job

QUIET_S = 1.5
"""Statuses are written within 0.2 s: after so long without a commit the log has what there is to write."""


@dataclass(frozen=True, slots=True)
class Lake:
    """A cluster with one job, `kept` on `orders`, and nothing to do."""

    cluster: Cluster
    orders: str
    kept: Job

    def log_version(self) -> int:
        return int(DeltaTable(str(self.cluster.layout.job_log / "iscp_log")).version())

    def files(self) -> set[Path]:
        return set(self.cluster.lake.rglob("*"))

    def register(self, table: str = "", **options: str) -> Answer:
        """`job register` of a job that would be in order but for `options`."""
        given = {"name": "new", "target": str(self.cluster.lake / "derived" / "new"), "key": "id"} | options
        arguments = [part for option, value in given.items() for part in (f"--{option}", value)]
        return admin(self.cluster.endpoint, "job", "register", "--table", table or self.orders, *arguments)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    rows = pa.table({"id": list(range(20)), "state": ["open", "done"] * 10})
    try:
        orders = cluster.table("orders", rows)
        cluster.table("foreign", rows)
        cluster.start()
        job = cluster.replica("kept", orders, key=("id",))
        cluster.settle(job)
        made = Lake(cluster, orders, job)
        version = -1
        while version != (version := made.log_version()):
            time.sleep(QUIET_S)
        yield made
    finally:
        cluster.stop()


@pytest.fixture
def unwritten(lake: Lake) -> Iterator[Lake]:
    """At the end the job log has no commit more than before, and the lake no file."""
    version, files = lake.log_version(), lake.files()
    yield lake
    assert lake.log_version() == version
    assert lake.files() == files
    assert [job.name for job in lake.cluster.client.jobs()] == ["kept"]


def assert_refused(answer: Answer, status: int, *words: str) -> None:
    assert answer.status == status, answer
    assert answer.out == ""
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err


FAULTS: dict[str, tuple[dict[str, str], str, str]] = {
    # what is wrong: (options, the field that is named, what the remedy says)
    "unknown table": ({"table": "/nowhere/at_all"}, "field: --table", "create the table first"),
    "unknown name of the catalog": ({"table": "db.nothing"}, "field: --table", "Check the name"),
    "a table on a store that is not supported": ({"table": "s3://bucket/t"}, "field: --table", "Use a path"),
    "unknown key column": ({"key": "id,nope"}, "field: --key", "Its columns are id, state"),
    "a key column twice": ({"key": "id,id"}, "field: --key", "Name each column once"),
    "unknown column": ({"columns": "id,nope"}, "field: --columns", "Its columns are id, state"),
    "columns without the key's": ({"columns": "state"}, "field: --columns", "Add the key's columns"),
    "no SQL": ({"where": "state ="}, "field: --where", "Write it as after WHERE"),
    "two statements": ({"where": "id > 1; drop table t"}, "field: --where", "Write it as after WHERE"),
    "a subquery": ({"where": "id > (select 1)"}, "field: --where", "the row's own columns"),
    "unknown column in where": ({"where": "nope > 1"}, "field: --where", "Its columns are id, state"),
    "unknown function": ({"where": "nope(id)"}, "field: --where", "Correct its name"),
    "no condition": ({"where": "id + 1"}, "field: --where", "as after WHERE"),
    "types that do not compare": ({"where": "array(id) > 1"}, "field: --where", "as after WHERE"),
    "a random condition": ({"where": "rand() > 0.5"}, "field: --where", "as after WHERE"),
    "unknown consumer": ({"consumer": "nope"}, "field: --consumer", "Use one of changefeed, fulltext, replica"),
    "a target on another store": ({"target": "s3://bucket/t"}, "field: --target", "Use a path"),
    "a target in a directory that is not there": (
        {"target": "/nowhere/at/all"},
        "field: --target",
        "mount its file system",
    ),
    "options of another consumer": ({"shards": "4"}, "field: --shards", "a replica takes no options"),
    "a name for another line": ({"name": "a\nb"}, "field: --name", "other than letters and digits of ASCII"),
    "a name that is a pattern": ({"name": "copy*"}, "field: --name", "for a pattern or an option"),
    "an empty name": ({"name": "  "}, "field: --name", "Name the job"),
    "a name that is too long": ({"name": "n" * 201}, "field: --name", "Name the job"),
    "an empty account": ({"account": " "}, "field: --account", "Leave it out"),
}


@pytest.mark.spark
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_with_field_and_remedy(unwritten: Lake, fault: str) -> None:
    options, field, remedy = FAULTS[fault]
    assert_refused(unwritten.register(**options), 1, "error: ", field, "remedy: ", remedy)


@pytest.mark.spark
def test_targets_that_cannot_be(unwritten: Lake) -> None:
    field, lake = "field: --target", unwritten.cluster.lake
    for target in (lake / "orders", lake / "orders" / "below", lake, lake / "derived" / ".." / "orders"):
        assert_refused(unwritten.register(target=str(target)), 1, field, "Choose another path")
    for target in (Path(unwritten.kept.target, "inner"), lake / "derived", lake / "foreign" / "inner"):
        assert_refused(unwritten.register(target=str(target)), 1, field, "the table", "Choose a path beside it")
    beside = f"{unwritten.kept.target}_dead_letter/inner"
    assert_refused(unwritten.register(target=beside), 1, field, "which is not there", "mount its file system")
    assert_refused(unwritten.register(target=unwritten.kept.target), 1, field, "the target of job 'kept'", "unregister")
    assert_refused(unwritten.register(target=str(lake / "foreign")), 1, field, "did not write", "Choose a new path")


@pytest.mark.spark
def test_wrong_usage_exits_with_2(unwritten: Lake) -> None:
    for options in ({"key": ""}, {"key": ","}, {"columns": " , "}, {"target": ""}, {"name": ""}, {"priority": "5000"}):
        (option,) = options
        assert_refused(unwritten.register(**options), 2, f"--{option}")
    assert_refused(unwritten.register(trigger="hourly"), 2, "--trigger", "default")
    assert_refused(admin_process("nowhere", "job", "list"), 2, "HOST:PORT")


JOB_FILES: dict[str, tuple[str, str]] = {
    # what is wrong: (the file, the words that say so)
    "not YAML": ("table: [orders\n", "is not YAML"),
    "no job": ("# nothing\n", "holds no job"),
    "no mapping": ("- orders\n", "must be a mapping"),
    "unknown field": ("{table: T, name: new, target: N, key: [id], filter: x}\n", "[0].filter"),
    "field twice": ("table: T\nname: new\nname: other\ntarget: N\n", "'name' is given twice"),
    "no name": ("{table: T, name: '', target: N, key: [id]}\n", "[0].name"),
    "no target": ("{table: T, name: new, key: [id]}\n", "[0].target"),
    "empty key": ("{table: T, name: new, target: N, key: ''}\n", "[0].key"),
    "key of another type": ("{table: T, name: new, target: N, key: 7}\n", "[0].key"),
    "second of two": (
        "[{table: T, name: new, target: N, key: [id]}, {table: T, name: b, target: N2, key: [nope]}]\n",
        "[1].key",
    ),
    "one target for two": (
        "[{table: T, name: new, target: N, key: [id]}, {table: T, name: b, target: N, key: [id]}]\n",
        "is the target of job 'new'",
    ),
}


@pytest.mark.spark
@pytest.mark.parametrize("fault", JOB_FILES)
def test_a_faulty_job_file_creates_none_of_its_jobs(unwritten: Lake, tmp_path: Path, fault: str) -> None:
    text, words = JOB_FILES[fault]
    file = tmp_path / "job.yaml"
    target = str(unwritten.cluster.lake / "derived" / "new")
    for name, path in (("T,", f"{unwritten.orders},"), ("T\n", f"{unwritten.orders}\n"), ("N", target)):
        text = text.replace(f" {name}", f" {path}")
    file.write_text(text)
    assert_refused(admin(unwritten.cluster.endpoint, "job", "register", "-f", str(file)), 1, "field: ", words)


@pytest.mark.spark
def test_questions_about_what_is_not_there(unwritten: Lake) -> None:
    endpoint, orders = unwritten.cluster.endpoint, unwritten.orders
    for verb in ("status", "wait", "verify", "history", "pause", "resume"):
        assert_refused(admin(endpoint, "job", verb, orders, "nope"), 1, "no job 'nope'", "iscp-admin job list")
        assert_refused(admin(endpoint, "job", verb, "/nowhere", "kept"), 1, "/nowhere has no jobs")
    assert_refused(admin_process(endpoint, "notify", "/nowhere"), 1, "/nowhere has no jobs")
    assert admin(endpoint, "job", "delete", orders, "nope", "-o", "json").json == {"deleted": False}
    nobody = admin_process("127.0.0.1:1", "job", "wait", orders, "nope", "--timeout", "10ms")
    assert_refused(nobody, 1, "127.0.0.1:1")


@pytest.mark.spark
def test_a_target_that_lost_what_identifies_old_commits(unwritten: Lake, tmp_path: Path) -> None:
    target = str(tmp_path / "expiring")
    configuration = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    write_deltalake(target, pa.table({"id": [1]}).slice(0, 0), configuration=configuration)
    answer = unwritten.register(target=target)
    assert_refused(answer, 1, "field: --target", "Unset delta.setTransactionRetentionDuration")
