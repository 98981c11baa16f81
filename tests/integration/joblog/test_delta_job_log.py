"""The job log on a real Delta table: its fence, what survives kills and full disks, and that upkeep changes nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Register
from iscp.cluster.owner.job_log_writer import LogHooks, LogWriter
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.delta.joblog.fenced_table import FencedTable
from iscp.delta.joblog.log_schema import FORMAT, LOG_SCHEMA
from iscp.delta.log.commits import COMMIT_ID
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow, JobState, LogEntry, Reason, Registration
from iscp.model.settings.config import JobLogConfig
from iscp.model.values.errors import (
    ConfigurationError,
    InvariantBroken,
    NotOwner,
    OutcomeUnknown,
    StorageError,
    Unavailable,
)
from iscp.model.values.watermark import Watermark
from iscp.system.threads import SystemClock
from tests.fakes.log_program import job
from tests.selection import in_full

ROOT = Path(__file__).parents[3]


class NoFailpoints:
    def reach(self, name: str) -> None:
        pass


class Pause:
    """Port Failpoints: runs something in the middle of the next commit."""

    def __init__(self) -> None:
        self.then: Callable[[], object] = lambda: None

    def reach(self, name: str) -> None:
        then, self.then = self.then, lambda: None
        then()


def opened(uri: Path, failpoints: Pause | NoFailpoints | None = None) -> DeltaJobLog:
    return DeltaJobLog(str(uri), SystemClock(), failpoints or NoFailpoints())


def owner(uri: Path, failpoints: Pause | None = None) -> DeltaJobLog:
    joblog = opened(uri, failpoints)
    joblog.claim_term()
    joblog.load()
    return joblog


def names(joblog: DeltaJobLog) -> list[str]:
    return sorted(row.key.job_name for row in joblog.load())


def test_terms_count_up_and_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert first.claim_term() == 1
    rows = [
        job(1)._replace(watermark=Watermark(7, 1_700_000_000.123), seq=3, state=JobState.RUNNING),
        job(2)._replace(reason=Reason.PAUSED, drop_at_s=1_700_000_001.5),
        job(3)._replace(status_json='{"rows":5}', drop_at_s=0.0),
    ]
    first.append(list(map(LogEntry, rows, ("r1", "", "r3"))))
    second = opened(tmp_path)
    assert second.claim_term() == 2
    assert second.load() == rows
    assert second.requests() == {rows[0].job_id: ("r1",), rows[2].job_id: ("r3",)}


def test_an_owner_that_was_deposed_never_writes_again(tmp_path: Path) -> None:
    old = owner(tmp_path)
    old.append([LogEntry(job(1))])
    new = owner(tmp_path)
    for _ in range(2):
        with pytest.raises(NotOwner):
            old.append([LogEntry(job(2))])
        with pytest.raises(NotOwner):
            old.compact([])
        with pytest.raises(NotOwner):
            old.load()
    assert names(new) == ["j1"]
    with pytest.raises(InvariantBroken):
        old.claim_term()


def test_a_claim_in_the_middle_of_a_commit_makes_that_commit_fail(tmp_path: Path) -> None:
    """The data file is written, another owner claims, and the commit must not be rebased onto the claim."""
    pause = Pause()
    old = owner(tmp_path, pause)
    old.append([LogEntry(job(1))])
    successors: list[DeltaJobLog] = []
    pause.then = lambda: successors.append(owner(tmp_path))
    with pytest.raises(NotOwner):
        old.append([LogEntry(job(2))])
    successors[0].append([LogEntry(job(3))])
    assert names(successors[0]) == ["j1", "j3"]


def go_on_and_clean(uri: Path) -> DeltaJobLog:
    """Another owner, which writes until the commit files before its last checkpoint are gone."""
    joblog = owner(uri)
    for number in range(100, 150):
        joblog.append([LogEntry(job(number))])
        for commit in (uri / "iscp_log" / "_delta_log").glob("*.json"):
            os.utime(commit, (1.0, 1.0))  # so that the clean-up takes them for old
    return joblog


def test_a_writer_that_slept_until_its_version_was_cleaned_away_acknowledges_nothing(tmp_path: Path) -> None:
    pause = Pause()
    old = owner(tmp_path, pause)
    old.append([LogEntry(job(1))])
    successors: list[DeltaJobLog] = []
    pause.then = lambda: successors.append(go_on_and_clean(tmp_path))
    with pytest.raises(OutcomeUnknown):
        old.append([LogEntry(job(2))])
    assert names(successors[0]) == sorted(["j1", *(f"j{number}" for number in range(100, 150))])


def test_a_commit_that_landed_where_the_log_was_cleaned_away_does_not_count(tmp_path: Path) -> None:
    """A writer may sleep between deltalake's reading of the log and its put-if-absent, which then succeeds."""
    old = FencedTable(str(tmp_path / "iscp_log"), LOG_SCHEMA, SystemClock(), NoFailpoints())
    old.claim()
    late = tmp_path / "iscp_log" / "_delta_log" / f"{old.version + 1:020d}.json"
    successor = go_on_and_clean(tmp_path)
    assert not late.exists()
    late.write_text(json.dumps({"commitInfo": {"operation": "WRITE", COMMIT_ID: "late"}}))
    with pytest.raises(NotOwner):
        old.catch_up("late", written=True)
    successor.append([LogEntry(job(1))])
    assert len(owner(tmp_path).load()) == 51


