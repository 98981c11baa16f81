"""What the first probe shows of changes to a source while nobody probed it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.delta.log.commits import read_commit
from iscp.delta.source.change_source import DeltaProbe
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import ProbeState
from iscp.model.settings.config import BackoffConfig, ProbeConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey, ShardId
from iscp.model.values.watermark import Watermark
from iscp.schedule.table_state import RECREATED_AFTER_S, TrackedTable
from iscp.schedule.tracked_job import TrackedJob
from tests.fakes.commit_files import commit_path


def made(uri: str, at_s: float) -> None:
    """A table of one version, whose file is of that time."""
    write_deltalake(uri, pa.table({"id": [1]}))
    os.utime(commit_path(uri, 0), (at_s, at_s))


@pytest.mark.parametrize(("remade_after_s", "stale"), [(None, False), (RECREATED_AFTER_S / 2, False), (3_600.0, True)])
def test_a_source_recreated_at_the_version_that_was_applied_is_noticed_at_a_takeover(
    tmp_path: Path, remade_after_s: float | None, stale: bool
) -> None:
    uri = str(tmp_path / "source")
    made(uri, 0.0)
    commit = read_commit(uri, 0)
    assert commit is not None
    os.utime(commit_path(uri, 0), (commit.committed_at_s, commit.committed_at_s))
    row = JobRow(
        JobKey("default", "t", "x"),
        "j-1",
        JobSpec(ConsumerSpec("replica", "/x")).to_json(),
        uri,
        uri,
        watermark=Watermark(0, commit.committed_at_s),
    )
    if remade_after_s is not None:
        shutil.rmtree(uri)
        made(uri, commit.committed_at_s + remade_after_s)
    table = TrackedTable(ShardId("t"), uri)
    job = TrackedJob(row, BackoffConfig())
    table.jobs, table.seen = (job,), ProbeState(0)
    table.take_state(DeltaProbe().probe(uri, table.seen), ProbeConfig(), 0.0, 0.5)
    assert job.stale is stale
    job.stale = False
    table.take_state(DeltaProbe().probe(uri, table.seen), ProbeConfig(), 1.0, 0.5)
    assert not job.stale, "once is enough"
