"""Manifests that Lance writes pass; those that would have it read elsewhere, or take all memory, do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from iscp.adapters.delta.storage.dataset_manifest import (
    COLUMNS_MAX,
    DEPTH_MAX,
    FRAGMENT_ROWS_MAX,
    FRAGMENTS_MAX,
    OddManifestError,
    check_manifest,
)
from iscp.adapters.delta.storage.dataset_names import VERSIONS, manifest_name
from tests.fakes.forged_manifest import Fields, field, fields_of, forge, message

COLUMN, FRAGMENT, BASES = 1, 2, 18


def manifest_of(directory: Path) -> Path:
    """The manifest of a dataset with nested columns, two fragments, deleted rows and a segment of an index."""
    rows = pa.table({"a": range(10), "b": [{"c": [each, 2]} for each in range(10)]})
    lance.write_dataset(rows, directory)
    dataset = lance.write_dataset(rows, directory, mode="append")
    dataset.delete("a = 3 AND _rowid < 100")
    dataset.create_scalar_index("a", "BTREE")
    return directory / VERSIONS / manifest_name(dataset.version)


def test_what_lance_writes_passes(tmp_path: Path) -> None:
    manifest_of(tmp_path)
    manifests = sorted((tmp_path / VERSIONS).glob("*.manifest"))
    assert len(manifests) == 4
    for each in manifests:
        check_manifest(each.read_bytes())
    named = check_manifest(manifests[0].read_bytes())
    for folder, found in (("data", named.data), ("_deletions", named.deletions), ("_indices", named.segments)):
        assert sorted(found) == sorted(f"{folder}/{path.name}" for path in (tmp_path / folder).iterdir())


def column(number: int, parent: int, kind: bytes = b"struct") -> tuple[int, bytes]:
    return COLUMN, field(2, b"c%d" % number) + field(3, number) + field(4, parent) + field(5, kind)


def chain(depth: int) -> Callable[[Fields], Fields]:
    return lambda found: [
        *(each for each in found if each[0] != COLUMN),
        *(column(number, number - 1 if number else -1) for number in range(depth)),
    ]


def with_rows(rows: int) -> Callable[[Fields], Fields]:
    def change(found: Fields) -> Fields:
        return [
            (
                number,
                message([*fields_of(value), (4, rows)]) if number == FRAGMENT and isinstance(value, bytes) else value,
            )
            for number, value in found
        ]

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda found: [*found, (BASES, field(1, 1) + field(4, b"/etc"))], "names another place for files"),
        (chain(DEPTH_MAX + 2), f"to more than {DEPTH_MAX} levels"),
        (lambda found: [*found, column(100, 101), column(101, 100)], f"to more than {DEPTH_MAX} levels"),
        (lambda found: [*found, column(100, -1, b"fixed_size_list:" * 100 + b"float")], "a type of more than"),
        (lambda found: [*found, column(100, -1), column(100, -1)], "two columns of the number 100"),
        (
            lambda found: [*found, *(column(number, -1) for number in range(100, 101 + COLUMNS_MAX))],
            f"more than {COLUMNS_MAX} columns",
        ),
        (lambda found: [*found, *[(FRAGMENT, b"")] * (FRAGMENTS_MAX + 1)], f"or {FRAGMENTS_MAX} fragments"),
        (with_rows(FRAGMENT_ROWS_MAX + 1), f"a fragment of more than {FRAGMENT_ROWS_MAX} rows"),
        (lambda found: [*found, (COLUMN, field(3, 100) + field(4, -1) + field(8, b""))], "has a dictionary"),
        (lambda found: [*found, (6, 2**40)], "a place beyond its end"),
        (lambda found: [*found, (COLUMN, 7)], "a number where a message belongs"),
    ],
)
def test_what_lance_is_not_to_open_is_refused(tmp_path: Path, change: Callable[[Fields], Fields], why: str) -> None:
    with pytest.raises(OddManifestError, match=why):
        check_manifest(forge(manifest_of(tmp_path), change))


def test_the_deepest_columns_that_are_taken_pass(tmp_path: Path) -> None:
    check_manifest(forge(manifest_of(tmp_path), chain(DEPTH_MAX)))


def roaring(runs: list[tuple[int, int]]) -> bytes:
    """A bitmap of one container with these runs, each a first number and how many more."""
    head = (12347).to_bytes(4, "little") + b"\1" + b"\0\0\0\0" + len(runs).to_bytes(2, "little")
    return head + b"".join(first.to_bytes(2, "little") + more.to_bytes(2, "little") for first, more in runs)


def plain(containers: int) -> bytes:
    """A bitmap of containers that are full, each of which would be 8 KiB."""
    heads = b"".join(each.to_bytes(2, "little") + b"\xff\xff" for each in range(containers))
    return (12346).to_bytes(4, "little") + containers.to_bytes(4, "little") + heads + b"\0" * 4 * containers


@pytest.mark.parametrize(
    ("bitmap", "why"),
    [
        (roaring([(0, 9)]), ""),
        (roaring([(0, 65_535)] * 2), f"more than {FRAGMENTS_MAX} fragments"),
        (plain(2), f"more than {FRAGMENTS_MAX} fragments"),
        (roaring([(0, 9)])[:-1], "a bitmap that is none"),
        (b"\0\0\0\0", "a bitmap that is none"),
    ],
)
def test_a_segment_has_no_more_fragments_than_a_dataset(tmp_path: Path, bitmap: bytes, why: str) -> None:
    content = with_segment(manifest_of(tmp_path), field(3, b"i") + field(5, bitmap))
    if not why:
        check_manifest(content)
        return
    with pytest.raises(OddManifestError, match=why):
        check_manifest(content)


def test_a_segment_at_another_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OddManifestError, match="base_id"):
        check_manifest(with_segment(manifest_of(tmp_path), field(3, b"i") + field(9, 1)))


def with_segment(manifest: Path, segment: bytes) -> bytes:
    """The manifest with one segment alone, put before it."""
    content = forge(manifest, lambda found: [each for each in found if each[0] != 6] + [(6, 0)])
    section = field(1, segment)
    put = len(section).to_bytes(4, "little") + section
    place = int.from_bytes(content[-16:-8], "little") + len(put)
    return put + content[:-16] + place.to_bytes(8, "little") + content[-8:]


def test_whatever_stands_there_is_refused_or_passes_in_order(tmp_path: Path) -> None:
    whole, chance = manifest_of(tmp_path).read_bytes(), random.Random(1)
    for _ in range(3_000):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            check_manifest(bytes(content[: chance.choice((len(content), chance.randrange(len(content))))]))
        except OddManifestError:
            continue
