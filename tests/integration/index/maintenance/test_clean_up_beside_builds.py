"""What a build has staged stays until it is published, however long it waits; orphans of dead writers go."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.index.lance.index_columns import KEY
from iscp.index.lance.index_transaction import count_rows
from iscp.index.lance.word_counts import FOLDER, KEYS_PREFIX, WordCounts, write_counts
from iscp.index.maintenance.index_shape import BUILD_S, UNVERIFIED_S, clean_up, version_numbers
from iscp.storage.locations import BUILD_BEGUN, BUILDS
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.maintained_index import MaintainedIndex, random_row, rows_of, same_rows

DAY_S = 86_400.0


@pytest.fixture
def index(tmp_path: Path) -> MaintainedIndex:
    made, chance = MaintainedIndex(str(tmp_path / "index")), random.Random(1)
    made.create()
    for number in range(4):
        made.change({str(number): random_row(chance)}, [])
    return made


def begin(index: MaintainedIndex, days: float) -> Path:
    """The mark of a build that began so many days ago."""
    mark = Path(index.store.root) / BUILDS / "01JOB" / "3-ab" / BUILD_BEGUN
    mark.parent.mkdir(parents=True)
    mark.write_text("{}")
    age(mark, days)
    return mark


def age(path: Path, days: float) -> None:
    at = time.time() - days * DAY_S
    os.utime(path, (at, at))


def cleaned(index: MaintainedIndex) -> int:
    return clean_up(index.store.open(), 0.0, ScriptedFailpoints(), in_flight_s=60.0).files


def test_rows_that_were_staged_days_ago_are_published(index: MaintainedIndex) -> None:
    begin(index, days=UNVERIFIED_S / DAY_S + 2)
    row, counts = random_row(random.Random(2)), WordCounts()
    rows = index.table({"staged": row})
    sums = count_rows([rows], counts)
    written = index.store.begin().write_rows(rows)
    counted = write_counts(index.store.root, counts.table())
    root = Path(index.store.root)
    staged = [*(root / "data" / file.path for each in written for file in each.files), root / FOLDER / counted]
    for path in staged:
        age(path, days=UNVERIFIED_S / DAY_S + 1)
    assert cleaned(index) == 0
    assert all(path.exists() for path in staged)

    commit = index.store.begin()
    commit.add_fragments(written, sums, counts.table())
    commit.commit()
    assert same_rows(rows_of(index.store.open()), {**index.model, "staged": row})


def test_versions_go_beside_a_build_that_is_young(index: MaintainedIndex) -> None:
    begin(index, days=1)
    assert len(version_numbers(index.store.root)) == 5
    cleaned(index)
    assert len(version_numbers(index.store.root)) == 1


def orphans(index: MaintainedIndex, days: float) -> list[Path]:
    """Files of a writer that died: data, counts and keys that no version names."""
    (written,) = index.store.begin().write_rows(index.table({"lost": random_row(random.Random(3))}))
    root = Path(index.store.root)
    keys = root / FOLDER / f"{KEYS_PREFIX}{'0' * 32}.arrow"
    with pa.ipc.new_file(str(keys), pa.schema([(KEY, pa.string())])):
        pass
    found = [root / "data" / written.files[0].path, root / FOLDER / write_counts(str(root), WordCounts().table()), keys]
    for path in found:
        age(path, days)
    return found


@pytest.mark.parametrize("build_days", [None, BUILD_S / DAY_S + 1])
def test_orphans_go_when_they_are_old_and_no_build_may_have_staged_them(
    index: MaintainedIndex, build_days: float | None
) -> None:
    if build_days is not None:
        begin(index, build_days)
    old, young = orphans(index, UNVERIFIED_S / DAY_S + 1), []
    assert cleaned(index) == 2
    assert not any(path.exists() for path in old)
    young = orphans(index, 0.0)
    assert cleaned(index) == 0
    assert all(path.exists() for path in young)
    assert same_rows(rows_of(index.store.open()), index.model)


def test_orphans_from_before_a_build_go_beside_it(index: MaintainedIndex) -> None:
    begin(index, days=1)
    own = [path for path in orphans(index, days=2) if path.parent.name == FOLDER]
    assert cleaned(index) == len(own)
    assert not any(path.exists() for path in own)
