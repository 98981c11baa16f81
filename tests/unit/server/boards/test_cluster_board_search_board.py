"""The board of searches: indexes to choose from, hits, and marks in what anybody may have written."""

from __future__ import annotations

from iscp.model.api.api_requests import SearchAnswer, SearchHit
from iscp.server.boards.cluster_board import COLUMNS_SHOWN_MAX, VALUE_CHARS_MAX, search_board, wanted_of
from iscp.server.boards.job_board import all_facts
from tests.fakes.viewed_cluster import job_view


def index(number: int, kind: str, target: str) -> object:
    return job_view(number, {"iteration": {"consumer": {"kind": kind, "target": target}}})


def test_only_indexes_can_be_searched() -> None:
    jobs = all_facts([index(1, "vector", "/b"), index(2, "fulltext", "/a"), job_view(3), index(4, "search", "")])  # type: ignore[list-item]
    assert [job.target for job in search_board(jobs, {}, None).indexes] == ["/a", "/b"]


def test_a_hit_has_key_columns_and_fragments() -> None:
    hit = SearchHit({"id": 7, "day": "x"}, 1.23456, {"n": 1, "text": "all of it"}, {"text": ("a <em>b</em>", "c")})
    board = search_board((), {"index": "/a", "text": " b "}, SearchAnswer((hit,), 1, 0.0, 1))
    assert (board.uri, board.text) == ("/a", "b")
    (shown,) = board.hits
    assert (shown.key, shown.score, shown.columns) == ("id = 7, day = x", "1.235", [("n", "1")])
    assert shown.fragments == [("text", [("a ", False), ("b", True), (" … ", False), ("c", False)])]


def test_what_is_long_is_cut() -> None:
    hit = SearchHit({"id": "k" * 9999}, 1.0, {f"c{n}": "v" * 9999 for n in range(99)})
    (shown,) = search_board((), {}, SearchAnswer((hit,), 1, 0.0, 1)).hits
    assert len(shown.columns) == COLUMNS_SHOWN_MAX
    assert all(len(value) == VALUE_CHARS_MAX for _, value in shown.columns)
    uri, text = wanted_of({"index": "i" * 9999, "text": "t" * 99_999})
    assert (len(uri), len(text)) == (4_000, 8_000)
