"""Clean-up removes what no version names any more, and nothing that a reader or a writer needs."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from iscp.index.lance.index_store import open_index
from iscp.index.lance.word_counts import FOLDER, WordCounts, write_counts
from iscp.index.maintenance.index_shape import clean_up, version_numbers
from iscp.storage.locations import VERSIONS
from iscp.system.failpoints import EnvironmentFailpoints
from tests.fakes.maintained_index import MaintainedIndex, random_row, rows_of, same_rows, stored_counts

NONE = EnvironmentFailpoints({})


def changed(path: Path, commits: int) -> MaintainedIndex:
    chance = random.Random(1)
    index = MaintainedIndex(str(path / "index"))
    index.create()
    for number in range(commits):
        index.change({f"{number}-{each}": random_row(chance) for each in range(20)}, [])
    return index


def names_of(index: MaintainedIndex) -> set[str]:
    return set(os.listdir(f"{index.store.root}/{FOLDER}"))


def test_a_file_that_was_replaced_stays_while_a_version_that_names_it_is_kept(tmp_path: Path) -> None:
    index = changed(tmp_path, 3)
    before = index.store.open()
    index.change({"a": random_row(random.Random(2))}, [], replace=True)
    clean_up(index.store.open(), 600.0, NONE, in_flight_s=0.0)
    kept = open_index(index.store.root, before.version)
    assert set(before.head.count_files) <= names_of(index)
    assert stored_counts(kept, 1) == stored_counts(before, 1)


def test_old_versions_go_with_the_files_that_only_they_name(tmp_path: Path) -> None:
    index = changed(tmp_path, 3)
    old = set(index.store.open().head.count_files)
    index.change({"a": random_row(random.Random(2))}, [], replace=True)
    at = index.store.open()
    assert clean_up(at, 0.0, NONE, in_flight_s=0.0).files == len(old)
    assert names_of(index) == set(at.head.count_files)
    assert list(version_numbers(index.store.root)) == [at.version]
    assert same_rows(rows_of(index.store.open()), index.model)


def test_a_file_that_may_be_committed_soon_is_left_alone_and_an_abandoned_one_is_not(tmp_path: Path) -> None:
    index = changed(tmp_path, 1)
    at = index.store.open()
    young, abandoned = (write_counts(at.root, WordCounts().table()) for _ in range(2))
    past = time.time() - 7_200
    os.utime(f"{at.root}/{FOLDER}/{abandoned}", (past, past))
    assert clean_up(at, 600.0, NONE).files == 1
    assert young in names_of(index)
    assert abandoned not in names_of(index)
    assert set(at.head.count_files) <= names_of(index)


def test_files_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    index = changed(tmp_path, 1)
    file = Path(index.store.root) / FOLDER / "notes.txt"
    file.write_text("mine")
    os.utime(file, (1, 1))
    clean_up(index.store.open(), 0.0, NONE, in_flight_s=0.0)
    assert file.read_text() == "mine"


def test_what_a_killed_writer_left_goes_after_a_week(tmp_path: Path) -> None:
    index = changed(tmp_path, 2)
    orphan = Path(index.store.root) / "data" / f"{'0' * 24}{'a' * 26}.lance"
    orphan.write_bytes(b"rows that no version names")
    clean_up(index.store.open(), 0.0, NONE)
    assert orphan.exists()
    week = time.time() - 8 * 24 * 3600
    os.utime(orphan, (week, week))
    clean_up(index.store.open(), 0.0, NONE)
    assert not orphan.exists()
    assert same_rows(rows_of(index.store.open()), index.model)


def age_versions(index: MaintainedIndex, seconds: float) -> None:
    """Have all versions so far be that much older."""
    for name in version_numbers(index.store.root).values():
        path = f"{index.store.root}/{VERSIONS}/{name}"
        at = os.stat(path).st_mtime - seconds
        os.utime(path, (at, at))


def test_a_version_is_kept_for_as_long_after_the_next_one_however_old_it_is(tmp_path: Path) -> None:
    index = changed(tmp_path, 3)
    age_versions(index, 7_200.0)
    reader, model = index.store.open(), dict(index.model)
    index.change({}, list(index.model)[:30])
    assert clean_up(index.store.open(), 600.0, NONE).versions == 3
    assert same_rows(rows_of(open_index(index.store.root, reader.version)), model)
    age_versions(index, 601.0)
    assert clean_up(index.store.open(), 600.0, NONE).versions == 1


def test_what_was_read_while_steps_were_applied_is_kept_for_as_long_after_the_last(tmp_path: Path) -> None:
    index = changed(tmp_path, 2)
    reader, model = index.store.open(), dict(index.model)
    for partly in (True, True, False):
        age_versions(index, 7_200.0)
        step = index.store.begin()
        step.remove(step.seek([list(model)[step.dataset.version]]))
        step.apply(1, 0.0, partly=partly)
        step.commit()
    assert clean_up(index.store.open(), 600.0, NONE).versions == 2
    assert same_rows(rows_of(open_index(index.store.root, reader.version)), model)
