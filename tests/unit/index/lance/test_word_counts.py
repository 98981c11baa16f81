"""Counts of words: files sum up to a plain count of the live rows, after any additions, removals and merges.

Values that were used last stay, and no more than so many.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.index.lance.word_counts import (
    FOLDER,
    CountFile,
    LiveCounts,
    WordCounts,
    cached_counts,
    merged_counts,
    read_table,
    write_counts,
)
from iscp.model.values.errors import StorageError


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / FOLDER).mkdir()
    return str(tmp_path)


def stored(*texts: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([[None if each is None else f" {each} " for each in texts]], pa.string())


def test_a_word_counts_once_for_each_row() -> None:
    counts = WordCounts()
    assert counts.add(0, stored("b a b", None, "b")) == (2, 4)
    assert counts.add(1, stored("b")) == (1, 1)
    assert counts.table().to_pylist() == [
        {"column": 0, "word": "a", "rows": 1},
        {"column": 0, "word": "b", "rows": 2},
        {"column": 1, "word": "b", "rows": 1},
    ]
    assert counts.add(0, stored(None, None)) == (0, 0)


def test_what_is_taken_away_again_is_not_there() -> None:
    counts = WordCounts()
    assert counts.add(0, stored("a b")) == (1, 2)
    assert counts.add(0, stored(None), stored("a", None)) == (-1, -1)
    assert counts.table().to_pylist() == [{"column": 0, "word": "b", "rows": 1}]
    assert len(WordCounts().table()) == 0


@pytest.mark.parametrize("seed", range(5))
def test_files_of_any_history_sum_up_to_the_live_rows(root: str, seed: int) -> None:
    chance = random.Random(seed)
    live: list[str] = []
    names: list[str] = []
    for _ in range(12):
        counts = WordCounts()
        gone = [live.pop(chance.randrange(len(live))) for _ in range(min(len(live), chance.randrange(4)))]
        new = [" ".join(chance.choices("abcdefgh", k=chance.randrange(1, 5))) for _ in range(chance.randrange(6))]
        if chance.random() < 0.5:
            more = counts.add(0, stored(*new), stored(*gone))
        else:  # what has come and gone may be stated apart
            each = counts.add(0, stored(), stored(*gone)), counts.add(0, stored(*new))
            more = each[0][0] + each[1][0], each[0][1] + each[1][1]
        assert more == (len(new) - len(gone), len(" ".join(new).split()) - len(" ".join(gone).split()))
        live += new
        names.append(write_counts(root, counts.table()))
        if len(names) > 4:
            merged = write_counts(root, merged_counts([read_table(root, each) for each in names[:3]]))
            names = [merged, *names[3:]]
        expected = Counter(word for text in live for word in set(text.split()))
        found = LiveCounts([cached_counts(root, each) for each in names])
        assert {word: found.rows(0, word) for word in "abcdefghi"} == {word: expected[word] for word in "abcdefghi"}


def test_prefixes_give_the_most_frequent_words_of_live_rows_first() -> None:
    counts, less = WordCounts(), WordCounts()
    counts.add(0, stored("data database", "data dataset", "dog", "dataset"))
    less.add(0, stored(), stored("database"))
    live = LiveCounts([CountFile(counts.table()), CountFile(less.table())])
    assert live.with_prefix(0, "data", 10) == ["data", "dataset"]
    assert live.with_prefix(0, "data", 1) == ["data"]
    assert live.with_prefix(0, "z", 10) == []
    assert live.with_prefix(7, "d", 10) == []


def test_a_file_that_is_gone_or_is_none_of_ours_is_refused_by_name(root: str) -> None:
    name = write_counts(root, WordCounts().table())
    (Path(root) / FOLDER / name).write_bytes(b"nothing of the kind")
    with pytest.raises(StorageError, match=name):
        read_table(root, name)
    (Path(root) / FOLDER / name).unlink()
    with pytest.raises(StorageError, match="is gone"):
        read_table(root, name)