def test_a_claim_in_the_middle_of_a_compaction_makes_it_fail(tmp_path: Path) -> None:
    pause = Pause()
    old = owner(tmp_path, pause)
    old.append([LogEntry(job(1)), LogEntry(job(2))])
    successors: list[DeltaJobLog] = []

    def succeed() -> None:
        successors.append(owner(tmp_path))
        successors[0].append([LogEntry(job(3))])

    pause.then = succeed
    with pytest.raises(NotOwner):
        old.compact([job(1)])
    assert names(successors[0]) == ["j1", "j2", "j3"]


def claim_against_writers(joblog: DeltaJobLog) -> None:
    """An owner that commits without a pause may be first at each of a claim's attempts: then it is called again."""
    while True:
        with suppress(Unavailable):
            joblog.claim_term()
            return


def test_of_owners_that_write_at_once_one_stays_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    deposed: list[int] = []

    def own(number: int) -> None:
        try:
            joblog = opened(tmp_path)
            claim_against_writers(joblog)
            joblog.load()
            for step in range(30):
                row = job(number * 1_000 + step)
                joblog.append([LogEntry(row)])
                acknowledged.append(row.job_id)
        except NotOwner:
            deposed.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(own, range(4)))
    ids = [row.job_id for row in owner(tmp_path).load()]
    assert set(acknowledged) <= set(ids)
    assert len(ids) == len(set(ids))
    assert len(deposed) < 4
    # Deposed right after its last commit landed, an owner cannot know: that commit is there and not acknowledged.
    assert len(ids) - len(acknowledged) <= len(deposed)


def test_of_several_that_have_claimed_only_the_last_can_write(tmp_path: Path) -> None:
    owners = [opened(tmp_path) for _ in range(4)]
    for joblog in owners:
        joblog.claim_term()
    for number, joblog in enumerate(owners[:-1]):
        with pytest.raises(NotOwner):
            joblog.append([LogEntry(job(number))])
    owners[-1].append([LogEntry(job(9))])
    assert names(owners[-1]) == ["j9"]


def test_racing_first_starts_mint_different_terms(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)

    def claim(_: int) -> int:
        barrier.wait()
        return opened(tmp_path).claim_term()

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(claim, range(6))) == [1, 2, 3, 4, 5, 6]


def test_upkeep_by_an_operator_is_no_other_owner_but_a_change_of_rows_is(tmp_path: Path) -> None:
    joblog = owner(tmp_path)
    for number in range(3):
        joblog.append([LogEntry(job(number))])
    table = DeltaTable(str(tmp_path / "iscp_log"))
    table.optimize.compact()
    joblog.append([LogEntry(job(3))])
    assert names(joblog) == ["j0", "j1", "j2", "j3"]
    table.update_incremental()
    table.delete("job_name = 'j3'")
    with pytest.raises(NotOwner):
        joblog.append([LogEntry(job(4))])


def test_a_missing_directory_is_a_storage_error_and_no_reason_to_start_over(tmp_path: Path) -> None:
    home, away = tmp_path / "log", tmp_path / "away"
    with pytest.raises(StorageError):
        opened(home).claim_term()
    home.mkdir()
    joblog = owner(home)
    joblog.append([LogEntry(job(1))])
    joblog.append_history([entry(0)])
    home.rename(away)
    for attempt in (lambda: joblog.append([LogEntry(job(2))]), joblog.load, lambda: joblog.append_history([entry(1)])):
        with pytest.raises(StorageError):
            attempt()
    with pytest.raises(StorageError, match="is gone, as if somebody had moved") as gone:
        joblog.append([LogEntry(job(2))])
    assert "Errno" not in str(gone.value)
    assert gone.value.remedy.startswith("Put the directory back where it was")
    assert not home.exists()
    away.rename(home)
    joblog.append([LogEntry(job(3))])
    assert names(joblog) == ["j1", "j3"]


