"""Indexes that a tenant has spoilt end no process: what a node does with them is done, or refused by name.

Each is used in a process of its own, with a deadline and bounded memory. `ISCP_HOSTILE_SEEDS` has how many random ones
are tried beyond those that always are.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from iscp.storage.locations import VERSIONS
from tests.fakes.forged_manifest import Fields, field, forge
from tests.fakes.hostile_index import ODD_EVERY, deadly, make_index, spoil
from tests.fakes.hostile_index_program import END
from tests.random_logs.odd_cases import Odd
from tests.selection import in_full

DEADLINE_S = 300.0
MEGABYTES = 6_000
SEEDS = [each + 1_000 for each in range(int(os.environ.get("ISCP_HOSTILE_SEEDS", "0")))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile") / "index"
    make_index(place)
    return place


@pytest.fixture
def index(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "index"))


Step = tuple[str, str, str]


def used(index: Path) -> dict[str, tuple[str, str]]:
    """What came of each step of a node with this index: how it ended, and what was said."""
    return {name: (how, why) for name, how, why in steps_with(index)}


def steps_with(*indexes: Path) -> list[Step]:
    """Return the steps of one process with all of these indexes, which nothing has ended."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fakes.hostile_index_program", str(MEGABYTES), *map(str, indexes)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S + 30.0 * len(indexes),
        check=False,
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout[-2_000:], ended.stderr[-4_000:])
    *steps, end = ended.stdout.splitlines()
    assert end == END
    return [(name, how, why) for name, how, why in map(json.loads, steps)]


def test_a_whole_index_is_used_in_every_way(index: Path) -> None:
    assert {how for how, _ in used(index).values()} == {"done"}


@pytest.mark.parametrize("seed", [*in_full(range(22), [2, 3, 15, 21]), *SEEDS])
@pytest.mark.slow(but=1)
def test_a_spoilt_index_ends_no_process(index: Path, seed: int) -> None:
    done = spoil(index, seed)
    assert len(used(index)) > 5, done


def test_seeds_reach_each_kind_of_no_file(tmp_path: Path) -> None:
    done = set()
    for seed in range(0, 60 * ODD_EVERY, ODD_EVERY):
        root = tmp_path / str(seed)
        for folder in ("data", "_indices", VERSIONS):
            (root / folder).mkdir(parents=True)
            (root / folder / "file").touch()
        odd, _, place = spoil(root, seed).partition(" for ")
        done |= {odd, place.partition("/")[0]}
    assert done == {*Odd, "data", "_indices", VERSIONS}


def spoil_rows(index: Path) -> None:
    file = max((index / "data").iterdir(), key=lambda each: each.stat().st_size)
    file.write_bytes(deadly(file.read_bytes()))


def test_a_byte_that_ends_a_process_ends_none_of_a_nodes(index: Path) -> None:
    spoil_rows(index)
    found = used(index)
    assert found.pop("probe")[0] == "done"
    for how, why in found.values():
        assert how == "StorageError"
        assert f"{index} is not opened: reading its files ends a process" in why


OWN_PROGRAM = """
import sys, iscp
from iscp.model.values.errors import StorageError
for _ in range(2):
    try:
        iscp.search(sys.argv[1], vector=[0.5] * 16, k=5)
    except StorageError as error:
        print(error.message)
"""


def test_a_byte_that_ends_a_process_ends_no_program_that_searches_by_the_library(index: Path, tmp_path: Path) -> None:
    spoil_rows(index)
    ended = subprocess.run(
        [sys.executable, "-c", OWN_PROGRAM, str(index)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "caches")},
    )
    assert ended.returncode == 0, (ended.returncode, ended.stderr[-4_000:])
    assert ended.stdout.count(f"{index} is not opened: reading its files ends a process") == 2


@pytest.mark.parametrize("count", in_full([6, 120]))
@pytest.mark.slow
def test_no_byte_of_many_indexes_ends_the_process_that_uses_all_of_them(
    whole: Path, tmp_path: Path, count: int
) -> None:
    indexes = []
    for seed in range(count):
        index = Path(shutil.copytree(whole, tmp_path / str(seed)))
        spoil_rows(index) if seed % 20 == 5 else spoil(index, 5_000 + seed)
        indexes.append(index)
    assert len(steps_with(*indexes)) > 5 * count


def other_base(found: Fields) -> Fields:
    return [*found, (18, field(1, 1) + field(3, 1) + field(4, b"/"))]


def nested_type(found: Fields) -> Fields:
    """The type of a column, which takes Lance 12 GB to parse."""
    kind = b"fixed_size_list:" * 100_000 + b"float" + b":2" * 100_000
    return [*found, (1, field(2, b"deep") + field(3, 50) + field(4, -1) + field(5, kind))]


def nested_columns(found: Fields) -> Fields:
    """Columns within each other, for which Lance takes minutes."""
    columns = [(2, b"c"), (5, b"struct")]
    named = b"".join(field(*each) for each in columns)
    return [*found, *((1, named + field(3, 50 + each) + field(4, 49 + each if each else -1)) for each in range(1_000))]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_base, "names another place for files (base_paths)"),
        (nested_type, "has a type of more than"),
        (nested_columns, "has columns within each other"),
    ],
)
def test_a_forged_manifest_is_refused_by_its_name(index: Path, change: Callable[[Fields], Fields], why: str) -> None:
    newest = min((index / VERSIONS).glob("*.manifest"))
    forge(newest, change)
    found = used(index)
    assert found.pop("probe")[0] == "done"
    for how, said in found.values():
        assert how == "StorageError"
        assert newest.name in said
        assert why in said


@pytest.mark.parametrize("folder", in_full(["data", "_indices/*", "_deletions", "_transactions", "_iscp", VERSIONS], 2))
def test_a_pipe_holds_up_nobody(index: Path, folder: str) -> None:
    file = next(each for each in sorted(index.glob(f"{folder}/*")) if each.is_file())
    file.unlink()
    os.mkfifo(file)
    found = used(index)
    assert found["open"][0] == "StorageError"
    assert found["open"][1] == f"{file} is a pipe, where a regular file belongs"
    assert {how for name, (how, _) in found.items() if name != "probe"} == {"StorageError"}
