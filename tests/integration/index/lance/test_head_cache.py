"""A cached head is that of its version, also where another index was made in the place of one that was removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from iscp.index.lance.index_columns import HEAD_KEY, KEY, dataset_schema, parse_head
from iscp.index.lance.index_store import open_index
from iscp.index.lance.word_counts import cached_head
from tests.fakes.maintained_index import MaintainedIndex, Row


def test_what_a_commit_and_a_search_cache_is_what_the_dataset_has(tmp_path: Path) -> None:
    index = MaintainedIndex(str(tmp_path / "index"))
    index.create()
    for number in range(3):
        index.change({str(number): Row((" a ", None))}, [])
        at = open_index(index.store.root)
        stored = next(row["_iscp"] for row in at.dataset.to_table(columns=["_iscp"]).to_pylist() if row["_iscp"])
        assert cached_head(at.root, at.version) == (at.head, at.head_address)
        assert at.head == parse_head(stored)
        assert at.dataset._take_rows([at.head_address], columns=["_iscp"])["_iscp"].to_pylist() == [stored]
    assert open_index(index.store.root, at.version - 1).head.rows == 2


def test_the_place_of_a_head_is_right_where_all_rows_or_columns_are_replaced(tmp_path: Path) -> None:
    """There is one row, in a fragment as small as the head's: the next commit would remove it in the head's stead."""
    index = MaintainedIndex(str(tmp_path / "index"))
    index.create()
    replaced = index.change({"1": Row((" a ", None))}, [], replace=True)
    commit = index.store.begin()
    other = dataset_schema([pa.field("id", pa.string()), pa.field("more", pa.int64())], 2, 0)
    commit.replace_all(other, commit.head)
    commit.add(index.table({"2": Row((" b ", None))}).append_column("more", [pa.array([1])]).select(other.names))
    commit.commit()
    for at in (replaced, index.store.open()):
        assert cached_head(at.root, at.version) == (at.head, at.head_address)
        assert at.dataset._take_rows([at.head_address], columns=[KEY])[KEY].to_pylist() == [HEAD_KEY]


def test_an_index_in_the_place_of_another_has_its_own_head(tmp_path: Path) -> None:
    first = MaintainedIndex(str(tmp_path / "index"))
    first.create()
    old = first.change({"1": Row((" a ", None))}, [])
    shutil.rmtree(tmp_path / "index")
    assert cached_head(old.root, old.version) is None
    second = MaintainedIndex(str(tmp_path / "index"))
    second.create()
    new = second.change({"1": Row((" a ", None)), "2": Row((" b ", None))}, [])
    assert new.version == old.version
    assert open_index(new.root).head.rows == 2
