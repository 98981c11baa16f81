"""Backups of the job log: of one version while it is written, never half of one, and restored whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.delta.joblog.log_backup import (
    MANIFEST,
    TERMS_SKIPPED,
    VERSIONS_SKIPPED,
    BackupManifest,
    RestoredLog,
    create_backup,
    parse_manifest,
    read_backup,
    restore_backup,
    with_paused_jobs,
)
from iscp.delta.joblog.log_schema import FORMAT
from iscp.model.job.job_row import LogEntry, Reason
from iscp.model.values.errors import (
    ConfigurationError,
    InvalidRequest,
    IscpError,
    JobLogDamaged,
    OutcomeUnknown,
    StorageError,
)
from iscp.system.threads import SystemClock
from tests.fakes.damages import CONTENT, Damage, delete
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.log_program import job
from tests.fakes.s3 import FakeS3

JOBS = 45
"""Enough for a checkpoint and some commits behind it."""
CLUSTER = "lake"
ROOT = Path(__file__).parents[3]


def opened(home: Path | str, reached: int = -1) -> DeltaJobLog:
    return DeltaJobLog(str(home), SystemClock(), ScriptedFailpoints(), cluster=CLUSTER, reached=lambda: reached)


def written(home: Path | str, jobs: int = JOBS) -> DeltaJobLog:
    joblog = opened(home)
    joblog.claim_term()
    for number in range(jobs):
        joblog.append([LogEntry(job(number), f"request-{number}")])
    return joblog


def backed_up(home: Path | str, to: Path | str) -> BackupManifest:
    return create_backup(f"{home}/iscp_log", str(to), 1.0, "0.1.0")


def restored(source: Path | str, home: Path | str, cluster: str = CLUSTER, reached: int = -1) -> RestoredLog:
    return restore_backup(f"{home}/iscp_log", read_backup(str(source)), cluster, reached, 1_000)


def files_below(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that nobody writes any more, and a backup of it."""
    root = tmp_path_factory.mktemp("pristine")
    (root / "joblog").mkdir()
    written(root / "joblog")
    backed_up(root / "joblog", root / "backup")
    return root


@pytest.fixture
def home(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine / "joblog", tmp_path / "joblog"))


@pytest.fixture
def taken(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine / "backup", tmp_path / "backup"))


def test_a_restored_log_has_the_rows_and_requests_of_the_backup_and_goes_on(home: Path, taken: Path) -> None:
    before = opened(home)
    before.claim_term()
    rows, requests = before.load(), dict(before.requests())
    before.append([LogEntry(job(JOBS))])
    shutil.rmtree(home / "iscp_log")
    as_of = restored(taken, home, reached=before.version)
    after = opened(home, reached=before.version)
    assert after.claim_term() == as_of.term + 1
    assert sorted(after.load()) == sorted(rows)
    assert after.requests() == requests
    assert after.version == as_of.version + 1
    after.append([LogEntry(job(JOBS + 1))])
    after.compact(after.load())
    again = opened(home)
    again.claim_term()
    assert len(again.load()) == JOBS + 1


def test_jobs_can_be_restored_paused(home: Path, taken: Path) -> None:
    shutil.rmtree(home / "iscp_log")
    restore_backup(f"{home}/iscp_log", with_paused_jobs(read_backup(str(taken))), CLUSTER, -1, 1_000)
    joblog = opened(home)
    joblog.claim_term()
    rows = joblog.load()
    assert {row.reason for row in rows} == {Reason.PAUSED}
    assert len(rows) == len(joblog.requests()) == JOBS


def test_a_restored_log_is_beyond_every_version_and_term_that_was(home: Path, taken: Path) -> None:
    manifest = read_backup(str(taken)).manifest
    shutil.rmtree(home / "iscp_log")
    for reached in (-1, manifest.version + 7):
        as_of = restored(taken, home, reached=reached)
        assert as_of.version == max(manifest.version, reached) + VERSIONS_SKIPPED
        assert as_of.term == manifest.term + TERMS_SKIPPED
        shutil.rmtree(home / "iscp_log")


