"""A disk that fails to sync a commit of the job log: what is visible but may be lost is not acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.model.job.job_row import LogEntry
from iscp.model.values.errors import NotOwner, OutcomeUnknown, StorageError
from iscp.system.threads import SystemClock
from tests.fakes.guards import ScriptedFailpoints, break_down
from tests.fakes.log_program import job

FAILPOINT_SYNC, FAILPOINT_REWRITE = "log.sync", "log.rewrite"


class Stand:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.disk = ScriptedFailpoints()
        self.log = self.opened()
        self.log.claim_term()
        self.log.append([LogEntry(job(1))])

    def opened(self) -> DeltaJobLog:
        return DeltaJobLog(str(self.home), SystemClock(), self.disk)

    def commit(self, version: int) -> Path:
        return self.home / "iscp_log" / "_delta_log" / f"{version:020d}.json"

    def held(self, version: int) -> Path:
        """Return a link to the commit's file: no other file gets its inode while the link is there."""
        link = self.home / f"{version}.held"
        link.hardlink_to(self.commit(version))
        return link


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def test_a_commit_whose_sync_failed_is_written_again_before_it_is_acknowledged(stand: Stand) -> None:
    seen: list[Path] = []
    version = stand.log.version + 1

    def note_and_break_down() -> None:
        seen.append(stand.held(version))
        break_down()

    stand.disk.once(FAILPOINT_SYNC, note_and_break_down)
    stand.log.append([LogEntry(job(2))])
    assert not seen[0].samefile(stand.commit(version))
    assert len(stand.log.load()) == 2


def test_a_commit_that_cannot_be_made_durable_is_not_acknowledged_and_the_next_claim_writes_it_again(
    stand: Stand,
) -> None:
    stand.disk.once(FAILPOINT_SYNC, break_down)
    stand.disk.once(FAILPOINT_REWRITE, break_down)
    version = stand.log.version + 1
    entries = [LogEntry(job(2))]
    for error in (OutcomeUnknown, NotOwner):  # nor when it is requested again
        with pytest.raises(error, match=f"version {version} .* may not outlive a power loss"):
            stand.log.append(entries)
    seen = stand.held(version)
    stand.disk.once(FAILPOINT_REWRITE, break_down)
    with pytest.raises(StorageError, match="durable"):
        stand.opened().claim_term()
    assert seen.samefile(stand.commit(version))
    following = stand.opened()
    following.claim_term()
    assert not seen.samefile(stand.commit(version))
    assert len(following.load()) == 2


def test_a_claim_that_cannot_be_made_durable_is_none(stand: Stand) -> None:
    following = stand.opened()
    stand.disk.once(FAILPOINT_REWRITE, lambda: stand.disk.once(FAILPOINT_REWRITE, break_down))
    stand.disk.once(FAILPOINT_SYNC, break_down)
    with pytest.raises(NotOwner):
        following.claim_term()
    third = stand.opened()
    third.claim_term()
    assert len(third.load()) == 1
