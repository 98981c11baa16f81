"""`iscp run` in real processes without Java: it ends, is killed, and meets another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from iscp.cli.shell.root_group import ExitStatus
from iscp.model.values.errors import ErrorCode
from tests.e2e.harness import MARK, assert_equal, delete, leftovers, read, upsert, wait_for
from tests.e2e.killed_runs import NO_JAVA
from tests.processes import gone_within

TIMEOUT_S = 100.0


JOBS = """
- {{table: {lake}/orders, name: copy, target: {lake}/copy, key: [id]}}
- {{table: {lake}/orders, name: big, target: {lake}/big, key: [id], where: total > 5}}
- {{table: {lake}/copy, name: again, target: {lake}/again, key: [id]}}
"""


def rows(first: int, count: int, more: int = 0) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": list(ids), "customer": [f"c{i % 3}" for i in ids], "total": [i + more for i in ids]})


class Project:
    """Two replicas of one table and one of a replica, and processes that run them, which find no Java."""

    def __init__(self, root: Path) -> None:
        self.root, self.mark = root, uuid4().hex
        self.orders = f"{root}/orders"
        write_deltalake(self.orders, rows(0, 10), configuration={"delta.enableChangeDataFeed": "true"})
        (root / "tmp").mkdir()
        (root / "jobs.yaml").write_text(JOBS.format(lake=root))
        self._children: list[subprocess.Popen[str]] = []

    def start(
        self, *options: str, failpoints: str = "", within: Sequence[str] = (), java: Mapping[str, str] = NO_JAVA
    ) -> subprocess.Popen[str]:
        command = [*within, sys.executable, "-m", "iscp.cli.iscp", "run", "jobs.yaml", "-o", "json", *options]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ISCP_")}
        environ |= {"PYTHONPATH": str(Path(__file__).parents[2]), MARK: self.mark, "ISCP_FAILPOINTS": failpoints}
        environ |= {**java, "TMPDIR": f"{self.root}/tmp"}
        child = subprocess.Popen(
            command, cwd=self.root, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._children.append(child)
        return child

    def end(self, child: subprocess.Popen[str], status: int) -> dict[str, dict[str, Any]]:
        """Wait for the end of a run; return what it said of each job."""
        out, err = child.communicate(timeout=TIMEOUT_S)
        assert child.returncode == status, out[-2000:] + err[-4000:]
        return {each["name"]: each for each in map(json.loads, out.splitlines())}

    def wait_fresh(self) -> None:
        def fresh() -> bool:
            try:
                self.assert_fresh()
            except (AssertionError, TableNotFoundError):
                return False
            return True

        wait_for("all targets are as fresh as their tables", fresh, TIMEOUT_S)

    def run(self, *options: str, failpoints: str = "", status: int = 0) -> dict[str, dict[str, Any]]:
        return self.end(self.start(*options, failpoints=failpoints), status)

    def change(self) -> None:
        upsert(self.orders, rows(5, 10, 100), ["id"])
        delete(self.orders, "id = 2")

    def assert_fresh(self) -> None:
        orders = read(self.orders)
        assert_equal(f"{self.root}/copy", orders)
        assert_equal(f"{self.root}/big", orders.filter(pc.greater(orders["total"], 5)))
        assert_equal(f"{self.root}/again", orders)

    def versions(self) -> list[int]:
        return [DeltaTable(f"{self.root}/{name}").version() for name in ("copy", "big", "again")]

    def close(self) -> None:
        for child in self._children:
            with suppress(ProcessLookupError):
                child.kill()
            child.communicate()
        wait_for("no process is left", lambda: not leftovers(self.mark), TIMEOUT_S)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    root = tmp_path / "lake"
    root.mkdir()
    made = Project(root)
    yield made
    made.close()


def test_the_first_run_builds_all_and_the_next_one_does_nothing(project: Project) -> None:
    made = project.run()
    assert {name: each["state"] for name, each in made.items()} == dict.fromkeys(("copy", "big", "again"), "updated")
    assert {(each["spark"], each["started_spark"]) for each in made.values()} == {(None, False)}
    project.assert_fresh()
    versions = project.versions()

    assert {each["state"] for each in project.run().values()} == {"current"}
    assert project.versions() == versions

    project.change()
    assert {each["state"] for each in project.run().values()} == {"updated"}
    project.assert_fresh()


def test_rows_that_are_left_out_are_heard_by_cron_each_time(project: Project) -> None:
    project.end(project.start(), 0)
    write_deltalake(project.orders, rows(3, 1, more=1), mode="append")  # 3 is there already
    found = project.end(project.start(), ExitStatus.DEAD_LETTERS)
    left_out = found["copy"]["dead_letters"]
    assert (left_out > 0, found["copy"]["state"]) == (True, "updated")
    again = project.end(project.start(), ExitStatus.DEAD_LETTERS)
    assert (again["copy"]["dead_letters"], again["copy"]["state"]) == (left_out, "current")


def test_a_run_of_a_chain_that_was_killed_is_gone_on_with(project: Project) -> None:
    """At each failpoint of each kind: test_run_kills.py."""
    project.run(failpoints="commit.after=kill", status=-signal.SIGKILL)
    project.change()
    project.run()
    project.assert_fresh()
    assert {each["state"] for each in project.run().values()} == {"current"}


def test_two_runs_at_once_end_and_their_targets_are_equal_to_their_tables(project: Project) -> None:
    both = [project.start(), project.start()]
    for child in both:
        project.end(child, 0)
    project.assert_fresh()
    assert {each["state"] for each in project.run().values()} == {"current"}


SILENT_JAVA = """#!/bin/sh
case "$*" in *-version*) printf ' %s = %s\\n' java.home {home} java.version 17 >&2; exit;; esac
echo $$ > {home}/pid
exec sleep 600
"""
"""A Java that never opens its gateway, so that Spark is always about to start."""

VIEW = "CREATE MATERIALIZED VIEW totals AS SELECT customer, sum(total) AS total FROM orders GROUP BY customer"


@pytest.mark.parametrize("watch", [False, True])
def test_a_signal_while_spark_starts_ends_the_run_and_the_start(project: Project, watch: bool) -> None:
    home = project.root / "java"
    java = home / "bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(SILENT_JAVA.format(home=home))
    java.chmod(0o755)
    (project.root / "views.sql").write_text(VIEW)
    tables = ("views.sql", "--table", f"orders={project.orders}", "--target-root", str(project.root))
    child = project.start(*tables, *(["--watch"] if watch else []), java={"JAVA_HOME": str(home)})
    pid = home / "pid"
    wait_for("Java has started", lambda: child.poll() is not None or (pid.is_file() and pid.read_text()), TIMEOUT_S)
    child.send_signal(signal.SIGTERM)
    said = project.end(child, 0 if watch else 128 + signal.SIGTERM)
    assert said.get("totals", {"error_code": ErrorCode.CANCELED})["error_code"] == ErrorCode.CANCELED
    if not watch:
        assert (said["totals"]["spark"], said["totals"]["started_spark"]) == ("its query is analyzed", False)
    assert gone_within(int(pid.read_text()), 5)
    assert list((project.root / "tmp").iterdir()) == []


def test_a_watch_shows_its_jobs_on_a_page_and_ends_in_order(project: Project) -> None:
    with (project.root / "jobs.yaml").open("a") as file:
        options = "{columns: [customer]}"
        file.write(
            f"- {{table: {project.orders}, name: words, consumer: fulltext, target: {project.root}/words, key: [id],"
            f" options: {options}}}\n"
        )
    child = project.start("--watch", "--page")
    assert child.stderr is not None
    address = next(line for line in child.stderr if "http://" in line).partition("http://")[2].strip().rstrip("/")

    def get(path: str, host: str = address) -> tuple[int, str]:
        with closing(HTTPConnection(address, timeout=TIMEOUT_S)) as connection:
            connection.request("GET", path, headers={"host": host, "cookie": "iscp_form=key"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    wait_for("all targets are fresh", lambda: get("/?condition=fresh")[1].count('<tr class="fresh">') == 4, TIMEOUT_S)
    project.change()
    project.wait_fresh()
    job = f"/job?table={quote(project.orders)}&name=copy"
    wait_for("its board says so", lambda: "<dd>version 2 of 2, seq" in get(job)[1], TIMEOUT_S)
    found = f"/search?index={project.root}/words&text=c1"
    wait_for("rows of version 2 are found", lambda: "at version 2 of the source" in get(found)[1], TIMEOUT_S)
    assert "is the target of no job" in get(f"/search?index={project.orders}&text=c1")[1]
    for path in (
        "/",
        "/lineage",
        "/timeline",
        "/builds",
        "/trouble",
        "/search",
        job,
        job.replace("/job", "/spark.svg"),
    ):
        assert get(path)[0] == 200, path
    assert get("/cluster")[0] == 404
    assert get("/", host="another.example")[0] == 403

    child.send_signal(signal.SIGTERM)
    assert {each["state"] for each in project.end(child, 0).values()} == {"updated"}
    with pytest.raises(ConnectionRefusedError):
        get("/")


def test_a_watch_follows_its_tables_until_sigterm_ends_it_in_order(project: Project) -> None:
    child = project.start("--watch")
    project.wait_fresh()
    project.change()
    project.wait_fresh()
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=TIMEOUT_S)
    assert (child.returncode, err) == (0, "")
    assert {each["state"] for each in map(json.loads, out.splitlines())} <= {"updated", "failed"}
    assert {each["state"] for each in project.run().values()} == {"current"}


def test_a_watch_that_may_not_follow_directories_says_so_and_probes(project: Project) -> None:
    """In a user namespace that has no inotify left."""
    namespace = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_watches && exec "$@"', "-"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        return  # no user namespaces are allowed here
    child = project.start("--watch", within=namespace)
    project.wait_fresh()
    project.change()
    project.wait_fresh()
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 0
    assert "notices.refused" in err
    assert "fs.inotify.max_user_watches" in err


def test_without_java_what_needs_spark_fails_by_name_and_the_rest_goes_on(project: Project) -> None:
    with (project.root / "jobs.yaml").open("a") as file:
        file.write(
            f"- {{table: {project.orders}, name: feed, consumer: changefeed, target: {project.root}/f, key: [id]}}"
        )
    found = project.run(status=1)
    assert {name: each["state"] for name, each in found.items() if name != "feed"} == dict.fromkeys(
        ("copy", "big", "again"), "updated"
    )
    assert found["feed"]["state"] == "failed"
    assert "no Java for Spark" in found["feed"]["error"]
    assert "Install Java 17 or 21 and set JAVA_HOME" in found["feed"]["error"]
    project.assert_fresh()


def test_changes_that_vacuum_has_removed_are_found_by_comparing_as_is_said(project: Project) -> None:
    project.run()
    project.change()
    upsert(project.orders, rows(6, 3, 500), ["id"])
    DeltaTable(project.orders).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    found = project.run()
    for name in ("copy", "big"):
        assert (found[name]["state"], found[name]["strategy"]) == ("updated", "difference")
        assert "all rows were compared" in found[name]["warning"]
        assert "is gone" in found[name]["warning"]
    project.assert_fresh()
    assert {each["state"] for each in project.run().values()} == {"current"}
