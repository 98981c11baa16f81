"""An index of random rows, and the same rows in a dictionary: what both have is compared at every version."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from iscp.index.lance.index_columns import (
    FAULT,
    HEAD,
    HEAD_KEY,
    KEY,
    ROW_HASH,
    TEXT_HASH,
    VECTOR,
    FieldTotals,
    IndexHead,
    dataset_schema,
    words_column,
)
from iscp.index.lance.index_store import IndexStore, OpenIndex, segment_statistics, segments_of
from iscp.index.lance.word_counts import merged_counts, read_table
from iscp.model.values.errors import Conflict
from iscp.ports.system import Failpoints
from iscp.system.failpoints import EnvironmentFailpoints

ROWS_KEY = "rows"
"""The record in the head with the number of the commit."""

VOCABULARY = 400


@dataclass(frozen=True)
class Row:
    """A row: the words of two columns, None for none, and its vector."""

    words: tuple[str | None, str | None]
    vector: tuple[float, ...] | None = None


def random_row(chance: random.Random, dimension: int = 0) -> Row:
    """A row with few frequent words and many rare ones; some have no words, or no vector."""

    def words(most: int) -> str | None:
        count = chance.randrange(most)
        drawn = [f"w{min(VOCABULARY - 1, int(chance.paretovariate(0.7)))}" for _ in range(count)]
        return f" {' '.join(drawn)} " if drawn else None

    vector = tuple(chance.gauss(0, 1) for _ in range(dimension)) if dimension and chance.random() > 0.05 else None
    return Row((words(6), words(20)), vector)


class MaintainedIndex:
    """An index at a place, with its model."""

    def __init__(self, uri: str, dimension: int = 0, failpoints: Failpoints | None = None) -> None:
        self.dimension = dimension
        self.store = IndexStore(uri, failpoints or EnvironmentFailpoints({}))
        self.schema = dataset_schema([pa.field("id", pa.string())], 2, dimension)
        self.model: dict[str, Row] = {}
        self.commits = 0

    def create(self) -> None:
        head = IndexHead("{}", ("id",), {ROWS_KEY: "0"}, totals=(FieldTotals(), FieldTotals()))
        self.store.create(self.schema, head)

    def table(self, rows: Mapping[str, Row]) -> pa.Table:
        """The rows as the columns of the dataset."""
        known = {
            KEY: list(rows),
            "id": list(rows),
            ROW_HASH: [b"0" * 16] * len(rows),
            **{words_column(number): [row.words[number] for row in rows.values()] for number in (0, 1)},
            VECTOR: [None if row.vector is None else list(row.vector) for row in rows.values()],
        }
        return pa.table(
            [pa.array(known.get(field.name, [None] * len(rows)), field.type) for field in self.schema],
            schema=self.schema,
        )

    def change(self, put: Mapping[str, Row], removed: list[str], *, replace: bool = False) -> OpenIndex:
        """Commit changes to the index, and then to the model. Raises what a commit raises."""
        changes = self.store.begin()
        if replace:
            changes.replace_all(self.schema, changes.head)
        else:
            changes.remove(changes.seek(list(dict.fromkeys([*put, *removed]))))
        changes.add(self.table(put))
        changes.put(ROWS_KEY, str(self.commits + 1))
        changes.commit()
        self.commits += 1
        kept = {} if replace else {key: row for key, row in self.model.items() if key not in removed}
        self.model = {**kept, **put}
        return self.store.open()

    def change_randomly(self, chance: random.Random, rows: int, keys: int) -> None:
        """Commit a change as `drawn_change` draws it, until no other commit is first."""
        put, removed = drawn_change(chance, rows, keys, self.dimension)
        while True:
            try:
                self.change(put, removed)
                return
            except Conflict:
                continue


def drawn_change(chance: random.Random, rows: int, keys: int, dimension: int = 0) -> tuple[dict[str, Row], list[str]]:
    """Rows of so many of the keys from 0 to `keys`, a tenth of which are removed."""
    chosen = [str(chance.randrange(keys)) for _ in range(rows)]
    removed = sorted(set(chosen[: rows // 10]))
    return {key: random_row(chance, dimension) for key in chosen if key not in removed}, removed


def model_after(seed: int, commits: int, rows: int, keys: int, dimension: int = 0) -> dict[str, Row]:
    """The rows after so many commits of `change_randomly` with one chance of this seed."""
    chance = random.Random(seed)
    model: dict[str, Row] = {}
    for _ in range(commits):
        put, removed = drawn_change(chance, rows, keys, dimension)
        for key in removed:
            model.pop(key, None)
        model.update(put)
    return model


def rows_of(at: OpenIndex) -> dict[str, Row]:
    """The rows that a version of an index has. Each key is there once, and one row has the head."""
    names = [KEY, "id", words_column(0), words_column(1), FAULT, HEAD]
    vectors = VECTOR in at.dataset.schema.names
    found = at.dataset.to_table(columns=[*names, *([VECTOR, TEXT_HASH] if vectors else [])]).to_pylist()
    heads = [row for row in found if row[KEY] == HEAD_KEY]
    assert len(heads) == 1
    rows = [row for row in found if row[KEY] != HEAD_KEY]
    assert len({row[KEY] for row in rows}) == len(rows) == at.head.rows
    assert json.loads(heads[0][HEAD])["rows"] == len(rows)
    return {
        row[KEY]: Row(
            (row[words_column(0)], row[words_column(1)]),
            tuple(row[VECTOR]) if vectors and row[VECTOR] is not None else None,
        )
        for row in rows
    }


def same_rows(found: Mapping[str, Row], wanted: Mapping[str, Row]) -> bool:
    """Whether both have the same rows; vectors are stored with 32 bits."""
    return found.keys() == wanted.keys() and all(
        found[key].words == row.words
        and (found[key].vector is None) == (row.vector is None)
        and (row.vector is None or np.allclose(found[key].vector or (), row.vector, atol=1e-5))
        for key, row in wanted.items()
    )


def counted(rows: Mapping[str, Row], number: int) -> tuple[Counter[str], int, int]:
    """In how many rows each word of a column stands, how many rows have words, how many words."""
    texts = [row.words[number].split() for row in rows.values() if row.words[number] is not None]  # type: ignore[union-attr]
    return Counter(word for text in texts for word in set(text)), len(texts), sum(map(len, texts))


def stored_counts(at: OpenIndex, number: int) -> Counter[str]:
    """The counts of a column that the head's files have together."""
    if not at.head.count_files:
        return Counter()
    summed = merged_counts([read_table(at.root, name) for name in at.head.count_files])
    return Counter({each["word"]: each["rows"] for each in summed.to_pylist() if each["column"] == number})


def indexed(at: OpenIndex, number: int) -> tuple[Counter[str], int, int]:
    """What the statistics of all segments of a column's words say together."""
    counts: Counter[str] = Counter()
    rows = words = 0
    for segment in segments_of(at.dataset):
        if segment.name == f"words_{number}":
            found = segment_statistics(at.root, segment.uuid)
            assert found is not None, segment
            rows, words = rows + found.rows, words + found.words
            for word in found.counts.words(number).to_pylist():
                counts[word] += found.counts.rows(number, word)
    return counts, rows, words
