"""A source's damaged log: a range is resolved correctly, or refused by an error that names table and file.

What a hostile account leaves in its tables: refused by name, in bounded memory and time, in a process that lives.

The probe finds the newest version in real log directories: by file name where it can, by listing where it must.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from iscp.delta.log.commits import COMMIT_INFO_BYTES_MAX
from iscp.delta.source.arrow_read import Shape
from iscp.delta.source.change_source import FORWARD_MAX, REPAIR_COMMITS_MAX, DeltaChangeSource, DeltaProbe
from iscp.model.job.iteration import Bounds
from iscp.model.job.start_rule import ProbeState
from iscp.model.values.errors import EngineError, ErrorCode, StorageError, TableNotFound
from iscp.model.values.watermark import Watermark
from iscp.ports.source import ChangesUnavailableError, SourceRange
from tests.fakes.checkpoints import ANOTHER_ID, another_table_with, edit_checkpoint
from tests.fakes.commit_files import commit_path
from tests.fakes.damages import CONTENT, Damage, delete, link_to_itself, replaced_by
from tests.fakes.poisoned_tables import NESTED, NO_FILES, PATHS, POISONS, SECRET, VECTORS, Poison
from tests.fakes.replayed_states import replay_state

APPLIED, CHECKPOINT, NEWEST = 4, 2, 7


def write(uri: str) -> str:
    for version in range(NEWEST + 1):
        rows = pa.table({"id": [version]})
        write_deltalake(uri, rows, mode="append", configuration={"delta.enableChangeDataFeed": "true"})
        if version == CHECKPOINT:
            DeltaTable(uri).create_checkpoint()
    return uri


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table and another one."""
    lake = tmp_path_factory.mktemp("lake")
    write(str(lake / "orders"))
    write(str(lake / "other"))
    return lake


@pytest.fixture
def lake(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "lake"))


def resolved(lake: Path, source: DeltaChangeSource) -> tuple[SourceRange, tuple[str, ...]]:
    uri = str(lake / "orders")
    span = source.resolve(uri, Watermark(APPLIED, 0.0), None, Bounds())
    return replace(span, from_at_s=0.0), source.columns(uri, span.last_version)


def commit(version: int) -> Callable[[Path], Path]:
    def path(lake: Path) -> Path:
        return lake / "orders" / "_delta_log" / f"{version:020d}.json"

    path.__name__ = f"commit {version}"
    return path


def checkpoint(lake: Path) -> Path:
    return lake / "orders" / "_delta_log" / f"{CHECKPOINT:020d}.checkpoint.parquet"


def last_checkpoint(lake: Path) -> Path:
    return lake / "orders" / "_delta_log" / "_last_checkpoint"


FILES = (commit(NEWEST), commit(NEWEST - 1), commit(APPLIED), commit(0), checkpoint, last_checkpoint)
DAMAGES = (*CONTENT, delete, link_to_itself)
MATRIX = [(file, damage) for file in FILES for damage in DAMAGES]


@pytest.mark.parametrize("knows", [False, True], ids=["opened again", "known before"])
@pytest.mark.parametrize(("file", "damage"), MATRIX, ids=[f"{f.__name__}-{d.__name__}" for f, d in MATRIX])
def test_a_damaged_log(lake: Path, file: Callable[[Path], Path], damage: Damage, knows: bool) -> None:
    source, whole = DeltaChangeSource(), resolved(lake, DeltaChangeSource())
    if knows:
        source.at(str(lake / "orders"), APPLIED)
    path = file(lake)
    kept = path.read_bytes()
    damage(path)
    try:
        found = resolved(lake, source)
    except StorageError as error:
        said = str(error)
        assert path.name in said or str(lake / "orders") in said
        if error.code == ErrorCode.LOG_CORRUPT:
            assert str(path) in said
    except ChangesUnavailableError:
        if damage is not delete:
            raise
    else:
        if damage is delete and path.name == f"{NEWEST:020d}.json":
            assert found[0].to.version == NEWEST - 1, "that there was another one nobody knows"
        else:
            assert found == whole, "what is passed over must not matter"
    path.unlink(missing_ok=True)
    path.write_bytes(kept)
    assert resolved(lake, source) == whole


@pytest.mark.parametrize("version", [NEWEST, NEWEST - 1])
@pytest.mark.parametrize("damage", [*CONTENT, link_to_itself])
def test_a_commit_that_is_outstanding_is_named_by_its_file(lake: Path, version: int, damage: Damage) -> None:
    path, source = commit(version)(lake), DeltaChangeSource()
    source.at(str(lake / "orders"), APPLIED)
    damage(path)
    with pytest.raises(StorageError, match=str(path)):
        resolved(lake, source)
    assert source.resolve(str(lake / "other"), Watermark(APPLIED, 0.0), None, Bounds()).to.version == NEWEST


