"""A log listed while others write to it may seem to have a gap: it is listed again, and a gap that stays is one.

The names and types of a table's columns, as its log has them.

Which commits follow a version, and whether one that is there belongs to the log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from iscp.delta.log.commits import COMMIT_ID, log_of
from iscp.delta.log.table_opening import (
    LISTINGS_MAX,
    Checkpoints,
    bring_up,
    commits_after,
    counts,
    damage_of_checkpoints,
    drop_false_hint,
    hinted_version,
    list_again,
    open_delta,
    read_column_types,
)
from iscp.model.values.errors import ErrorCode, StorageError, TableNotFound
from iscp.storage.delta_errors import FOREIGN_ERRORS, delta_faults
from tests.fakes.commit_files import commit_path

VERSIONS = 4


@pytest.fixture
def uri(tmp_path: Path) -> str:
    for number in range(VERSIONS):
        write_deltalake(str(tmp_path), pa.table({"id": [number]}), mode="append")
    return str(tmp_path)


def commit(uri: str, version: int) -> Path:
    return Path(uri) / "_delta_log" / f"{version:020}.json"


class Hidden:
    """A commit that the first `listings` of its table do not show."""

    def __init__(self, path: Path, listings: int) -> None:
        self._path, self._aside, self._listings = path, path.with_suffix(".aside"), listings
        self.listed = 0
        path.rename(self._aside)

    def read(self, uri: str) -> DeltaTable:
        self.listed += 1
        if self.listed > self._listings:
            self._aside.rename(self._path)
        return DeltaTable(uri)


@pytest.mark.parametrize("listings", [1, LISTINGS_MAX - 1])
def test_a_commit_that_a_listing_left_out_is_found_by_a_later_one(uri: str, listings: int) -> None:
    hidden = Hidden(commit(uri, 2), listings)
    assert list_again(partial(hidden.read, uri)).version() == VERSIONS - 1
    assert hidden.listed == listings + 1


def test_a_gap_that_stays_is_one(uri: str) -> None:
    hidden = Hidden(commit(uri, 2), LISTINGS_MAX)
    with pytest.raises(DeltaError, match="found gap"):
        list_again(partial(hidden.read, uri))
    assert hidden.listed == LISTINGS_MAX


def test_a_table_is_opened_and_brought_up(uri: str) -> None:
    table = open_delta(uri, 1)
    assert (table.version(), open_delta(uri).version()) == (1, VERSIONS - 1)
    bring_up(table)
    assert table.version() == VERSIONS - 1


def test_a_directory_without_a_table_is_listed_once(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        open_delta(str(tmp_path))


@pytest.mark.parametrize("left", [b"garbage" * 100, None])
def test_a_checkpoint_that_is_damaged_is_named(uri: str, left: bytes | None) -> None:
    """None: its footer is whole, and its rows are not. What is newer, or removed, is opened as if it had been whole."""
    DeltaTable(uri).create_checkpoint()
    (path,) = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    kept = path.read_bytes()
    path.write_bytes(kept[:4] + bytes(400) + kept[404:] if left is None else left)
    for version in (None, VERSIONS - 1):
        with pytest.raises(StorageError) as raised, delta_faults(f"open {uri}"):
            open_delta(uri, version)
        assert raised.value.code is ErrorCode.LOG_CORRUPT
        assert f"open {uri}: {path}, a checkpoint of the table, cannot be read: " in raised.value.message
        assert "_last_checkpoint" in raised.value.remedy
    with pytest.raises(FOREIGN_ERRORS):
        open_delta(uri)
    path.write_bytes(kept)
    assert open_delta(uri).version() == VERSIONS - 1


@pytest.mark.parametrize("emptied", [False, True])
def test_a_checkpoint_that_was_removed_is_done_without_though_the_log_names_it(uri: str, emptied: bool) -> None:
    """deltalake takes an empty file for none."""
    DeltaTable(uri).create_checkpoint()
    (path,) = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    path.write_bytes(b"") if emptied else path.unlink()
    write_deltalake(open_delta(uri), pa.table({"id": [VERSIONS]}), mode="append")
    for version in (None, VERSIONS, VERSIONS - 1, VERSIONS - 2, 0):
        table = open_delta(uri, version)
        assert table.version() == (VERSIONS if version is None else version)
        assert table.to_pyarrow_table()["id"].to_pylist() == list(range(table.version(), -1, -1))
    with pytest.raises(DeltaError):
        open_delta(uri, VERSIONS + 1)


@pytest.mark.parametrize("hint", ['{"version": 0, "size": 1}', '{"version": 2, "size": 1}'])
def test_a_hint_that_cannot_be_done_without_is_named(uri: str, hint: str) -> None:
    path = Path(uri, "_delta_log", "_last_checkpoint")
    path.write_text(hint)
    commit(uri, 0).unlink()
    with pytest.raises(StorageError) as raised, delta_faults(f"open {uri}"):
        open_delta(uri)
    assert raised.value.code is ErrorCode.LOG_CORRUPT
    assert f"{path}, a checkpoint of the table, cannot be read: it names a checkpoint" in raised.value.message


SAYS_NOTHING = [*("", "[]", "{}", '{"version": "1"}', '{"version": -4}', '{"version": true}', "{", "[" * 100_000)]
SAYS_NOTHING += [*('{"version": 2.5}', '{"version": null}', f'{{"version": {10**400}}}', f'{{"version": {2**63}}}')]


@pytest.mark.parametrize("hint", SAYS_NOTHING, ids=lambda hint: hint[:20])
def test_a_hint_that_says_nothing_is_none(uri: str, hint: str) -> None:
    Path(uri, "_delta_log", "_last_checkpoint").write_text(hint)
    assert hinted_version(log_of(uri)) == -1
    assert open_delta(uri).version() == VERSIONS - 1


NOT_THERE = (
    *(json.dumps({"version": version, "size": 1}) for version in (1, VERSIONS - 1, VERSIONS, VERSIONS + 99, 2**63 - 1)),
    json.dumps({"version": 2, "size": -1, "parts": 3, "checksum": "of nothing"}),
    json.dumps({"version": 2, "size": 1, "v2Checkpoint": {"path": "gone", "sidecarFiles": [{"path": "gone"}]}}),
)
"""Hints at checkpoints that are not there, of versions that are and that are not."""


@pytest.mark.parametrize("hint", NOT_THERE)
@pytest.mark.parametrize("other", [False, True])
def test_a_hint_at_what_is_not_there_is_done_without(uri: str, hint: str, other: bool) -> None:
    """`other`: there is an earlier checkpoint, and no commit before it."""
    if other:
        DeltaTable(uri, version=0).create_checkpoint()
        commit(uri, 0).unlink()
    Path(uri, "_delta_log", "_last_checkpoint").write_text(hint)
    for version in (None, *range(VERSIONS - 1, 0, -1)):
        table = open_delta(uri, version)
        assert table.version() == (VERSIONS - 1 if version is None else version)
        assert table.to_pyarrow_table()["id"].to_pylist() == list(range(table.version(), -1, -1))


@pytest.mark.parametrize("hinted", [0, 1, VERSIONS + 1])
def test_a_checkpoint_of_ones_own_is_made_whatever_the_hint_says(uri: str, hinted: int) -> None:
    path = Path(uri, "_delta_log", "_last_checkpoint")
    path.write_text(json.dumps({"version": hinted, "size": 1}))
    drop_false_hint(uri)
    assert not path.exists()
    path.write_text(json.dumps({"version": max(1, hinted), "size": 1}))
    made = Checkpoints(uri, 1)
    made.note_commit(VERSIONS - 1)
    made.make()
    assert list(Path(uri, "_delta_log").glob("*.checkpoint.parquet"))
    assert DeltaTable(uri).version() == VERSIONS - 1
    drop_false_hint(uri)
    assert path.exists(), "this one is there"


def test_what_is_wrong_elsewhere_is_no_damage_of_a_checkpoint(uri: str) -> None:
    DeltaTable(uri).create_checkpoint()
    assert damage_of_checkpoints(uri) is None
    Path(uri, "_delta_log", f"{VERSIONS:020}.json").write_text("{")
    with pytest.raises(StorageError) as raised, delta_faults(f"open {uri}"):
        open_delta(uri)
    assert raised.value.code is ErrorCode.STORAGE


def test_columns_are_read_in_order_with_nested_ones_by_their_kind(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64()), "tags": [["a"]], "at": [{"x": 1.5}], "Name": ["n"]})
    write_deltalake(str(tmp_path), rows)
    found = read_column_types(str(tmp_path))
    assert list(found.items()) == [("id", "long"), ("tags", "array"), ("at", "struct"), ("Name", "string")]


def test_what_is_no_table_has_no_columns(tmp_path: Path) -> None:
    assert read_column_types(str(tmp_path / "none")) == {}
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{")
    assert read_column_types(str(tmp_path)) == {}


def put(uri: str, versions: Sequence[int]) -> None:
    for version in versions:
        path = commit_path(uri, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"commitInfo": {"operation": "WRITE", COMMIT_ID: f"id-{version}"}}))


def test_the_commits_behind_a_version_end_at_the_first_that_is_not_there(tmp_path: Path) -> None:
    uri = str(tmp_path)
    put(uri, [3, 4, 5, 7])
    assert [(each.version, each.commit_id) for each in commits_after(uri, 3)] == [(4, "id-4"), (5, "id-5")]
    assert list(commits_after(uri, 5)) == []
    assert [each.version for each in commits_after(uri, 6)] == [7]


@pytest.mark.parametrize(
    ("there", "version", "expected"),
    [
        ([0], 0, True),
        ([0, 1], 0, True),
        ([0, 1, 2], 1, True),
        ([0, 1, 2], 2, True),
        # The log begins at version 5: it was cleaned up to there.
        ([5, 6, 7], 7, True),
        ([5, 6, 7], 6, True),
        ([7], 7, True),
        # A late commit, which lies before the beginning of the log.
        ([2, 5, 6], 2, False),
        ([4, 5, 6], 4, False),
        ([0, 5, 6], 0, False),
    ],
)
def test_a_commit_counts_if_the_log_goes_on_from_it(
    tmp_path: Path, there: Sequence[int], version: int, expected: bool
) -> None:
    put(str(tmp_path), there)
    assert counts(str(tmp_path), version) is expected


def test_no_commit_counts_where_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound):
        counts(str(tmp_path), 0)
