"""Ranks are those of the live rows, after any history of an index."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.index.lance.index_store import SegmentStatistics
from iscp.index.lance.word_counts import CountFile, merged_counts
from iscp.index.search.fulltext_search import FulltextSearch
from iscp.index.search.search_library import search
from iscp.index.search.searched_index import SearchedIndex
from tests.integration.index.search.reference_ranks import Clause, ReferenceRanks, draw_query, require_ranks
from tests.integration.index.search.small_index import SmallIndex
from tests.selection import in_full

BOOSTS = {"title": 2.0, "body": 1.0}
OPTIONS = {"columns": "title^2,body", "tokenizer": "simple", "stored": "weight"}
COLUMNS = [pa.field("title", pa.string()), pa.field("body", pa.string()), pa.field("weight", pa.int32())]
WORDS = [f"{'abcdefgh'[number % 8]}{'aeiou'[number % 5]}{number:x}" for number in range(400)]
SHARES = [1 / (number + 1) for number in range(len(WORDS))]


def drawn_text(draw: random.Random, most: int) -> str | None:
    if draw.random() < 0.1:
        return draw.choice((None, "", "... !"))
    words = draw.choices(WORDS, SHARES, k=draw.randint(1, most))
    return " ".join(word.upper() if draw.random() < 0.1 else word for word in words)


def drawn_rows(draw: random.Random, keys: list[int]) -> list[dict[str, object]]:
    return [
        {"id": key, "title": drawn_text(draw, 8), "body": drawn_text(draw, 60), "weight": draw.randint(0, 99)}
        for key in keys
    ]


@pytest.mark.parametrize("seed", in_full(range(1, 40), (1, 2, 3)))
def test_ranks_are_those_of_the_live_rows_after_any_history(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    index = SmallIndex(
        tmp_path / "index",
        "fulltext",
        OPTIONS,
        COLUMNS,
    )
    weights: dict[int, int] = {}
    index.commit()
    for step in range(8):
        keys = draw.sample(range(900), draw.choice((5, 60, 300)))
        gone = draw.sample(sorted(weights), min(len(weights), draw.choice((0, 20, 150))))
        rows = drawn_rows(draw, [key for key in keys if key not in gone])
        index.commit(rows, gone)
        for key in gone:
            del weights[key]
        weights |= {int(str(row["id"])): int(str(row["weight"])) for row in rows}
        upkeep = draw.choice((index.cover, index.build_again, index.compact, None))
        if upkeep is not None:
            upkeep()
        check_queries(index, draw, weights, f"seed {seed}, step {step}")


def check_queries(index: SmallIndex, draw: random.Random, weights: dict[int, int], what: str) -> None:
    reference = ReferenceRanks(index.live_words(), BOOSTS)
    assert len(reference.documents) == len(weights) + 1  # and the row with the head
    for _ in range(12):
        clauses = draw_query(draw, WORDS, list(BOOSTS))
        text = " ".join(each.text(list(BOOSTS)) for each in clauses)
        least, k = draw.choice((0, 0, 30, 97)), draw.choice((1, 10, 100))
        passing = {str(key) for key, weight in weights.items() if weight >= least}
        answer = search(index.uri, text, k=k, filter=f"weight >= {least}" if least else "", columns=["weight"])
        hits = [(hit.score, str(hit.key["id"])) for hit in answer.hits]
        require_ranks(hits, reference.ranked(clauses, passing), k, f"{what}: {text}")
        assert [hit.columns["weight"] for hit in answer.hits] == [weights[int(key)] for _, key in hits]
        assert answer.version == index.version
        assert answer.proven


def test_an_older_version_has_the_rows_that_were_deleted_since(tmp_path: Path) -> None:
    """Rows that no segment has are cached when they are searched again, and by then some of them are gone."""
    draw = random.Random(6)
    index = SmallIndex(tmp_path / "index", "fulltext", OPTIONS, COLUMNS)
    index.commit(drawn_rows(draw, list(range(400))))
    before, words_before = index.store.open(), index.live_words()
    index.commit(removed=list(range(0, 400, 3)))
    after, words_after = index.store.open(), index.live_words()
    clauses = [Clause("", "words", (WORDS[3],), tuple(BOOSTS))]
    for at, words in ((after, words_after), (after, words_after), (before, words_before), (after, words_after)):
        searched = SearchedIndex(at)
        ranking = FulltextSearch(searched, searched.query(WORDS[3])).best(1_000)
        expected = ReferenceRanks(words, BOOSTS).ranked(clauses)
        require_ranks([(row.score, row.key) for row in ranking.rows], expected, 1_000, str(at.version))


def test_few_rows_are_scored_where_the_first_candidates_are_proven(tmp_path: Path) -> None:
    draw = random.Random(4)
    index = SmallIndex(tmp_path / "index", "fulltext", OPTIONS, COLUMNS)
    index.commit(drawn_rows(draw, list(range(6_000))))
    index.cover()
    searched = SearchedIndex(index.store.open())
    reference = ReferenceRanks(index.live_words(), BOOSTS)
    for word in (WORDS[3], WORDS[40]):
        ranking = FulltextSearch(searched, searched.query(word)).best(10)
        expected = reference.ranked([Clause("", "words", (word,), tuple(BOOSTS))])
        require_ranks([(row.score, row.key) for row in ranking.rows], expected, 10, word)
        assert ranking.scored < len(expected) / 3


def test_all_matches_are_scored_where_nothing_says_by_what_lance_ranks(tmp_path: Path) -> None:
    draw = random.Random(5)
    index = SmallIndex(tmp_path / "index", "fulltext", OPTIONS, COLUMNS)
    index.commit(drawn_rows(draw, list(range(1_000))))
    index.cover()
    searched = SearchedIndex(index.store.open())
    expected = ReferenceRanks(index.live_words(), BOOSTS).ranked([Clause("", "words", (WORDS[3],), tuple(BOOSTS))])
    for read in (lambda *_: None, lambda *_: SegmentStatistics(10**6, 10**6, CountFile(merged_counts([SOME_COUNTS])))):
        ranking = FulltextSearch(searched, searched.query(WORDS[3]), read_segment=read).best(10)
        require_ranks([(row.score, row.key) for row in ranking.rows], expected, 10, "all")
        assert ranking.scored >= len(expected)


SOME_COUNTS = pa.table({"column": pa.array([0], pa.int16()), "word": ["none"], "rows": [1]})
