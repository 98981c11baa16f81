"""What end-to-end tests observe from outside: the answers of the real `iscp-admin`, and the logs of Delta tables.

Logs are read as files, by none of the code that wrote them.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any

import obstore
import pyarrow as pa
from click.testing import CliRunner
from deltalake import DeltaTable
from obstore.store import from_url

from iscp.cli.demo.lake import read
from iscp.cli.iscp_admin import PROGRAM, cli

ADMIN = str(Path(sys.executable).parent / "iscp-admin")
ADMIN_WAIT_S = 120.0
WIDE = {"COLUMNS": "200"}
SINK = "iscp"
"""The application id under which every sink commits."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one call of `iscp-admin` ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)


def admin(endpoint: str, *arguments: str) -> Answer:
    """What `iscp-admin` does, in this process; give `-o json` among the arguments to read its answer.

    A process for each call spends more on its imports than a node on its answer: `admin_process` is for those tests
    that are about the command as such.
    """
    run = CliRunner().invoke(cli, ["--endpoint", endpoint, *arguments], env=WIDE, prog_name=PROGRAM)
    if run.exception is not None and not isinstance(run.exception, SystemExit):
        raise run.exception  # where a process would have ended with a traceback
    return Answer(run.exit_code, run.stdout, run.stderr)


def admin_process(endpoint: str, *arguments: str) -> Answer:
    """Run `iscp-admin` as a user does."""
    run = subprocess.run(
        [ADMIN, "--endpoint", endpoint, *arguments],
        env=os.environ | WIDE,
        capture_output=True,
        text=True,
        check=False,
        timeout=ADMIN_WAIT_S,
    )
    return Answer(run.returncode, run.stdout, run.stderr)


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """One commit of ours to a target; `at_s` is its time (Unix seconds), `to` the source version it goes to."""

    version: int
    at_s: float
    seq: int
    job_id: str
    kind: str
    to: int


def sink_commits(target: str) -> list[SinkCommit]:
    """All commits that carry a seq, oldest first; the target's log must not have been cleaned."""
    found = []
    for version, content in sorted(_commit_files(target)):
        actions = [json.loads(line) for line in content.splitlines()]
        seqs = [a["txn"]["version"] for a in actions if "txn" in a and a["txn"]["appId"] == SINK]
        for seq in seqs:
            about = next(a["commitInfo"] for a in actions if "commitInfo" in a)
            tag = json.loads(about["userMetadata"])
            commit = SinkCommit(version, about["timestamp"] / 1000, seq, tag["job_id"], tag["kind"], tag["to"])
            found.append(commit)
    return found


def _commit_files(target: str) -> Iterator[tuple[int, bytes]]:
    """Versions and what their files hold, on a local path or on S3."""
    log = from_url(target if "://" in target else Path(target).as_uri())
    for each in obstore.list_with_delimiter(log, "_delta_log")["objects"]:
        name = PurePosixPath(each["path"])
        if name.suffix == ".json":
            yield int(name.stem), bytes(obstore.get(log, each["path"]).bytes())


def assert_in_order(target: str) -> None:
    """Each seq was committed once, one after the other, and within a registration no watermark went back."""
    commits = sink_commits(target)
    assert [commit.seq for commit in commits] == list(range(1, len(commits) + 1))
    for before, after in itertools.pairwise(commits):
        if after.job_id == before.job_id:
            assert after.to >= before.to, f"{target}: {before} is followed by {after}"


def assert_feed_holds(target: str, rows: pa.Table) -> None:
    """No change is there twice, and what all of them come to, one after the other, are the rows."""
    changes = sorted(read(target).to_pylist(), key=itemgetter("ulid"))
    marks = [(change["version"], change["key"]["id"], change["operation"]) for change in changes]
    assert len(set(marks)) == len(marks)
    last = {change["key"]["id"]: change for change in changes}
    there = [change["row"] for change in last.values() if change["operation"] != "delete"]
    assert sorted(there, key=itemgetter("id")) == sorted(rows.to_pylist(), key=itemgetter("id"))


def job_log_rows(job_log: Path) -> list[dict[str, Any]]:
    """All rows of the job log in the order in which they were written."""
    rows = pa.table(DeltaTable(str(job_log / "iscp_log")).scan())
    return sorted(rows.to_pylist(), key=lambda row: int(row["sequence"]))


def assert_watermarks_never_went_back(rows: Sequence[dict[str, Any]]) -> None:
    """`rows` as of `job_log_rows`: neither watermark nor seq of a registration ever became less."""
    last: dict[str, tuple[int, int]] = {}
    for row in rows:
        now, before = (row["watermark"], row["iteration_seq"]), last.get(row["job_id"], (-1, 0))
        assert now[0] >= before[0], f"{row['job_name']}: {before} is followed by {now}"
        assert now[1] >= before[1], f"{row['job_name']}: {before} is followed by {now}"
        last[row["job_id"]] = now
