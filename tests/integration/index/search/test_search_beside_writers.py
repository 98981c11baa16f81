"""A search never shows half of a commit, whatever a writer and its upkeep do meanwhile."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pyarrow as pa

from iscp.index.search.search_library import search
from tests.integration.index.search.small_index import SmallIndex

ROWS = 400
COMMITS = 40
COLUMNS = [pa.field("body", pa.string()), pa.field("round", pa.int64())]


def write(place: str) -> None:
    """Change all rows in each commit, so that those of two commits beside each other show."""
    index = small(place)
    for number in range(COMMITS):
        rows = [{"id": key, "body": f"common round{number}", "round": number} for key in range(rows_at(number))]
        index.commit(rows, [] if rows_at(number) > ROWS else [ROWS])
        if number % 4 == 1:
            index.cover()
        if number % 8 == 3:
            index.build_again()
        if number % 8 == 5:
            index.compact()


def rows_at(number: int) -> int:
    """Return how many rows there are after a commit: every second one takes a row out, which the next brings back."""
    return ROWS + number % 2


def small(place: str) -> SmallIndex:
    return SmallIndex(Path(place), "fulltext", {"columns": "body", "tokenizer": "simple", "stored": "round"}, COLUMNS)


def test_a_search_sees_whole_commits_alone_and_never_goes_back(tmp_path: Path) -> None:
    place = str(tmp_path / "index")
    writer = multiprocessing.get_context("spawn").Process(target=write, args=(place,))
    writer.start()
    seen, searches = -1, 0
    try:
        while writer.is_alive() or seen < COMMITS - 1:
            if writer.exitcode:
                raise AssertionError(f"the writer ended with {writer.exitcode}")
            try:
                answer = search(place, "common", k=1_000)
            except Exception:
                if seen < 0:
                    continue  # there is no index yet, or it has no rows
                raise
            rounds = {hit.columns["round"] for hit in answer.hits}
            assert rounds == {answer.version}
            assert len({hit.key["id"] for hit in answer.hits}) == len(answer.hits) == rows_at(answer.version)
            assert answer.version >= seen
            seen, searches = answer.version, searches + 1
            own = search(place, "common", k=1, min_version=seen, wait_s=0)
            assert own.hits[0].columns["round"] == own.version >= seen
    finally:
        writer.terminate()
        writer.join()
    assert seen == COMMITS - 1
    assert searches >= 10