def test_a_log_of_a_format_two_before_is_read_and_brought_up_to_this_one(tmp_path: Path) -> None:
    """Its rows are those of whole tables; an iscp of an earlier format does not claim it any more."""
    uri = tmp_path / "iscp_log"
    first = owner(tmp_path)
    first.append([LogEntry(job(1), "r-1")])
    written = DeltaTable(uri).to_pyarrow_table().drop_columns(["range_id", "origin"])
    shutil.rmtree(uri)
    before = pa.schema([field for field in LOG_SCHEMA if field.name in written.column_names])
    table = DeltaTable.create(uri, before, configuration={"iscp.format": "1"}, raise_if_key_not_exists=False)
    write_deltalake(table, written, mode="append")

    log = owner(tmp_path)
    (there,) = log.load()
    assert (there.key.range_id, there.origin) == (1, "")
    assert DeltaTable(uri).metadata().configuration["iscp.format"] == str(FORMAT)
    part = there._replace(key=there.key.of_range(3), job_id="x.0001", origin=there.job_id)
    log.append([LogEntry(part)])
    assert owner(tmp_path).load()[-1] == part
    assert DeltaTable(uri).to_pyarrow_table()["range_id"].to_pylist() in ([None, 3], [3, None])


def test_a_log_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    owner(tmp_path)
    table = DeltaTable(str(tmp_path / "iscp_log"))
    table.alter.set_table_properties({"iscp.format": "99"}, raise_if_not_exists=False)
    with pytest.raises(ConfigurationError, match="99"):
        opened(tmp_path).claim_term()


def child(module: str, *arguments: object, failpoints: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.fakes.{module}", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "ISCP_FAILPOINTS": failpoints},
        stdout=subprocess.PIPE,
        text=True,
    )


def acknowledged_until_killed(program: subprocess.Popen[str], kill_after: int = 0) -> set[str]:
    """The job_ids that the program acknowledged; killed after so many lines, or by its failpoint."""
    assert program.stdout is not None
    acknowledged: set[str] = set()
    with program:
        for number, line in enumerate(program.stdout):
            word, _, job_id = line.strip().partition(" ")
            if word == "ok":
                acknowledged.add(job_id)
            if kill_after and number == kill_after:
                program.kill()
    assert program.returncode == -signal.SIGKILL
    return acknowledged


def check_log(uri: Path, acknowledged: set[str]) -> None:
    joblog = owner(uri)
    rows = joblog.load()
    ids = [row.job_id for row in rows]
    assert len(ids) == len(set(ids))
    assert acknowledged <= set(ids)
    assert len({row.key for row in rows}) == len(rows), "a job is registered twice"
    book = JobBook(rows, joblog.requests())
    assert len(book) == len(rows)


@pytest.mark.parametrize("commit", in_full([1, 2, 7, 22], but=[1, 22]))
def test_killed_in_the_middle_of_a_commit_every_acknowledged_job_is_there_once(tmp_path: Path, commit: int) -> None:
    program = child("log_program", tmp_path, 0, 10_000, failpoints=f"log.commit=kill:{commit}")
    acknowledged = acknowledged_until_killed(program)
    check_log(tmp_path, acknowledged)