def test_an_owner_that_slept_over_a_restore_is_deposed_by_its_next_commit(home: Path, taken: Path) -> None:
    sleeper = opened(home)
    sleeper.claim_term()
    sleeper.append([LogEntry(job(JOBS))])
    shutil.rmtree(home / "iscp_log")
    restored(taken, home)
    after = opened(home)
    after.claim_term()
    with pytest.raises(OutcomeUnknown):
        sleeper.append([LogEntry(job(JOBS + 1))])  # its version is free: nobody has written that far
    after.append([LogEntry(job(JOBS + 2))])
    again = opened(home)
    again.claim_term()
    assert {row.key.job_name for row in again.load()} == {f"j{n}" for n in [*range(JOBS), JOBS + 2]}


def test_backups_beside_an_owner_hold_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    """It compacts every 20 commits, and each backup is of one version: no job twice, none lost."""
    (home := tmp_path / "joblog").mkdir()
    command = [sys.executable, "-m", "tests.fakes.log_program", str(home), "0", "300"]
    acknowledged: list[str] = []
    counts = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        for line in owner.stdout:
            word, job_id = line.split()
            assert word == "ok"
            acknowledged.append(job_id)
            if len(acknowledged) % 60 == 1:
                to = tmp_path / f"backup-{len(acknowledged)}"
                manifest = backed_up(home, to)
                ids = read_backup(str(to)).rows["job_id"].to_pylist()
                assert set(acknowledged) <= set(ids)
                assert manifest.jobs == len(set(ids))
                counts.append(manifest.jobs)
    assert owner.returncode == 0
    assert counts == sorted(counts)
    assert len(acknowledged) == 300


def first_file(taken: Path) -> Path:
    return next(taken.glob("*.parquet"))


def the_manifest(taken: Path) -> Path:
    return taken / MANIFEST


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [delete, flip, *CONTENT])
@pytest.mark.parametrize("file", [first_file, the_manifest])
def test_a_damaged_or_partial_backup_is_refused_and_nothing_is_written(
    home: Path, taken: Path, file: Callable[[Path], Path], damage: Damage
) -> None:
    damage(file(taken))
    shutil.rmtree(home / "iscp_log")
    before = files_below(home)
    with pytest.raises(InvalidRequest, match=r"damaged|partial") as raised:
        restored(taken, home)
    assert raised.value.field == "SRC"
    assert files_below(home) == before


def test_a_place_without_a_backup_is_refused(home: Path, tmp_path: Path) -> None:
    for source in (tmp_path / "nothing", home):
        with pytest.raises(InvalidRequest, match="holds no backup"):
            restored(source, home)


def test_a_backup_of_a_later_format_is_refused(home: Path, taken: Path) -> None:
    path = taken / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(ConfigurationError, match="is of format 2, and this iscp knows 1"):
        restored(taken, home)


def test_a_backup_of_a_log_of_a_later_format_or_another_cluster_is_refused(home: Path, taken: Path) -> None:
    shutil.rmtree(home / "iscp_log")
    before = files_below(home)
    with pytest.raises(ConfigurationError, match="of the cluster 'lake'"):
        restored(taken, home, cluster="other")
    later = replace(read_backup(str(taken)).manifest, log_format=FORMAT + 1)
    (taken / MANIFEST).write_bytes(later.to_bytes())
    with pytest.raises(ConfigurationError, match=f"of a job log of format {FORMAT + 1}"):
        restored(taken, home)
    assert files_below(home) == before


def test_a_place_that_holds_a_log_is_refused_and_left_as_it_is(home: Path, taken: Path) -> None:
    before = files_below(home)
    with pytest.raises(ConfigurationError, match="holds a log already") as raised:
        restored(taken, home)
    assert raised.value.field == "log.uri"
    assert files_below(home) == before
    with pytest.raises(StorageError, match="the directory that is to hold"):
        restored(taken, home.parent / "not_mounted")
    assert not (home.parent / "not_mounted").exists()


