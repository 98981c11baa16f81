"""`iscp search` and `iscp index` on a real index, without a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp import iscp
from iscp.index.model.index_definition import KEY_ROWS_MIN, TEXT_ROWS_MIN, VECTOR_ROWS_MIN
from iscp.index.search.search_library import PartOverview, read_overview
from tests.integration.index.search.small_index import SmallIndex

OPTIONS = {
    "columns": "title^2,body",
    "tokenizer": "simple",
    "language": "english",
    "stem": "true",
    "stored": "year",
    "column": "place",
}
ROWS = [
    {
        "id": 1,
        "title": "Foxes",
        "body": "The quick brown fox jumps over the lazy dog",
        "year": 1999,
        "place": [1.0, 0.0],
    },
    {"id": 2, "title": "Dogs", "body": "A dog that sleeps", "year": 2001, "place": [0.0, 1.0]},
    {"id": 3, "title": "Friends", "body": "A fox and a dog \x1b[31mred", "year": 2003, "place": [0.7, 0.7]},
    {"id": 4, "title": "Wrong", "body": "fox", "year": 2003, "place": [float("nan"), 1.0]},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    columns = [pa.field("title", pa.string()), pa.field("body", pa.string()), pa.field("year", pa.int32())]
    made = SmallIndex(tmp_path_factory.mktemp("lake") / "index", "search", OPTIONS, columns, dimension=2)
    made.commit(ROWS)
    return made.uri


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(iscp, arguments, input=stdin)


def found(*arguments: str, stdin: str | None = None) -> Any:
    done = run(*arguments, "-o", "json", stdin=stdin)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_search_by_words_shows_rows_scores_and_where_the_words_are(index: str) -> None:
    answer = found("search", index, "fox", "--columns", "year", "--highlight", "--explain", "--filter", "year < 2003")
    (hit,) = answer["hits"]
    assert (hit["key"], hit["columns"]) == ({"id": 1}, {"year": 1999})
    assert hit["score"] > 0
    assert any("fox" in fragment for fragment in hit["highlights"]["body"])
    assert hit["explanation"]
    assert (answer["version"], answer["proven"]) == (0, True)
    shown = run("search", index, "fox", "--highlight", "--explain")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0].split()[:2] == ["_score", "id"]
    assert "hits at version 0 of the source" in shown.stderr
    assert "\x1b" not in shown.stdout


def test_a_row_that_could_not_be_indexed_is_found_by_no_search_and_is_a_dead_letter(index: str) -> None:
    assert {hit["key"]["id"] for hit in found("search", index, "fox OR wrong")["hits"]} == {1, 3}
    (letter,) = found("search", index, "--dead-letters")
    assert letter["key"] == {"id": 4}
    assert letter["fault"]
    assert "WHY" in run("search", "--dead-letters", index).stdout


def test_vectors_from_the_line_from_a_file_and_from_stdin(index: str, tmp_path: Path) -> None:
    file = tmp_path / "vector.json"
    file.write_text("[0.1, 0.9]")
    for given, stdin in (("[0.1, 0.9]", None), (str(file), None), ("-", "[0.1, 0.9]")):
        answer = found("search", index, "--vector", given, "-k", "1", stdin=stdin)
        assert [hit["key"] for hit in answer["hits"]] == [{"id": 2}]
    both = found("search", index, "fox", "--vector", "[0.1, 0.9]", "--text-weight", "0", "-k", "1")
    assert both["hits"][0]["key"] == {"id": 2}


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("--vector", "[]"), "is no vector"),
        (("--vector", "[1, true]"), "is no vector"),
        (("--vector", '["a"]'), "is no vector"),
        (("--vector", "[" * 100_000), "is no vector"),
        (("--vector", "no/such/file"), "cannot be read"),
        (("-k", "0"), "-k"),
        (("--wait", "soon"), "is not a duration"),
        (("--text-weight", "much"), "is not a number"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(arguments: tuple[str, ...], wrong: str) -> None:
    done = run("search", "/nowhere", "fox", *arguments)
    assert done.exit_code == 2
    assert wrong in done.stderr


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("fox", "--columns", "colour"), "--columns"),
        (("fox", "--filter", "colour = 'red'"), "--filter"),
        (('"fox',), "TEXT"),
        ((), "TEXT"),
        (("fox", "--min-version", "9", "--wait", "0s"), "--min-version"),
        (("fox", "--text-weight", "-1"), "--text-weight"),
    ],
)
def test_what_an_index_refuses_is_said_of_the_option(index: str, arguments: tuple[str, ...], field: str) -> None:
    done = run("search", index, *arguments)
    assert done.exit_code == 1
    assert f"  field: {field}\n" in done.stderr
    assert "  remedy: " in done.stderr


@pytest.mark.parametrize(
    "command", [("search", "URI", "fox"), ("index", "show", "URI"), ("search", "--dead-letters", "URI")]
)
def test_what_is_no_index_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    for place in (tmp_path / "nothing", tmp_path):
        done = run(*(str(place) if each == "URI" else each for each in command))
        assert done.exit_code == 1
        assert "is no index" in done.stderr


def test_an_index_is_shown_with_what_it_is_made_of(index: str) -> None:
    shown = found("index", "show", index)
    assert (shown["kind"], shown["key"], shown["version"]) == ("search", ["id"], 0)
    assert (shown["rows"], shown["faults"], shown["vectors"], shown["dead_rows"]) == (4, 1, 3, 0)
    assert shown["options"]["columns"] == {"title": 2.0, "body": 1.0}
    assert shown["bytes"] == sum(file.stat().st_size for file in Path(index).rglob("*") if file.is_file())
    assert read_overview(index).parts == (
        PartOverview("key", 4, 0, 4, KEY_ROWS_MIN),
        PartOverview("words_0", 3, 0, 4, TEXT_ROWS_MIN),
        PartOverview("words_1", 3, 0, 4, TEXT_ROWS_MIN),
        PartOverview("vector", 3, 0, 4, VECTOR_ROWS_MIN),
    )
    text = run("index", "show", index).stdout
    assert "1; see `iscp search --dead-letters`" in text
    assert "words_1" in text
