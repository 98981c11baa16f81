"""Programs and runs that end leave their indexes maintained, as nobody else does it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

import iscp
from iscp.index.lance.index_columns import words_index
from iscp.index.lance.index_store import open_index, segments_of

ROWS = 2_100
RUNS, LATER_RUNS = 8, 22
DAY_S = 86_400
TIMEOUT_S = 300

PROGRAM = """
import sys, iscp
lake = iscp.local()
lake.index(sys.argv[1], sys.argv[2], "fulltext", key=["id"], options={"columns": "body"}).refresh()
print("refreshed")
"""


def write(table: Path, first: int, count: int) -> None:
    ids = range(first, first + count)
    rows = pa.table({"id": pa.array(ids, pa.int64()), "body": [f"mot{each % 40} wort{each}" for each in ids]})
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(table), rows, mode="append", configuration=feed)


def test_a_program_that_ends_without_closing_its_lake_leaves_segments(tmp_path: Path) -> None:
    write(tmp_path / "s", 0, ROWS)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "s"), str(tmp_path / "i")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["refreshed"], "")
    assert [each.name for each in segments_of(open_index(str(tmp_path / "i")).dataset)] == [words_index(0)]


def test_the_files_of_an_index_that_runs_change_do_not_grow_with_them(tmp_path: Path) -> None:
    target = tmp_path / "i"
    counts = []
    for number in range(RUNS + LATER_RUNS):
        write(tmp_path / "s", 10 * number, 3)
        with iscp.local() as lake:
            result = lake.index(
                str(tmp_path / "s"), str(target), "fulltext", key=["id"], options={"columns": "body"}
            ).refresh()
        assert (result.ok, result.warning) == (True, "")
        for file in target.rglob("*"):  # the next run comes a day later
            if file.is_file():
                at_s = file.stat().st_mtime - DAY_S
                os.utime(file, (at_s, at_s))
        counts.append(sum(each.is_file() for each in target.rglob("*")))
    assert max(counts[RUNS:]) <= 2 * max(counts[:RUNS]), counts
    assert open_index(str(target)).head.rows == 3 * (RUNS + LATER_RUNS)
