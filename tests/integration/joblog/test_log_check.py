"""A job log that is damaged: refused by the file's name before anything is written, and right when it is restored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from iscp.cli.iscp import iscp
from iscp.delta.joblog.delta_job_log import DeltaJobLog, repair_job_log
from iscp.delta.joblog.log_opening import Repaired
from iscp.model.job.job_row import LogEntry
from iscp.model.values.errors import EXIT_JOB_LOG_DAMAGED, ErrorCode, JobLogDamaged
from iscp.system.threads import SystemClock
from tests.fakes.damages import CONTENT, Damage, delete, replaced_by, truncate
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.log_program import job

JOBS = 45
"""Enough for a checkpoint and some commits behind it."""


def opened(home: Path, reached: int = -1) -> DeltaJobLog:
    return DeltaJobLog(str(home), SystemClock(), ScriptedFailpoints(), reached=lambda: reached)


def jobs_of(home: Path, reached: int = -1) -> int:
    joblog = opened(home, reached)
    joblog.claim_term()
    return len(joblog.load())


def version_of(path: Path) -> int:
    return int(path.name.partition(".")[0])


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("pristine") / "joblog"
    home.mkdir()
    joblog = opened(home)
    joblog.claim_term()
    for number in range(JOBS):
        joblog.append([LogEntry(job(number))])
    return home


@pytest.fixture
def home(pristine: Path, tmp_path: Path) -> Path:
    """As `iscp up` has it."""
    return Path(shutil.copytree(pristine, tmp_path / "data" / "joblog"))


def commits(home: Path) -> list[Path]:
    return sorted((home / "iscp_log" / "_delta_log").glob("*.json"))


def checkpoint(home: Path) -> Path:
    return max((home / "iscp_log" / "_delta_log").glob("*.checkpoint.parquet"))


def last(home: Path) -> Path:
    return commits(home)[-1]


def before_the_last(home: Path) -> Path:
    return commits(home)[-2]


def a_file_of_rows(home: Path) -> Path:
    return min((home / "iscp_log").glob("*.parquet"))


MATRIX = [
    (file, damage)
    for file in (last, before_the_last, checkpoint, a_file_of_rows)
    for damage in (delete, *CONTENT)
    # One without a checkpoint that its commits make up for is whole.
    if (file, damage) != (checkpoint, delete)
]


@pytest.mark.parametrize(("file", "damage"), MATRIX, ids=[f"{d.__name__}-{f.__name__}" for f, d in MATRIX])
@pytest.mark.slow(but=6)
def test_a_damaged_log_is_refused_by_the_files_name_and_goes_on_when_it_is_restored(
    home: Path, file: Callable[[Path], Path], damage: Damage
) -> None:
    path, reached = file(home), version_of(last(home))
    kept = path.read_bytes()
    damage(path)
    with pytest.raises(JobLogDamaged, match=path.name) as raised:
        jobs_of(home, reached)
    assert raised.value.code == ErrorCode.JOB_LOG_DAMAGED
    assert "backup" in raised.value.remedy
    path.write_bytes(kept)
    assert jobs_of(home, reached) == JOBS


def of_another_cluster(home: Path, path: Path) -> Path:
    other = home.parent / "other"
    other.mkdir()
    joblog = opened(other)
    joblog.claim_term()
    for number in range(JOBS):
        joblog.append([LogEntry(job(number))])
    return other / "iscp_log" / "_delta_log" / path.name


def of_another_version(home: Path, path: Path) -> Path:
    return path.with_name(f"{version_of(path) - 1:020d}.json")


def of_another_table(home: Path, path: Path) -> Path:
    write_deltalake(str(home.parent / "lake"), pa.table({"id": [1]}))
    return home.parent / "lake" / "_delta_log" / f"{0:020d}.json"


@pytest.mark.parametrize("whose", [of_another_cluster, of_another_version, of_another_table])
@pytest.mark.parametrize("file", [last, before_the_last])
def test_a_whole_commit_that_is_not_this_logs_is_refused(
    home: Path, file: Callable[[Path], Path], whose: Callable[[Path, Path], Path]
) -> None:
    path, reached = file(home), version_of(last(home))
    kept = path.read_bytes()
    replaced_by(whose(home, path))(path)
    with pytest.raises(JobLogDamaged, match=path.name) as raised:
        jobs_of(home, reached)
    assert "is a commit of another table" in str(raised.value) or "is the commit of version" in str(raised.value)
    path.write_bytes(kept)
    assert jobs_of(home, reached) == JOBS


@pytest.mark.parametrize("file", [last, before_the_last])
def test_a_commit_that_is_cut_at_a_lines_end_is_refused(home: Path, file: Callable[[Path], Path]) -> None:
    path = file(home)
    kept = path.read_text()
    path.write_text("".join(kept.splitlines(keepends=True)[:-1]))
    with pytest.raises(JobLogDamaged, match=f"{path.name}.*is not a whole commit"):
        jobs_of(home)
    path.write_text(kept)
    assert jobs_of(home) == JOBS
    claimed = last(home)  # it sets a term, and adds no file
    claimed.write_text("".join(claimed.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(JobLogDamaged, match=f"{claimed.name}.*is not a whole commit"):
        jobs_of(home)


def test_rows_that_somebody_else_removed_are_missed_and_come_back_by_a_command(home: Path) -> None:
    reached = version_of(last(home))
    DeltaTable(str(home / "iscp_log")).delete()
    foreign = last(home)
    with pytest.raises(JobLogDamaged, match=f"{foreign.name}.*was not written by iscp, and removes rows") as raised:
        jobs_of(home, reached)
    assert "iscp log repair" in raised.value.remedy
    repaired = repair_job_log(str(home), reached)
    assert repaired is not None
    assert (repaired.version, Path(repaired.renamed).name) == (reached, f"{foreign.name}.torn")
    assert jobs_of(home, reached) == JOBS


def test_rows_that_somebody_else_removed_are_missed_though_a_checkpoint_was_made_of_it(home: Path) -> None:
    reached = version_of(last(home))
    table = DeltaTable(str(home / "iscp_log"))
    table.delete()
    table.create_checkpoint()
    foreign, made = last(home), checkpoint(home)
    assert version_of(made) == version_of(foreign)
    with pytest.raises(JobLogDamaged, match=f"{foreign.name}.*was not written by iscp, and removes rows"):
        jobs_of(home, reached)
    assert repair_job_log(str(home), reached) == Repaired(reached, f"{foreign}.torn")
    assert not made.exists()
    assert jobs_of(home, reached) == JOBS


def test_a_removal_whose_commits_before_were_cleaned_away_is_not_put_aside(home: Path) -> None:
    table = DeltaTable(str(home / "iscp_log"))
    table.delete()
    table.create_checkpoint()
    before_the_last(home).unlink()
    kept = sorted(home.rglob("*"))
    with pytest.raises(JobLogDamaged, match="Restore it from a backup"):
        repair_job_log(str(home), -1)
    assert sorted(home.rglob("*")) == kept


def test_rows_that_were_removed_before_other_commits_are_given_up_only_by_a_person(home: Path) -> None:
    own = last(home).read_text()
    table = DeltaTable(str(home / "iscp_log"))
    table.optimize.compact()
    table.delete()
    foreign = last(home)
    version = version_of(foreign) + 1
    said = '"iscp.version":"{}"'
    assert said.format(version - 3) in own
    # As versions of iscp that did not look for it went on.
    foreign.with_name(f"{version:020d}.json").write_text(own.replace(said.format(version - 3), said.format(version)))
    with pytest.raises(JobLogDamaged, match=f"{foreign.name}.*are lost") as raised:
        jobs_of(home, version)
    assert "iscp log repair" in raised.value.remedy
    assert repair_job_log(str(home), version) == Repaired(version)
    assert foreign.exists()
    assert jobs_of(home, version) == 1
    assert repair_job_log(str(home), version) is None


def test_a_table_that_an_operator_puts_in_order_is_taken_as_it_is(home: Path) -> None:
    table = DeltaTable(str(home / "iscp_log"))
    table.optimize.compact()
    assert '"remove"' in last(home).read_text()
    assert jobs_of(home) == JOBS
    opened_again = DeltaTable(str(home / "iscp_log"))
    (home / "iscp_log" / opened_again.get_add_actions().column("path")[0].as_py()).unlink()
    opened_again.repair()  # somebody gives up the rows of a file that is lost
    assert '"FSCK"' in last(home).read_text()
    assert jobs_of(home) == 0


@pytest.mark.parametrize("history", [False, True])
def test_a_log_that_was_used_and_is_gone_is_no_first_start(home: Path, history: bool) -> None:
    away = (home / "iscp_log").rename(home / "away")
    if history:
        (home / "iscp_log.used").unlink()
        shutil.copytree(away, home / "iscp_history")
    with pytest.raises(JobLogDamaged, match="is gone, and this cluster has used one") as raised:
        jobs_of(home)
    assert "Restore" in raised.value.remedy
    assert not (home / "iscp_log").exists()
    away.rename(home / "iscp_log")
    assert jobs_of(home) == JOBS


def test_a_log_whose_whole_directory_is_gone_is_known_to_etcd(tmp_path: Path) -> None:
    with pytest.raises(JobLogDamaged):
        opened(tmp_path, reached=0).claim_term()
    assert not list(tmp_path.iterdir())


def test_a_first_start_and_a_log_from_before_there_was_a_sign_begin(home: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    assert jobs_of(new) == 0
    (home / "iscp_log.used").unlink()
    assert jobs_of(home) == JOBS
    assert (home / "iscp_log.used").exists()


def repair(home: Path) -> tuple[int, str]:
    done = CliRunner().invoke(iscp, ["log", "repair", "--data", str(home.parent)])
    return done.exit_code, f"{done.output}{done.exception or ''}"


@pytest.mark.parametrize("damage", CONTENT)
def test_a_torn_last_commit_is_put_aside_by_a_command_that_says_so(home: Path, damage: Damage) -> None:
    torn = last(home)
    damage(torn)
    content = torn.read_bytes()
    with pytest.raises(JobLogDamaged, match=r"iscp log repair.*nobody was answered"):
        jobs_of(home)
    status, said = repair(home)
    assert status == 0
    assert f"renamed to {torn}.torn" in said
    assert Path(f"{torn}.torn").read_bytes() == content
    assert jobs_of(home) == JOBS - 1


def test_what_is_not_a_torn_last_commit_is_not_put_aside(home: Path) -> None:
    before = sorted(home.rglob("*"))
    status, said = repair(home)
    assert (status, "nothing is wrong" in said) == (1, True)
    truncate(before_the_last(home))
    status, said = repair(home)
    assert (status, before_the_last(home).name in said) == (EXIT_JOB_LOG_DAMAGED, True)
    truncate(last(home))
    assert repair(home)[0] == EXIT_JOB_LOG_DAMAGED
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("damage", [delete, *CONTENT])
@pytest.mark.parametrize("lost", [1, 3])
def test_commits_that_were_answered_for_and_are_lost_are_given_up_only_by_a_person(
    home: Path, damage: Damage, lost: int
) -> None:
    reached, first = version_of(last(home)), commits(home)[-lost]
    for path in commits(home)[-lost + 1 :] if lost > 1 else ():
        path.unlink()
    damage(first)
    before = sorted(home.rglob("*"))
    with pytest.raises(JobLogDamaged, match=first.name) as raised:
        jobs_of(home, reached)
    assert "acknowledged" in str(raised.value)
    assert f"accept the loss with `iscp log repair`: the log then ends at version {reached - lost}" in str(raised.value)
    assert sorted(home.rglob("*")) == before
    repaired = repair_job_log(str(home), reached)
    assert repaired is not None
    assert repaired.version == reached - lost
    assert bool(repaired.renamed) == (damage is not delete)
    assert jobs_of(home, repaired.version) == JOBS - lost


def test_a_log_that_went_on_since_it_was_last_marked_begins(home: Path) -> None:
    assert jobs_of(home, version_of(last(home)) - 1) == JOBS
