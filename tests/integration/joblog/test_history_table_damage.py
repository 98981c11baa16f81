"""A history of iterations that is damaged: named, without holding up a job, and begun again by a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from iscp.cli.iscp import iscp
from iscp.cluster.owner.job_log_writer import WAITING_WHILE_DAMAGED_MAX, HistoryWriter
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.model.job.iteration import HistoryEntry
from iscp.model.values.errors import ErrorCode, HistoryDamaged
from iscp.system.threads import SystemClock
from tests.fakes.damages import CONTENT, Damage, delete, delete_directory, truncate
from tests.fakes.guards import ScriptedFailpoints


def entry(seq: int) -> HistoryEntry:
    ends = ("default", "t-1", "copy", "job-1", seq, seq - 1, seq, 1.0 + seq, 2.0 + seq, 1.0)
    return HistoryEntry(*ends, error_code=0, error_msg="", rows=1, bytes=1, data_type="tail", node_id="n-1")


def commit(table: Path, number: int) -> Path:
    return sorted((table / "_delta_log").glob("*.json"))[number]


def middle_commit(table: Path) -> Path:
    return commit(table, 1)


def last_commit(table: Path) -> Path:
    return commit(table, -1)


def a_file_of_rows(table: Path) -> Path:
    return min(table.glob("*.parquet"))


MATRIX = [
    (file, damage)
    for file in (middle_commit, last_commit, a_file_of_rows)
    for damage in (delete, *CONTENT)
    # Without its last commit a history is a whole one, an entry shorter: nothing says that it was longer.
    if (file, damage) != (last_commit, delete)
]


class Stand:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.table = home / "iscp_history"
        self.log = DeltaJobLog(str(home), SystemClock(), ScriptedFailpoints())
        self.log.claim_term()
        for seq in (1, 2, 3):
            self.log.append_history([entry(seq)])
        # As the owner of another process finds it.
        self.log = DeltaJobLog(str(home), SystemClock(), ScriptedFailpoints())
        self.log.claim_term()

    def seqs(self) -> list[int]:
        return [each.seq for each in self.log.history(entry(1).job_id, 100)]

    def repair(self) -> tuple[int, str]:
        done = CliRunner().invoke(iscp, ["log", "repair", "--data", str(self.home.parent)])
        return done.exit_code, f"{done.output}{done.exception or ''}"


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    home = tmp_path / "joblog"
    home.mkdir()
    return Stand(home)


@pytest.mark.parametrize(("file", "damage"), MATRIX, ids=[f"{d.__name__}-{f.__name__}" for f, d in MATRIX])
def test_a_damaged_history_is_named_and_started_over_by_a_command(
    stand: Stand, file: Callable[[Path], Path], damage: Damage
) -> None:
    path = file(stand.table)
    kept = path.read_bytes()
    damage(path)
    with pytest.raises(HistoryDamaged, match=path.name) as raised:
        stand.seqs()
    assert raised.value.code == ErrorCode.HISTORY_DAMAGED
    assert "iscp log repair" in raised.value.remedy
    path.write_bytes(kept)
    assert stand.seqs() == [3, 2, 1]
    damage(path)
    status, said = stand.repair()
    assert status == 0, said
    aside = f"{stand.table}.damaged-1"
    assert f"renamed to {aside}" in said
    assert Path(aside).is_dir()
    assert stand.seqs() == []
    stand.log.append_history([entry(4)])
    assert stand.seqs() == [4]
    status, said = stand.repair()
    assert (status, "nothing is wrong" in said) == (1, True)


def test_nobody_waits_for_a_damaged_history_and_what_is_kept_is_written_when_it_is_repaired(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    writer, told = HistoryWriter(stand.log, SystemClock(), retry_s=0.1, tidy_every_s=1e9), list[int]()
    truncate(middle_commit(stand.table))
    most = WAITING_WHILE_DAMAGED_MAX
    writer.add([entry(seq) for seq in range(4, 4 + most + 5)], lambda: told.append(1))
    assert not writer.turn()
    assert told == [1]
    writer.add([entry(4 + most + 5)], lambda: told.append(2))
    assert told == [1, 2]
    assert not writer.turn()
    messages = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert messages == ["history.damaged", "history.dropped", "history.dropped"]
    assert [getattr(each, "entries", None) for each in caplog.records if each.message == "history.dropped"] == [5, 1]
    assert stand.repair()[0] == 0
    assert writer.turn()
    assert len(stand.log.history(entry(1).job_id, 2 * most)) == most
    writer.add([entry(1)], lambda: told.append(3))
    assert told == [1, 2]  # from now on it waits again
    assert writer.turn()
    assert told == [1, 2, 3]


def test_a_history_that_is_gone_starts_over_and_says_so(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    delete_directory(middle_commit(stand.table))
    assert stand.seqs() == []
    (lost,) = [record for record in caplog.records if record.message == "history.lost"]
    assert getattr(lost, "uri", "") == str(stand.table)
    stand.log.append_history([entry(4)])
    assert stand.seqs() == [4]
