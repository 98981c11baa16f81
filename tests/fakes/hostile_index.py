"""A small real index of words and vectors, with segments, deletions and new rows; and what a tenant may do to it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa

from tests.fakes.hostile_index_program import DIMENSION
from tests.integration.index.search.small_index import SmallIndex, random_vectors
from tests.random_logs.odd_cases import Odd
from tests.random_logs.odd_files import Replaced

WORDS = ("red", "blue", "green", "grey", "black", "white", "grass", "blues")
ROWS = 2_500
ODD_EVERY = 7
"""Of so many seeds one puts what is no file into the place of one."""


def make_index(place: Path | str) -> SmallIndex:
    """Return an index with segments of keys, words and vectors, rows that are gone, and rows that no segment has."""
    chance = random.Random(1)
    columns = [pa.field("title", pa.string()), pa.field("body", pa.string())]
    options = {"columns": "title,body", "column": "v", "tokenizer": "simple", "stored": "id"}
    index = SmallIndex(place, "search", options, columns, DIMENSION)
    vectors = random_vectors(1, ROWS, DIMENSION)

    def row(number: int) -> dict[str, object]:
        texts = {name: " ".join(chance.choices(WORDS, k=chance.randrange(1, 9))) for name in ("title", "body")}
        return {"id": number, **texts, "v": vectors[number]}

    index.commit([row(number) for number in range(ROWS - 100)])
    index.cover()
    index.commit([row(number) for number in range(50, 60)], range(200, 260))
    index.commit([row(number) for number in range(ROWS - 100, ROWS)])
    return index


def deadly(content: bytes) -> bytes:
    """Return a file of Lance's with one other byte, a zero that Lance repeats in an error: arrow-rs aborts on that."""
    changed = bytearray(content)
    changed[changed.rindex(b"/lance.encodings") + 3] = 0
    return bytes(changed)


def spoil(root: Path, seed: int) -> str:
    """Change one of an index's files at random, and return what was done."""
    chance = random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = chance.choice(files)
    if seed % ODD_EVERY == 0:
        odd = chance.choice([*Odd])
        Replaced.by(odd, path, root.with_name(f"{root.name} kept"))
        return f"{odd} for {path.relative_to(root)}"
    content = bytearray(path.read_bytes())
    how = chance.randrange(4)
    if how == 0 and content:
        for _ in range(chance.choice((1, 4, 64))):
            content[chance.randrange(len(content))] = chance.randrange(256)
    elif how == 1 and content:  # the ends of files have what else is where
        for _ in range(chance.choice((1, 4, 16))):
            content[-1 - chance.randrange(min(len(content), 600))] = chance.choice((0, 1, 127, 128, 255))
    elif how == 2:
        del content[chance.randrange(len(content) + 1) :]
    else:
        content = bytearray(chance.choice(files).read_bytes())
    path.unlink()
    path.write_bytes(content)
    return f"{('bytes', 'end', 'cut', 'other')[how]} of {path.relative_to(root)}"
