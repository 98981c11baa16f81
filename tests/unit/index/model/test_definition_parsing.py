"""Options are parsed from texts and from JSON alike, and what is wrong is refused by its path.

A definition fits its source by names without case, and by types that are understood.

Values of options are read from texts and from JSON, and nothing else is taken for one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.model.definition_parsing import (
    OPTION_CHARS_MAX,
    STORABLE_TYPES,
    OptionReader,
    check_columns,
    definition_from_json,
    is_storable,
    options_of,
    parse_definition,
)
from iscp.index.model.index_definition import (
    FORMAT,
    LANGUAGES,
    Analysis,
    IndexDefinition,
    IndexKind,
    Metric,
    TextColumn,
    Tokenizer,
    VectorOptions,
    VectorPrecision,
)
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError

COLUMNS = {"columns": "body"}


def analysis(**options: Any) -> Analysis:
    parsed = parse_definition("fulltext", {**COLUMNS, **options}).analysis
    assert parsed is not None
    return parsed


def vector(**options: Any) -> VectorOptions:
    parsed = parse_definition("vector", options).vector
    assert parsed is not None
    return parsed


def test_full_text_has_defaults() -> None:
    assert parse_definition("fulltext", {"columns": "title^2, body"}) == IndexDefinition(
        IndexKind.FULLTEXT, (TextColumn("title", 2.0), TextColumn("body")), Analysis(), None, ()
    )
    assert analysis() == Analysis(Tokenizer.ICU, "", False, False, True, True, 40, True, 3, 3, False)


@pytest.mark.parametrize(
    "columns", ["title^2,body", ["title^2", "body"], {"title": 2, "body": "1"}, "title ^ 2.0 ,body"]
)
def test_columns_are_a_text_a_list_or_an_object(columns: Any) -> None:
    parsed = parse_definition("fulltext", {"columns": columns})
    assert parsed.columns == (TextColumn("title", 2.0), TextColumn("body", 1.0))


def test_a_language_stems_and_leaves_out_stop_words() -> None:
    assert analysis(language="English") == Analysis(language="english", stem=True, stop_words=True)
    assert analysis(language="english", stem="false") == Analysis(language="english", stop_words=True)
    assert analysis(language="english", stop_words=False) == Analysis(language="english", stem=True)
    assert all(analysis(language=language).stem for language in LANGUAGES)


def test_grams_have_bounds_and_no_places() -> None:
    grams = analysis(tokenizer="ngram", min_ngram="2", max_ngram=4.0, prefix_only="TRUE")
    assert grams == Analysis(Tokenizer.NGRAM, positions=False, min_ngram=2, max_ngram=4, prefix_only=True)
    assert (analysis(tokenizer="ngram", min_ngram=5).max_ngram, analysis(tokenizer="ngram").min_ngram) == (5, 3)


def test_vectors_come_from_a_column_or_a_text() -> None:
    assert vector(column="embedding") == VectorOptions(column="embedding")
    assert vector(text="body", embed="minilm", metric="L2", precision="float16", recall="0.9") == VectorOptions(
        "", "body", "minilm", Metric.L2, VectorPrecision.FLOAT16, 0.9
    )
    assert vector(column="e", metric="dot", recall=1).recall == 1.0


def test_a_search_has_both() -> None:
    parsed = parse_definition("search", {"columns": ["title"], "text": "body", "embed": "minilm", "stored": "Kind, at"})
    assert parsed == IndexDefinition(
        IndexKind.SEARCH, (TextColumn("title"),), Analysis(), VectorOptions("", "body", "minilm"), ("Kind", "at")
    )
    assert set(options_of(IndexKind.SEARCH)) == {
        *options_of(IndexKind.FULLTEXT),
        *options_of(IndexKind.VECTOR),
    }


@pytest.mark.parametrize(
    ("kind", "options", "name", "message"),
    [
        ("fulltext", {}, "columns", "is missing"),
        ("fulltext", {"columns": []}, "columns", "is missing"),
        ("fulltext", {"columns": ""}, "columns", "empty name"),
        ("fulltext", {"columns": "a,,b"}, "columns", "empty name"),
        ("fulltext", {"columns": "^2"}, "columns", "empty name"),
        ("fulltext", {"columns": "a,A"}, "columns", "twice"),
        ("fulltext", {"columns": "a^x"}, "columns", "'x', which is no number"),
        ("fulltext", {"columns": "a^0"}, "columns", "not between 0.001 and 1000"),
        ("fulltext", {"columns": {"a": True}}, "columns", "True, which is no number"),
        ("fulltext", {"columns": {"a": float("nan")}}, "columns", "nan, which is not between"),
        ("fulltext", {"columns": {1: 1}}, "columns", "empty name"),
        ("fulltext", {"columns": 7}, "columns", "7, which is no list"),
        ("fulltext", {"columns": [7]}, "columns", "no list"),
        ("fulltext", {"columns": "a" * 256}, "columns", "name of 256 characters"),
        ("fulltext", {"columns": "a\x00"}, "columns", "cannot be seen"),
        ("fulltext", {"columns": ",".join(f"c{n}" for n in range(201))}, "columns", "names 201 columns"),
        ("fulltext", {"columns": "a" * 20_001}, "columns", "has 20001 characters"),
        ("fulltext", {"colums": "a"}, "colums", "is no option of the consumer fulltext"),
        ("fulltext", {**COLUMNS, "metric": "l2"}, "metric", "is no option"),
        ("vector", {"column": "e", "tokenizer": "icu"}, "tokenizer", "is no option"),
        ("fulltext", {**COLUMNS, "tokenizer": "jieba"}, "tokenizer", "'jieba', which is not known"),
        ("fulltext", {**COLUMNS, "tokenizer": None}, "tokenizer", "None, which is not known"),
        ("fulltext", {**COLUMNS, "language": "klingon"}, "language", "'klingon', which is not known"),
        ("fulltext", {**COLUMNS, "language": "english", "tokenizer": "raw"}, "language", "gives no words"),
        ("fulltext", {**COLUMNS, "stem": True}, "stem", "without a language"),
        ("fulltext", {**COLUMNS, "stop_words": "true"}, "stop_words", "without a language"),
        ("fulltext", {**COLUMNS, "lower_case": "yes"}, "lower_case", "neither true nor false"),
        ("fulltext", {**COLUMNS, "lower_case": 1}, "lower_case", "neither true nor false"),
        ("fulltext", {**COLUMNS, "min_ngram": 2}, "min_ngram", "with the tokenizer icu"),
        ("fulltext", {**COLUMNS, "tokenizer": "ngram", "min_ngram": 0}, "min_ngram", "not between 1 and 20"),
        ("fulltext", {**COLUMNS, "tokenizer": "ngram", "max_ngram": 2}, "max_ngram", "less than min_ngram"),
        ("fulltext", {**COLUMNS, "tokenizer": "ngram", "positions": True}, "positions", "gives no places"),
        ("fulltext", {**COLUMNS, "max_token_length": "x"}, "max_token_length", "no whole number"),
        ("fulltext", {**COLUMNS, "max_token_length": 1}, "max_token_length", "not between 2 and 10000"),
        ("fulltext", {**COLUMNS, "max_token_length": True}, "max_token_length", "no whole number"),
        ("fulltext", {**COLUMNS, "max_token_length": 2.5}, "max_token_length", "no whole number"),
        ("fulltext", {**COLUMNS, "stored": {"a": 1}}, "stored", "no list of columns"),
        ("fulltext", {**COLUMNS, "stored": "a,a"}, "stored", "twice"),
        ("vector", {}, "column", "is missing"),
        ("vector", {"column": "e", "text": "t"}, "text", "beside column"),
        ("vector", {"column": "e", "embed": "x"}, "embed", "beside column"),
        ("vector", {"text": "t"}, "embed", "is missing"),
        ("vector", {"embed": "x"}, "text", "is missing"),
        ("vector", {"column": " "}, "column", "names nothing"),
        ("vector", {"column": 3}, "column", "3, which names nothing"),
        ("vector", {"column": "e", "metric": "hamming"}, "metric", "not known"),
        ("vector", {"column": "e", "precision": "int8"}, "precision", "not known"),
        ("vector", {"column": "e", "recall": 0.4}, "recall", "not between 0.5 and 1"),
        ("vector", {"column": "e", "recall": "1.1"}, "recall", "not between 0.5 and 1"),
        ("vector", {"column": "e", "recall": "nan"}, "recall", "no number"),
    ],
)
def test_what_is_wrong_is_refused_by_its_path(kind: str, options: Mapping[str, Any], name: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        parse_definition(kind, options)
    assert refused.value.field == f"spec.iteration.consumer.options.{name}"
    assert refused.value.remedy


def test_an_unknown_option_has_the_one_that_may_be_meant() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_definition("fulltext", {"colums": "a"})
    assert refused.value.remedy.startswith("Did you mean columns? Its options are ascii_folding, columns, ")
    with pytest.raises(InvalidRequest, match="is no kind of index") as refused:
        parse_definition("replica", {})
    assert refused.value.field == "spec.iteration.consumer.kind"


def stored(**changes: Any) -> str:
    return json.dumps({**json.loads(parse_definition("fulltext", COLUMNS).to_json()), **changes})


def test_a_newer_format_is_refused() -> None:
    assert definition_from_json(stored()) == parse_definition("fulltext", COLUMNS)
    with pytest.raises(PermanentError, match=f"has format {FORMAT + 1}") as refused:
        definition_from_json(stored(format=FORMAT + 1, options={"new": 1}))
    assert refused.value.remedy.startswith("Upgrade iscp")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "null", "1", "[" * 100_000, stored(format="1"), stored(format=0), stored(format=True)),
        *(stored(kind="x"), stored(kind=[]), stored(options=None), stored(options=[1]), stored(options={"more": 1})),
    ],
)
def test_what_is_no_definition_is_refused(text: str) -> None:
    with pytest.raises(PermanentError, match="cannot be read") as refused:
        definition_from_json(text)
    assert refused.value.code is ErrorCode.CONSUMER_BROKEN


NAME = st.text("abcé数 ._", min_size=1, max_size=5).filter(lambda name: name.strip() == name)
TEXT = st.fixed_dictionaries(
    {"columns": st.dictionaries(NAME, st.floats(0.001, 1000), min_size=1, max_size=3)},
    optional={
        "language": st.sampled_from(LANGUAGES),
        "tokenizer": st.sampled_from(["icu", "simple", "whitespace"]),
        "stem": st.just(False),
        "stop_words": st.just(False),
        "lower_case": st.booleans(),
        "ascii_folding": st.booleans(),
        "max_token_length": st.integers(2, 10_000),
        "positions": st.booleans(),
    },
)
VECTOR = st.fixed_dictionaries(
    {"text": NAME, "embed": NAME},
    optional={"metric": st.sampled_from([*Metric]), "recall": st.floats(0.5, 1), "precision": st.just("float16")},
)
STORED = st.fixed_dictionaries({}, optional={"stored": st.lists(NAME, max_size=3, unique=True)})


@given(TEXT, VECTOR, STORED)
def test_the_stored_form_gives_the_definition_back(
    text: dict[str, Any], vectors: dict[str, Any], columns: dict[str, Any]
) -> None:
    for kind, options in (
        ("fulltext", {**text, **columns}),
        ("vector", {**vectors, **columns}),
        ("vector", {"column": "e", **columns}),
        ("search", {**text, **vectors, **columns}),
    ):
        parsed = parse_definition(kind, options)
        assert definition_from_json(parsed.to_json()) == parsed
        assert parse_definition(kind, parsed.options()) == parsed
    grams = parse_definition("fulltext", {"columns": text["columns"], "tokenizer": "ngram", "max_ngram": 7})
    assert definition_from_json(grams.to_json()) == grams


def test_a_definition_of_an_earlier_analysis_is_read_and_written_as_it_was() -> None:
    earlier = json.dumps({"format": 1, "kind": "fulltext", "options": {"columns": "body"}})
    found = definition_from_json(earlier)
    assert found.analysis is not None
    assert (found.analysis.version, found.analysis.folds) == (1, False)
    assert '"format":1' in found.to_json(), "releases before this one read it"
    assert definition_from_json(found.to_json()) == found
    newer = parse_definition("fulltext", {"columns": "body"})
    assert (newer.analysed_by(1), newer.analysis is not None and newer.analysis.folds) == (found, True)
    assert definition_from_json(newer.to_json()) == newer


def test_definitions_without_texts_are_those_of_earlier_releases() -> None:
    assert '"format":1' in parse_definition("vector", {"column": "v"}).to_json()


@pytest.mark.parametrize("version", [0, 3, "2", True, None])
def test_an_analysis_that_is_none_is_refused(version: object) -> None:
    with pytest.raises(PermanentError):
        definition_from_json(stored(kind="fulltext", options={"columns": "body"}, format=2, analysis=version))


SOURCE = {
    "Id": "bigint",
    "Title": "string",
    "body": "varchar(200)",
    "e": "array<float>",
    "d": "array<double>",
    "n": "array<int>",
    "m": "map<string,string>",
    "price": "decimal(10,2)",
    "At": "timestamp",
    "v": "void",
}


def checked(kind: str, *key: str, **options: Any) -> Any:
    return check_columns(parse_definition(kind, options), SOURCE, key or ("id",))


def test_names_are_spelled_as_in_the_source() -> None:
    found = checked("search", columns="TITLE^2,Body", column="E", stored="at,PRICE")
    assert found.columns == (TextColumn("Title", 2.0), TextColumn("body"))
    assert (found.vector.column, found.stored) == ("e", ("At", "price"))
    assert checked("vector", text="title", embed="x").vector.text == "Title"
    assert checked("vector", column="d").vector.column == "d"


def test_all_columns_that_are_held_are_named_once() -> None:
    found = checked("search", columns="title,body", text="body", embed="x", stored="at,id")
    assert found.stored_columns(("Id",)) == ("Id", "Title", "body", "At")
    assert checked("vector", column="e", stored="At").stored_columns(("Id", "Title")) == ("Id", "Title", "e", "At")
    assert checked("fulltext", columns="title").stored_columns(("Id",)) == ("Id", "Title")


@pytest.mark.parametrize(
    ("kind", "options", "name", "message"),
    [
        ("fulltext", {"columns": "title,none"}, "columns", "names 'none', which the source does not have"),
        ("fulltext", {"columns": "id"}, "columns", "names 'Id', which has the type 'bigint'"),
        ("vector", {"column": "none"}, "column", "does not have"),
        ("vector", {"column": "n"}, "column", "type 'array<int>'"),
        ("vector", {"column": "title"}, "column", "type 'string'"),
        ("vector", {"text": "e", "embed": "x"}, "text", "type 'array<float>'"),
        ("fulltext", {"columns": "title", "stored": "none"}, "stored", "does not have"),
        ("fulltext", {"columns": "title", "stored": "m"}, "stored", "type 'map<string,string>'"),
        ("fulltext", {"columns": "title", "stored": "v"}, "stored", "type 'void'"),
        ("fulltext", {"columns": "title", "stored": "e"}, "stored", "type 'array<float>'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(kind: str, options: dict[str, Any], name: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        checked(kind, **options)
    assert refused.value.field == f"spec.iteration.consumer.options.{name}"
    assert refused.value.remedy


def test_the_remedy_says_which_columns_and_types_there_are() -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked("vector", column="none")
    assert refused.value.remedy.startswith("Its columns are Id, Title, ")
    with pytest.raises(InvalidRequest) as refused:
        checked("vector", column="n")
    assert refused.value.remedy == "Name columns of the type array<float> or array<double>"


def test_a_key_is_required_and_has_to_be_storable() -> None:
    with pytest.raises(InvalidRequest, match="is missing") as refused:
        check_columns(parse_definition("fulltext", {"columns": "title"}), SOURCE, ())
    assert refused.value.field == "spec.iteration.consumer.key"
    for key, message in (("none", "does not have"), ("m", "type 'map<string,string>'")):
        with pytest.raises(InvalidRequest, match=message) as refused:
            checked("fulltext", key, columns="title")
        assert refused.value.field == "spec.iteration.consumer.key"


def test_the_types_that_are_stored() -> None:
    assert all(is_storable(each) for each in STORABLE_TYPES)
    assert all(is_storable(each) for each in ("Decimal(38, 10)", "char(3)", "long", "integer", "short", "byte", "INT"))
    refused = (
        "interval day",
        "struct<a:int>",
        "variant",
        "string collate UTF8_LCASE",
        "decimal(x)",
        "",
        "array<string>",
    )
    assert not any(is_storable(each) for each in refused)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(st.text(max_size=3), values, max_size=2),
    max_leaves=4,
)


def reader(value: Any) -> OptionReader:
    return OptionReader("fulltext", {"it": value}, ["it"])


@pytest.mark.parametrize(("value", "number"), [("7", 7), (" +7 ", 7), (7.0, 7), (7, 7), ("-3", -3)])
def test_whole_numbers(value: Any, number: int) -> None:
    assert reader(value).whole_number("it", 1, -5, 10) == number


@pytest.mark.parametrize(("value", "number"), [("0.5", 0.5), (".5", 0.5), ("1e-1", 0.1), (1, 1.0), (0.25, 0.25)])
def test_numbers(value: Any, number: float) -> None:
    assert reader(value).number("it", 1, 0, 1) == number


@pytest.mark.parametrize(
    "value", ["", "x", "1_0", "٣", "0x1", "1e999", "9" * 400, 10**400, float("inf"), None, [], True]
)
def test_what_is_no_number_in_bounds(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"no number|not between"):
        reader(value).number("it", 1, 0, 1)
    with pytest.raises(InvalidRequest, match=r"no whole number|not between"):
        reader(value).whole_number("it", 1, 0, 1)


def test_defaults_are_those_of_options_that_are_not_given() -> None:
    nothing = OptionReader("fulltext", {}, ["it"])
    assert not nothing.given("it")
    assert nothing.text("it") == nothing.word("it", ["a"]) == ""
    assert nothing.truth("it", True) is True
    assert nothing.whole_number("it", 3, 1, 5) == 3
    assert nothing.choice("it", Metric.DOT) is Metric.DOT
    assert nothing.names("it") == ()
    assert nothing.text_columns("it") == ()


@given(JSON)
def test_any_value_is_read_or_refused_by_its_path(value: Any) -> None:
    def read(name: str) -> None:
        found = reader(value)
        match name:
            case "text":
                assert found.text("it") == value.strip()
            case "truth":
                assert found.truth("it", False) in (True, False)
            case "whole_number":
                assert 1 <= found.whole_number("it", 1, 1, 9) <= 9
            case "number":
                assert 1 <= found.number("it", 1, 1, 9) <= 9
            case "choice":
                assert found.choice("it", Metric.DOT) == value.strip().lower()
            case "names":
                assert all(found.names("it"))
            case _:
                assert all(each.name and each.boost > 0 for each in found.text_columns("it"))

    for name in ("text", "truth", "whole_number", "number", "choice", "names", "text_columns"):
        error = refusal(read, name)
        assert error is None or (error.field == "spec.iteration.consumer.options.it" and error.remedy)


def refusal(read: Any, name: str) -> InvalidRequest | None:
    try:
        read(name)
    except InvalidRequest as error:
        return error
    return None


def test_names_of_options_are_shown_in_part() -> None:
    with pytest.raises(InvalidRequest) as refused:
        OptionReader("fulltext", {"x\n" * 5_000: 1}, ["it"])
    assert len(refused.value.field) < 200
    assert "\n" not in refused.value.field
    with pytest.raises(InvalidRequest, match="is no option"):
        OptionReader("fulltext", {7: 1}, ["it"])  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="more than 20000"):
        reader("x" * (OPTION_CHARS_MAX + 1))