def test_a_restore_that_was_cut_off_is_refused_by_owners_and_can_be_repeated(home: Path, taken: Path) -> None:
    shutil.rmtree(home / "iscp_log")
    as_of = restored(taken, home)
    log = home / "iscp_log" / "_delta_log"
    (log / f"{as_of.version:020d}.checkpoint.parquet").unlink()  # what is written last
    with pytest.raises(JobLogDamaged):
        opened(home).claim_term()
    other = home.parent / "other"
    other.mkdir()
    written(other, 3)
    backed_up(other, home.parent / "of_other")
    with pytest.raises(ConfigurationError, match="what is left of one"):
        restored(home.parent / "of_other", home)
    assert restored(taken, home) == as_of
    joblog = opened(home)
    joblog.claim_term()
    assert len(joblog.load()) == JOBS


def test_a_place_that_is_taken_or_within_the_log_takes_no_backup(home: Path, taken: Path, tmp_path: Path) -> None:
    before = files_below(tmp_path)
    (file := tmp_path / "file").touch()
    for to, why in (
        (taken, "holds a backup already"),
        (home / "backup", "is where the job log is"),
        (home, "is where the job log is"),
        (file, "not a directory"),
        (tmp_path / "not_mounted" / "backup", "not a directory"),
    ):
        with pytest.raises(InvalidRequest, match=why) as raised:
            backed_up(home, to)
        assert raised.value.field == "DEST"
    with pytest.raises(InvalidRequest, match="there is no job log"):
        backed_up(tmp_path / "nothing", tmp_path / "backup-2")
    file.unlink()
    assert files_below(tmp_path) == before


def test_of_a_damaged_log_there_is_no_backup(home: Path, tmp_path: Path) -> None:
    commits = sorted((home / "iscp_log" / "_delta_log").glob("*.json"))
    content = commits[-2].read_bytes()
    commits[-2].unlink()
    with pytest.raises(JobLogDamaged, match="is missing"):
        backed_up(home, tmp_path / "backup")
    commits[-2].write_bytes(content)
    next((home / "iscp_log").glob("*.parquet")).unlink()
    with pytest.raises(JobLogDamaged):
        backed_up(home, tmp_path / "backup")
    assert not (tmp_path / "backup" / MANIFEST).exists()


def test_what_a_backup_left_half_written_is_none_and_the_next_one_can_go_there(home: Path, taken: Path) -> None:
    (taken / MANIFEST).unlink()
    with pytest.raises(InvalidRequest, match="is partial"):
        read_backup(str(taken))
    assert backed_up(home, taken).jobs == JOBS
    assert read_backup(str(taken)).manifest.jobs == JOBS


def test_on_s3_it_is_the_same(s3: FakeS3, tmp_path: Path) -> None:
    home, to = s3.uri("joblog", "acme"), s3.uri("backups/one", "other")
    written(home, 5)
    assert backed_up(home, to).jobs == 5
    with pytest.raises(InvalidRequest, match="holds a backup already"):
        backed_up(home, to)
    with pytest.raises(ConfigurationError, match="holds a log already"):
        restored(to, home)
    as_of = restored(to, s3.uri("elsewhere", "acme"))
    joblog = opened(s3.uri("elsewhere", "acme"))
    assert joblog.claim_term() == as_of.term + 1
    assert len(joblog.load()) == 5
    (tmp_path / "local").mkdir()
    restored(to, tmp_path / "local")
    assert DeltaTable(str(tmp_path / "local" / "iscp_log")).version() == as_of.version


def test_a_manifest_that_names_a_file_elsewhere_is_refused(taken: Path) -> None:
    manifest = read_backup(str(taken)).manifest
    for name in ("../passwd", "/etc/passwd", "a/b.parquet", ""):
        with pytest.raises(IscpError, match="names a file of no backup"):
            parse_manifest(replace(manifest, file=name).to_bytes(), "manifest.json")