def test_a_first_commit_of_another_table_is_another_table(lake: Path) -> None:
    """It has another table id, at which the jobs of the former table stop."""
    whole = resolved(lake, DeltaChangeSource())
    replaced_by(lake / "other" / "_delta_log" / f"{0:020d}.json")(commit(NEWEST)(lake))
    span, _ = resolved(lake, DeltaChangeSource())
    assert span.table_id != whole[0].table_id
    assert span.table_id == str(DeltaTable(str(lake / "other")).metadata().id)
    assert span.reshapes


def test_a_checkpoint_that_contradicts_the_commits_counts_as_for_every_other_reader(lake: Path) -> None:
    uri, source = str(lake / "orders"), DeltaChangeSource()
    assert source.at(uri, NEWEST).table_id == str(DeltaTable(uri).metadata().id)
    write_deltalake(uri, pa.table({"id": [8]}), mode="append")
    edit_checkpoint(uri, another_table_with("missing"))
    span, columns = resolved(lake, source)
    assert (span.table_id, columns) == (ANOTHER_ID, ("id", "missing"))
    assert resolved(lake, DeltaChangeSource()) == (span, columns)


@pytest.mark.parametrize("faults", [1, 2], ids=["for a moment", "for good"])
def test_a_range_is_given_up_for_a_version_that_never_opens_alone(tmp_path: Path, faults: int) -> None:
    uri = str(tmp_path / "orders")
    for columns in ({"id": [1]}, {"id": [2]}, {"id": [3], "added": [3]}):
        write_deltalake(uri, pa.table(columns), mode="append", schema_mode="merge")
    shape = Shape.of(DeltaTable(uri, version=1))
    DeltaTable(uri).create_checkpoint()
    (tmp_path / "orders" / "_delta_log" / f"{0:020}.json").unlink()  # from here on only Spark opens version 1
    opened: list[int] = []

    def by_spark(_: str, version: int) -> Shape:
        opened.append(version)
        if len(opened) <= faults:
            raise EngineError("Spark is gone")
        return shape

    source = DeltaChangeSource(by_spark=by_spark, list_files=lambda *_: [])
    with pytest.raises(ChangesUnavailableError) if faults > 1 else nullcontext():
        assert source.resolve(uri, Watermark(1), None, Bounds()).reshapes
    assert opened == [1, 1]


def test_a_table_that_deltalake_does_not_open_has_the_size_that_its_log_says(tmp_path: Path) -> None:
    uri = str(tmp_path / "orders")
    write_deltalake(uri, pa.table({"id": [1, 2]}))
    sized = DeltaChangeSource().size(uri, 0)
    first = commit_path(uri, 0)
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["ofTomorrow"]}
    protocol = json.dumps({"protocol": features | {"writerFeatures": ["ofTomorrow"]}})
    lines = [protocol if '"protocol"' in line else line for line in first.read_text().splitlines()]
    first.write_text("\n".join(lines))
    with pytest.raises(StorageError):
        DeltaChangeSource().size(uri, 0)
    assert DeltaChangeSource(load_state=replay_state).size(uri, 0) == sized


GROWN_MIB_MAX, TOOK_S_MAX, TIMEOUT_S = 256, 20, 120
NAMED = {
    **{poison: "where a regular file belongs" for poison in NO_FILES if not poison.__name__.startswith("sparse")},
    **{poison: "bytes, more than the" for poison in NO_FILES if poison.__name__.startswith("sparse")},
    **dict.fromkeys(NESTED, "nested"),
    **dict.fromkeys(PATHS, "leads out of the table"),
    **dict.fromkeys(VECTORS, "the deletion vector of"),
}
"""What one of the errors says, of those poisons that are met without Spark."""
BY_SPARK_ALONE = ("change_data_by_dots", "vector_by_dots", "device_as_vector")
OTHERWISE = {
    "nested_checkpoint": "nests columns more than 100 levels deep",
    "nested_sidecar": "nests columns more than 100 levels deep",
    "nested_commit": "is not JSON",
    "link_as_data_file": "is a link",
    "sidecar_by_dots": "names a sidecar that is no file of its directory",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Of all poisons, read by one process."""
    command = [sys.executable, "-m", "tests.fakes.poison_program", str(tmp_path_factory.mktemp("lake"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended at {lines[-1:]}: {done.stderr[-2_000:]}"
    return {line["name"]: line for line in lines if "name" in line}


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.__name__)
def test_a_poison_is_refused_by_name(outcomes: dict[str, dict[str, Any]], poison: Poison) -> None:
    said = outcomes[poison.__name__]
    assert SECRET not in json.dumps([each.get("found") for each in said["outcomes"]])
    assert said["grown_kib"] < GROWN_MIB_MAX * 1024
    assert said["took_s"] < TOOK_S_MAX
    errors = [each["error"] for each in said["outcomes"] if "error" in each]
    if poison.__name__ in BY_SPARK_ALONE:
        assert not any("other" in error for error in errors), "nothing is said of what there is elsewhere"
    else:
        wanted = OTHERWISE.get(poison.__name__, NAMED[poison])
        assert any(wanted in error and poison.__name__ in error for error in errors) or any(
            wanted in error and "in the table's log" in error for error in errors
        ), errors


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
