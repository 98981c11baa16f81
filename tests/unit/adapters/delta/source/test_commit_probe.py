"""The probe finds the newest version in real log directories: by file name where it can, by listing where it must."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from iscp.adapters.delta.log.commit_head import COMMIT_INFO_BYTES_MAX
from iscp.adapters.delta.source.commit_probe import (
    FORWARD_MAX,
    REPAIR_COMMITS_MAX,
    DeltaProbe,
)
from iscp.core.job.start_rule import ProbeState
from iscp.core.values.errors import StorageError, TableNotFound


class Table:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "_delta_log"
        self.log.mkdir(parents=True)

    @property
    def uri(self) -> str:
        return str(self.path)

    def commit(self, version: int, at_s: float | None = None) -> None:
        made = self.log / f"{version:020d}.json"
        made.write_text("{}")
        if at_s is not None:
            os.utime(made, (at_s, at_s))

    def checkpoint(self, version: int, part: str = "") -> None:
        (self.log / f"{version:020d}.checkpoint{part}.parquet").write_bytes(b"")
        (self.log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": 1}))

    def clean(self, *versions: int) -> None:
        for version in versions:
            (self.log / f"{version:020d}.json").unlink()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table(tmp_path / "t")
    for version in range(3):
        made.commit(version)
    return made


def test_an_idle_table_gives_the_very_state_it_was_probed_with(table: Table) -> None:
    probe = DeltaProbe()
    seen = probe.first_probe(table.uri)
    assert seen.version == 2
    assert probe.probe(table.uri, seen) is seen


def test_it_goes_forward_and_returns_when_the_first_new_commit_was_made(table: Table) -> None:
    probe = DeltaProbe()
    seen = probe.first_probe(table.uri)
    table.commit(3, at_s=1_000.0)
    table.commit(4, at_s=2_000.0)
    moved = probe.probe(table.uri, seen)
    assert (moved.version, moved.since_s) == (4, 1_000.0)
    assert probe.probe(table.uri, moved) is moved


def test_far_ahead_is_found_by_listing(table: Table) -> None:
    probe = DeltaProbe()
    seen = probe.first_probe(table.uri)
    for version in range(3, FORWARD_MAX + 10):
        table.commit(version, at_s=1_000.0 + version)
    moved = probe.probe(table.uri, seen)
    assert (moved.version, moved.since_s) == (FORWARD_MAX + 9, 1_003.0)
    assert probe.probe(table.uri, moved) is moved


def test_a_state_of_which_only_the_version_is_known_needs_no_listing(table: Table) -> None:
    moved = DeltaProbe().probe(table.uri, ProbeState(1))
    assert moved.version == 2
    assert moved.since_s > 0


def test_a_log_recreated_at_a_lower_version_is_noticed(table: Table) -> None:
    probe = DeltaProbe()
    seen = probe.first_probe(table.uri)
    shutil.rmtree(table.log)
    table.log.mkdir()
    table.commit(0)
    assert probe.probe(table.uri, seen).version == 0


def test_a_log_recreated_at_the_same_version_is_noticed(table: Table) -> None:
    probe = DeltaProbe()
    seen = probe.first_probe(table.uri)
    shutil.rmtree(table.log)
    table.log.mkdir()
    for version in range(3):
        table.commit(version, at_s=3_000.0)
    moved = probe.probe(table.uri, seen)
    assert moved.version == 2
    assert moved.stamp != seen.stamp


def test_commits_cleaned_away_while_nobody_probed_do_not_hide_later_ones(table: Table) -> None:
    probe = DeltaProbe()
    seen = probe.first_probe(table.uri)
    for version in range(3, 9):
        table.commit(version)
    table.clean(0, 1, 2, 3)
    assert probe.probe(table.uri, seen).version == 8


@pytest.mark.parametrize("part", ["", ".0000000001.0000000002", ".3a0d65cd-4056-49b8-937b-95f9e3ee90e5"])
def test_a_log_of_checkpoints_only(table: Table, part: str) -> None:
    probe = DeltaProbe()
    table.checkpoint(2, part)
    table.clean(0, 1, 2)
    seen = probe.first_probe(table.uri)
    assert seen.version == 2
    assert probe.probe(table.uri, seen) is seen
    table.commit(3)
    assert probe.probe(table.uri, seen).version == 3


def test_the_last_checkpoint_spares_the_listing_but_is_not_the_end(table: Table) -> None:
    table.checkpoint(1)
    assert DeltaProbe().first_probe(table.uri).version == 2


def test_a_last_checkpoint_that_is_broken_or_gone_is_not_believed(table: Table) -> None:
    probe = DeltaProbe()
    (table.log / "_last_checkpoint").write_text("not json")
    assert probe.first_probe(table.uri).version == 2
    (table.log / "_last_checkpoint").write_text(f'{{"version": {10**400}}}')
    assert probe.first_probe(table.uri).version == 2
    (table.log / "_last_checkpoint").write_text('{"version": 77}')
    assert probe.first_probe(table.uri).version == 2


def test_checksums_and_compacted_logs_are_no_versions(table: Table) -> None:
    (table.log / f"{9:020d}.crc").write_text("{}")
    (table.log / f"{0:020d}.{9:020d}.compacted.json").write_text("{}")
    (table.log / f".{9:020d}.json.tmp").write_text("{}")
    assert DeltaProbe().first_probe(table.uri).version == 2


def test_uris_of_local_files_are_paths(table: Table) -> None:
    assert DeltaProbe().first_probe(f"file://{table.uri}").version == 2


def test_a_table_that_is_gone(table: Table) -> None:
    probe = DeltaProbe()
    seen = probe.first_probe(table.uri)
    shutil.rmtree(table.path)
    with pytest.raises(TableNotFound, match="is not a Delta table"):
        probe.probe(table.uri, seen)
    with pytest.raises(TableNotFound):
        probe.first_probe(table.uri)


def test_a_directory_without_a_log_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(TableNotFound):
        DeltaProbe().first_probe(str(tmp_path))


def test_other_faults_of_the_storage_are_temporary(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a file where a directory should be")
    with pytest.raises(StorageError, match="Not a directory"):
        DeltaProbe().probe(str(tmp_path / "t"), ProbeState(1))
    with pytest.raises(StorageError):
        DeltaProbe().first_probe(str(tmp_path / "t"))


def mark(text: str) -> CommitProperties:
    return CommitProperties(custom_metadata={"userMetadata": text})


def test_a_restore_and_a_commit_that_is_marked_are_found_as_deltalake_writes_them(tmp_path: Path) -> None:
    uri, probe = str(tmp_path / "t"), DeltaProbe()
    rows = pa.table({"id": [1]})
    write_deltalake(uri, rows)
    write_deltalake(uri, rows, mode="append", commit_properties=mark("nightly"))
    assert probe.newest_repair(uri, 0, 1) == 0
    DeltaTable(uri).restore(0)
    assert probe.newest_repair(uri, 0, 2) == 2
    write_deltalake(uri, rows, mode="append", commit_properties=mark('{"iscp.repair": true, "why": "May"}'))
    write_deltalake(uri, rows, mode="append")
    assert probe.newest_repair(uri, 0, 4) == 3
    assert probe.newest_repair(uri, 0, 2) == 2
    assert probe.newest_repair(uri, 3, 4) == 0
    assert probe.newest_repair(uri, 4, 4) == 0


def say(table: Table, version: int, content: bytes) -> None:
    (table.log / f"{version:020d}.json").write_bytes(content)


RESTORE = b'{"commitInfo":{"operation":"RESTORE"}}\n'


def test_what_a_commit_says_of_itself_is_read_at_its_beginning_alone(table: Table) -> None:
    """However many files a RESTORE names."""
    add = b'{"add":{"path":"p","size":1}}\n'
    say(table, 1, RESTORE + add * (2 * COMMIT_INFO_BYTES_MAX // len(add)))
    say(table, 2, b'{"protocol":{}}\n' + RESTORE)
    say(table, 3, add * (COMMIT_INFO_BYTES_MAX // len(add) + 1) + RESTORE)
    assert [DeltaProbe().newest_repair(table.uri, version - 1, version) for version in (1, 2, 3)] == [1, 2, 0]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b'{"commitInfo":',
        b'{"commitInfo":null}',
        b'{"commitInfo":[]}',
        b'{"commitInfo":{"operation":7}}',
        b'{"commitInfo":' + b"[" * 60_000,
    ],
)
def test_what_cannot_be_read_is_no_repair(table: Table, content: bytes) -> None:
    """The iteration reads all of it, and says so."""
    say(table, 3, content)
    assert DeltaProbe().newest_repair(table.uri, 2, 3) == 0


def test_commits_that_are_gone_are_no_repairs_and_no_more_are_read_than_may_be(table: Table) -> None:
    say(table, 3, RESTORE)
    assert DeltaProbe().newest_repair(table.uri, 2, 3 + REPAIR_COMMITS_MAX - 1) == 3
    assert DeltaProbe().newest_repair(table.uri, 2, 3 + REPAIR_COMMITS_MAX) == 0


def test_a_storage_that_does_not_answer_is_said(table: Table) -> None:
    (table.log / f"{3:020d}.json").mkdir()
    with pytest.raises(StorageError, match="directory"):
        DeltaProbe().newest_repair(table.uri, 2, 3)