@pytest.mark.further  # each time: kills in the middle of a commit above
def test_killed_at_random_times_and_retried_every_job_is_there_once(tmp_path: Path) -> None:
    """Each life registers the same jobs again under the same request ids, and gets on a little further."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)
    acknowledged: set[str] = set()
    for _ in range(3):
        program = child("log_program", tmp_path, 0, 100_000)
        acknowledged |= acknowledged_until_killed(program, kill_after=chance.randrange(1, 300))
        check_log(tmp_path, acknowledged)


@pytest.mark.further  # each time: owners that write at once above
def test_two_processes_own_the_log_at_once_and_one_fails_cleanly(tmp_path: Path) -> None:
    first, second = (child("log_program", tmp_path, first, 600) for first in (0, 100_000))
    with first, second:
        said = [program.communicate(timeout=120)[0].splitlines() for program in (first, second)]
    answers = [line.split(" ") for lines in said for line in lines if line != "ready"]
    assert {word for word, _ in answers} <= {"ok", "NotOwner"}
    acknowledged = {job_id for word, job_id in answers if word == "ok"}
    check_log(tmp_path, acknowledged)
    assert len(acknowledged) >= 600


def test_a_full_disk_is_a_storage_error_and_the_log_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with child("full_disk_program", tmp_path) as program:
        said = program.communicate(timeout=60)[0].splitlines()
    assert said == ["failed"] * 6 + ["j0 j2"]
    assert names(owner(tmp_path)) == ["j0", "j2"]
    assert len(list((tmp_path / "iscp_log").glob("*.parquet"))) == 2, "failed attempts leave nothing behind"


def test_a_commit_that_came_through_before_its_error_is_found_and_not_repeated(tmp_path: Path) -> None:
    """The commit file fits and the checkpoint that deltalake writes behind it does not: its error says nothing."""
    with child("full_disk_program", tmp_path, "checkpoint") as program:
        said = program.communicate(timeout=60)[0].splitlines()
    assert said == ["written"]
    assert not list((tmp_path / "iscp_log" / "_delta_log").glob("*.checkpoint.parquet"))
    assert len(names(owner(tmp_path))) == 18


def test_a_retry_after_the_owner_was_restarted_gets_the_first_answer_even_from_a_compacted_log(tmp_path: Path) -> None:
    row = job(1)
    answers = []
    for life in range(3):
        joblog = owner(tmp_path)
        book = JobBook(joblog.load(), joblog.requests())
        hooks = LogHooks(lambda change: None, lambda error: None)
        writer = LogWriter(joblog, book, SystemClock(), JobLogConfig(uri=""), hooks)
        writer.start()
        again = Registration(row._replace(job_id=f"life-{life}"), "the-request")
        answers.append(writer.submit(Register((again,))).result(10)[0])
        if life == 1:
            writer.close()
            joblog.compact(book.rows())
        writer.close()
    assert answers[0].created
    assert answers[0] == answers[1] == answers[2]


ROWS = st.builds(
    lambda number, registration, version, dropped, state: job(number)._replace(
        job_id=f"{number}-{registration}",
        watermark=Watermark(version, float(version)),
        drop_at_s=1.0 if dropped else None,
        state=state,
    ),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from(JobState),
)
COMMITS = st.lists(st.lists(ROWS, min_size=1, max_size=4), max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=COMMITS, after=COMMITS)
def test_compaction_changes_nothing_that_is_read(before: list[list[JobRow]], after: list[list[JobRow]]) -> None:
    with TemporaryDirectory() as directory:
        joblog = owner(Path(directory))
        append_all(joblog, before, "b")
        rows, requests = joblog.load(), dict(joblog.requests())
        joblog.compact(rows)
        assert (joblog.load(), dict(joblog.requests())) == (rows, requests)
        append_all(joblog, after, "a")
        last = {row.job_id: row for commit in (*before, *after) for row in commit}
        assert {row.job_id: row for row in owner(Path(directory)).load()} == last


def append_all(joblog: DeltaJobLog, commits: Sequence[Sequence[JobRow]], prefix: str) -> None:
    for number, rows in enumerate(commits):
        ids = [f"{prefix}{number}-{index}" if index % 2 else "" for index in range(len(rows))]
        joblog.append(list(map(LogEntry, rows, ids)))


def test_tidying_deletes_what_was_unneeded_a_call_ago_and_nothing_else(tmp_path: Path) -> None:
    files = tmp_path / "iscp_log"
    joblog = owner(tmp_path)
    joblog.append([LogEntry(job(1))])
    replaced = set(files.glob("*.parquet"))
    joblog.compact(joblog.load())
    (files / "orphan.parquet").write_bytes(b"")
    assert joblog.tidy() == 0
    (files / "young.parquet").write_bytes(b"")
    assert joblog.tidy() == 2
    assert not replaced & set(files.glob("*.parquet"))
    assert {path.name for path in files.glob("*.parquet")} & {"orphan.parquet", "young.parquet"} == {"young.parquet"}
    joblog.append([LogEntry(job(2))])
    assert names(joblog) == ["j1", "j2"]


def entry(seq: int, job_id: str = "id") -> HistoryEntry:
    return HistoryEntry("default", "t", "j", job_id, seq, 1, 2, 10.0, 10.0 + seq, 9.0, 0, "", 3, 4, "tail", "n1")


@pytest.mark.slow
def test_history_is_newest_first_and_outlives_compaction(tmp_path: Path) -> None:
    joblog = owner(tmp_path)
    now_s = SystemClock().now_s()
    entries = [replace(entry(seq, f"id{seq % 2}"), end_at_s=now_s // 1 + seq) for seq in range(410)]
    for each in entries[:205]:
        joblog.append_history([each])
    joblog.append_history(entries[205:])
    assert joblog.history("id1", 3) == [entries[409], entries[407], entries[405]]
    assert len(joblog.history("id0", 1_000)) == 205
    assert len(DeltaTable(str(tmp_path / "iscp_history")).file_uris()) < 20


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "iscp-log"]


def test_a_first_commit_that_was_cut_off_is_no_damage(tmp_path: Path) -> None:
    """As deltalake names a file until it is whole: that of another first start, or of one that was killed."""
    unfinished = tmp_path / "iscp_log" / "_delta_log" / f"{0:020d}.json#1"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text("")
    assert opened(tmp_path).claim_term() == 1
