"""Commits whose fsync fails: none counts as durable, and the next writer replaces their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.durable_commits import DurableCommits
from tests.fakes.failing_disk import on_a_failing_disk
from tests.fakes.guards import ScriptedFailpoints


@pytest.mark.parametrize("content", [True, False], ids=["the file", "the directory"])
def test_what_cannot_be_synced_is_replaced_by_a_copy_before_anything_behind_it_counts(
    tmp_path: Path, content: bool
) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    commits = DurableCommits(tmp_path, ScriptedFailpoints())
    written = [log / f"{version:020d}.json" for version in range(2)]
    for file in written:
        assert files.create(str(file), file.name.encode())
    inodes = [file.stat().st_ino for file in written]

    for _ in range(2):  # a disk that goes on failing
        with pytest.raises(OSError, match="Input/output error"):
            on_a_failing_disk(lambda: commits.sync(0, content=content))
    assert [file.stat().st_ino for file in written] == inodes

    # Whoever writes to this log in the process, not only who got the error.
    DurableCommits(tmp_path, ScriptedFailpoints()).sync(1, content=content)
    assert [file.stat().st_ino == inode for file, inode in zip(written, inodes, strict=True)] == [False, True]
    assert [file.read_bytes() for file in written] == [file.name.encode() for file in written]
    assert sorted(log.iterdir()) == written
