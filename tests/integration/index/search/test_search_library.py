"""Searches as programs have them: which version they are of, what they show, and what they refuse."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest

import iscp
from iscp.index.search.search_library import run_search, search, search_frame
from iscp.index.search.searched_index import IndexNotReadyError
from iscp.index.search.vector_search import own_embedder
from iscp.model.api.api_requests import SearchRequest, SearchWeights
from iscp.model.values.errors import InvalidRequest
from tests.integration.index.search.small_index import SmallIndex

if TYPE_CHECKING:
    from iscp.spark.session import SparkRuntime

COLUMNS = [pa.field("title", pa.string()), pa.field("body", pa.string()), pa.field("weight", pa.int32())]
ROWS: list[dict[str, Any]] = [
    {"id": 1, "title": "Running shoes", "body": "Shoes for runners who run on trails.", "weight": 300},
    {"id": 2, "title": "Walking boots", "body": "Boots, not shoes: for walks in the mud.", "weight": 900},
    {"id": 3, "title": "データベース", "body": "数据库索引 follows its table", "weight": None},
]


def text_index(place: Path, **options: object) -> SmallIndex:
    given = {"columns": "title^2,body", "language": "english", "stem": True, "stored": "weight", **options}
    return SmallIndex(place, "fulltext", given, COLUMNS)


@dataclass
class Embedded:
    vectors: Any
    refused: Mapping[int, str] = field(default_factory=dict)


def hybrid_index(place: Path, fingerprint: str = "") -> SmallIndex:
    embedder = own_embedder("hashed")

    def embed(texts: Sequence[str], _: object) -> Embedded:
        return Embedded(embedder.embed(texts))

    options = {"columns": "body", "text": "body", "embed": "hashed", "stored": "weight"}
    return SmallIndex(place, "search", options, COLUMNS, 256, embed, fingerprint or embedder.fingerprint)


def test_an_answer_says_what_was_found_where_and_why(tmp_path: Path) -> None:
    index = text_index(tmp_path / "index")
    index.commit(ROWS)
    answer = iscp.search(index.uri, "run", columns=["Weight"], highlight=True, explain=True)
    hit = answer.hits[0]
    assert (answer.version, answer.version_at_s) == (0, 1_000.0)
    assert answer.index_version == index.store.open().version
    assert answer.proven
    assert [dict(each.key) for each in answer.hits] == [{"id": 1}]
    assert hit.columns == {"weight": 300}
    assert hit.highlights == {
        "title": ("<em>Running</em> shoes",),
        "body": ("Shoes for runners who <em>run</em> on trails.",),
    }
    assert hit.explanation.splitlines()[0] == f"{hit.score:.6g} = score: sum of"
    assert "documents with title" in hit.explanation


@pytest.mark.parametrize("query", ["数据库", "データベース", '"数据库索引"'])
def test_texts_without_blanks_are_found_and_marked(tmp_path: Path, query: str) -> None:
    index = text_index(tmp_path / "index")
    index.commit(ROWS)
    hits = search(index.uri, query, highlight=True).hits
    assert [hit.key["id"] for hit in hits] == [3]
    marked = " ".join(part for fragments in hits[0].highlights.values() for part in fragments)
    assert "".join(re.findall("<em>(.*?)</em>", marked)) in query


def test_a_search_waits_for_the_version_that_it_needs(tmp_path: Path) -> None:
    index = text_index(tmp_path / "index")
    index.commit(ROWS[:1])

    def commit_later() -> None:
        time.sleep(0.3)
        index.commit(ROWS[1:])

    writer = threading.Thread(target=commit_later)
    writer.start()
    answer = search(index.uri, "boots", min_version=1, wait_s=30)
    writer.join()
    assert [hit.key["id"] for hit in answer.hits] == [2]
    assert answer.version == 1
    assert answer.waited_ms >= 200
    assert answer.took_ms + answer.waited_ms < 30_000


def test_an_index_behind_the_version_is_refused_with_its_own(tmp_path: Path) -> None:
    index = text_index(tmp_path / "index")
    index.commit(ROWS)
    with pytest.raises(IndexNotReadyError, match=r"at version 0 of its source .* not yet at 5") as refused:
        search(index.uri, "boots", min_version=5, wait_s=0.1)
    assert refused.value.field == "min_version"


def test_an_index_that_is_being_built_is_never_served(tmp_path: Path) -> None:
    index = text_index(tmp_path / "index")
    with pytest.raises(IndexNotReadyError, match="being built"):
        search(index.uri, "boots")


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no index"):
        search(str(tmp_path / "nothing"), "boots")
    lance.write_dataset(pa.table({"a": [1]}), tmp_path / "other")
    with pytest.raises(InvalidRequest, match="did not write"):
        search(str(tmp_path / "other"), "boots")


@pytest.mark.parametrize(
    ("given", "field_", "fault"),
    [
        ({"text": "boots", "columns": ["nope"]}, "columns", "does not store"),
        ({"text": "boots", "filter": "nope = 1"}, "filter", "does not store"),
        ({"text": "boots", "filter": "_key = '1'"}, "filter", "does not store"),
        ({"text": "boots", "filter": "weight = (SELECT 1)"}, "filter", "cannot have"),
        ({"text": "boots", "filter": "weight = 1 OR"}, "filter", "does not parse"),
        ({"text": "nope:boots"}, "query", "not searched"),
        ({"text": '"boots'}, "query", "not closed"),
        ({"text": "-boots"}, "query", "only excludes"),
        ({"text": "(" * 30 + "boots" + ")" * 30}, "query", "parentheses"),
        ({"text": "boots " * 2_000}, "text", "more than"),
        ({"text": "boots", "k": 0}, "k", "not between"),
        ({"text": "boots", "k": 10**9}, "k", "not between"),
        ({"text": "boots", "wait_s": math.nan}, "wait_s", "not between"),
        ({"text": "  "}, "text", "nothing to search for"),
        ({"text": "boots", "weights": SearchWeights(0, 1)}, "weights", "nothing to search for"),
        ({"vector": [1.0]}, "vector", "no vectors"),
        ({"vector": [math.inf]}, "vector", "infinite"),
        ({"vector": ["a"]}, "vector", "no number"),
        ({"vector": [0.5] * 100_000}, "vector", "more than"),
    ],
)
def test_what_no_search_can_be_is_refused_by_name(
    tmp_path: Path, given: dict[str, Any], field_: str, fault: str
) -> None:
    index = text_index(tmp_path / "index")
    index.commit(ROWS)
    with pytest.raises(InvalidRequest, match=fault) as refused:
        search(index.uri, **given)
    assert refused.value.field == field_
    assert refused.value.remedy


def test_a_query_of_stop_words_finds_nothing(tmp_path: Path) -> None:
    index = text_index(tmp_path / "index", stop_words=True)
    index.commit(ROWS)
    assert search(index.uri, "the of and").hits == ()
    assert search(index.uri, "zzz*").hits == ()
    assert search(index.uri, "+zzz* +boots").hits == ()


def test_a_prefix_of_many_words_says_that_it_was_cut(tmp_path: Path) -> None:
    index = text_index(tmp_path / "index", stem=False)
    index.commit([{"id": key, "title": f"word{key:03}", "body": None, "weight": 1} for key in range(80)])
    answer = search(index.uri, "word*", k=100)
    assert answer.cut == ("word",)
    assert len(answer.hits) == 50


def test_hybrid_hits_are_fused_from_both_rankings(tmp_path: Path) -> None:
    index = hybrid_index(tmp_path / "index")
    index.commit([{**row, "title": None} for row in ROWS])
    both = search(index.uri, "shoes for runners", explain=True)
    assert both.hits[0].key == {"id": 1}
    assert math.isclose(both.hits[0].score, 2 / 61)
    assert "1 by words" in both.hits[0].explanation
    assert "1 by vectors" in both.hits[0].explanation
    assert {hit.key["id"] for hit in both.hits} == {1, 2, 3}
    words = search(index.uri, "shoes for runners", weights=SearchWeights(1, 0))
    assert [hit.key["id"] for hit in words.hits] == [1, 2]
    nearest = search(index.uri, "shoes for runners", weights=SearchWeights(0, 1))
    assert nearest.hits[0].key == {"id": 1}
    assert 0 < nearest.hits[0].score <= 1
    heavier = search(index.uri, "boots", vector=own_embedder("hashed").embed([ROWS[0]["body"]])[0], k=1)
    assert heavier.hits[0].key["id"] in (1, 2)
    by_vector = SearchWeights(0.1, 10)
    vector = own_embedder("hashed").embed([ROWS[0]["body"]])[0]
    assert search(index.uri, "boots", vector=vector, k=1, weights=by_vector).hits[0].key == {"id": 1}


def test_a_text_is_embedded_only_by_the_embedder_of_the_rows(tmp_path: Path) -> None:
    index = hybrid_index(tmp_path / "index", "another/1")
    index.commit(ROWS)
    with pytest.raises(InvalidRequest, match="other vectors"):
        run_search(SearchRequest(index.uri, "shoes", weights=SearchWeights(0, 1)))


def test_importing_the_package_loads_neither_lance_nor_spark() -> None:
    program = "import iscp, sys; print([m for m in ('lance', 'pyspark', 'pyarrow', 'rapidfuzz') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.spark
def test_a_frame_has_the_hits_for_joins(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    index = text_index(tmp_path / "index")
    index.commit(ROWS)
    session = spark_runtime.root
    frame = search_frame(session, index.uri, "shoes", columns=["weight"])
    names = session.createDataFrame([(1, "one"), (2, "two"), (3, "three")], "id long, name string")
    joined = frame.join(names, "id").orderBy("_score", ascending=False).select("name", "weight", "_version").collect()
    assert [tuple(row) for row in joined] == [("one", 300, 0), ("two", 900, 0)]
    empty = search_frame(session, index.uri, "nothing")
    assert empty.columns == ["id", "title", "body", "weight", "_score", "_version"]
    assert empty.count() == 0
