"""The shape of an index is read without its content: also files of counts, which grow with all words of an index."""

from __future__ import annotations

import random
from pathlib import Path

from iscp.index.lance.word_counts import FOLDER
from iscp.index.maintenance.index_shape import read_shape
from tests.fakes.maintained_index import MaintainedIndex, random_row


def test_no_file_of_counts_is_read(tmp_path: Path) -> None:
    index, chance = MaintainedIndex(str(tmp_path / "index")), random.Random(1)
    index.create()
    for number in range(3):
        index.change({f"{number}-{each}": random_row(chance) for each in range(20)}, [])
    at = index.store.open()
    sizes = (70, 80, 90)
    for name, size in zip(at.head.count_files, sizes, strict=True):
        (Path(at.root) / FOLDER / name).write_bytes(b"?" * size)  # nobody could read that
    assert read_shape(at, 600.0, 0.0).count_files == sizes
