"""A log listed while others write to it may seem to have a gap: it is listed again, and a gap that stays is one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from iscp.adapters.delta.log.table_opening import LISTINGS_MAX, bring_up, list_again, open_delta

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
