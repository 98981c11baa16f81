"""Statements of indexes: what is read of them, and where a faulty one is faulty.

Any text is cut into tokens that cover it but for blanks and comments, or is refused where it does not end.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cli.view.definition_files import parse_sql
from iscp.cli.view.sql_statements import COLUMNS_MAX, IndexStatement, SqlSource, TokenKind, ViewStatement, tokens_of
from iscp.model.values.errors import InvalidRequest


def parse_all(text: str) -> list[Any]:
    return list(parse_sql(SqlSource(text, "f.sql")))


def parse_one(text: str) -> IndexStatement:
    (found,) = parse_all(text)
    assert isinstance(found, IndexStatement), found
    return found


def refused(text: str) -> InvalidRequest:
    (found,) = parse_all(text)
    assert isinstance(found, InvalidRequest), found
    return found


def test_a_file_has_views_and_indexes_in_their_order() -> None:
    view, first, second = parse_all(
        """CREATE MATERIALIZED VIEW docs AS SELECT * FROM raw;
CREATE FULLTEXT INDEX docs_text ON docs (title BOOST 2, body) KEY (id) TARGET '/lake/docs_text'
  WHERE lang = 'en' AND target IN ('a;b', 'c')
  OPTIONS (tokenizer = 'icu', language = 'english', stored = 'year,author');
create or replace search index `both of them` on delta.`/lake/docs` (`body`) key (id, `part no`)
  schedule every 10 minutes options (embed = 'minilm', recall = 0.99, precision = 16, fast = true);
"""
    )
    assert isinstance(view, ViewStatement)
    assert first == IndexStatement(
        name="docs_text",
        kind="fulltext",
        table="docs",
        place="f.sql:2:1",
        key=("id",),
        target="/lake/docs_text",
        where="lang = 'en' AND target IN ('a;b', 'c')",
        options={
            "columns": "title^2,body",
            "tokenizer": "icu",
            "language": "english",
            "stored": "year,author",
        },
    )
    assert second == IndexStatement(
        name="both of them",
        kind="search",
        table="/lake/docs",
        place="f.sql:5:1",
        is_place=True,
        key=("id", "part no"),
        options={
            "columns": "body",
            "text": "body",
            "embed": "minilm",
            "recall": 0.99,
            "precision": 16,
            "fast": True,
        },
        run={"every": 600.0},
        replace=True,
    )


@pytest.mark.parametrize(
    ("brackets", "options", "read"),
    [
        ("(embedding)", "(metric = 'cosine')", {"column": "embedding", "metric": "cosine"}),
        ("(body)", "(embed = 'minilm')", {"text": "body", "embed": "minilm"}),
        ("(body)", "(EMBED = 'minilm')", {"text": "body", "embed": "minilm"}),
    ],
)
def test_an_index_of_vectors_has_the_column_of_the_vectors_or_of_the_text(
    brackets: str, options: str, read: dict[str, Any]
) -> None:
    found = parse_one(f"CREATE VECTOR INDEX v ON t {brackets} KEY (id) OPTIONS {options}")
    assert (found.kind, found.options) == ("vector", read)


@pytest.mark.parametrize(
    ("table", "named", "is_place"),
    [
        ("docs", "docs", False),
        ("sales.docs", "sales.docs", False),
        ("`/lake/docs`", "/lake/docs", True),
        ("delta.`s3://b/docs`", "s3://b/docs", True),
        ("'s3://b/docs'", "s3://b/docs", True),
        ("`a/b`.`c`", "a/b.c", False),
    ],
)
def test_a_table_has_a_name_or_a_place(table: str, named: str, is_place: bool) -> None:
    found = parse_one(f"CREATE FULLTEXT INDEX i ON {table} (a) KEY (id)")
    assert (found.table, found.is_place) == (named, is_place)


@pytest.mark.parametrize("kind", ["FULLTEXT", "VECTOR", "SEARCH"])
def test_if_not_exists_leaves_what_is_there(kind: str) -> None:
    found = parse_one(f"CREATE {kind} INDEX IF NOT EXISTS i ON t (a) KEY (id)")
    assert (found.if_missing, found.replace) == (True, False)


def test_the_condition_ends_where_a_clause_begins_and_nowhere_else() -> None:
    text = "key = 1 AND (options (x) OR schedule IS NULL) AND trigger = 'TARGET'"
    for after in ("TARGET '/x'", "KEY (id)", "OPTIONS (a = 1)", "TRIGGER ON UPDATE", "SCHEDULE EVERY 1 HOUR", ""):
        before = "" if after.startswith("KEY") else "KEY (id)"
        assert parse_one(f"CREATE FULLTEXT INDEX i ON t (a) {before} WHERE {text} {after}").where == text


@pytest.mark.parametrize(
    ("statement", "place", "message"),
    [
        ("CREATE INDEX i ON t (a)", "f.sql:1:8", "FULLTEXT or VECTOR or SEARCH is expected here, and not 'INDEX'"),
        ("CREATE FULLTEXT i ON t (a)", "f.sql:1:17", "INDEX is expected here, and not 'i'"),
        ("CREATE FULLTEXT INDEX i ON t\n(a)", "f.sql:2:4", "names no key"),
        ("CREATE FULLTEXT INDEX i ON t () KEY (id)", "f.sql:1:31", "')' is not a column's name"),
        ("CREATE FULLTEXT INDEX i ON t (a b) KEY (id)", "f.sql:1:33", ", or ) is expected here, and not 'b'"),
        ("CREATE FULLTEXT INDEX i ON t (a BOOST 0) KEY (id)", "f.sql:1:39", "'0' is not a number above 0"),
        ("CREATE FULLTEXT INDEX i ON t (a BOOST -1) KEY (id)", "f.sql:1:39", "'-' is not a number above 0"),
        ("CREATE FULLTEXT INDEX i ON t (`a,b`) KEY (id)", "f.sql:1:31", "'a,b' has a , or ^ in its name"),
        ("CREATE VECTOR INDEX i ON t (a, b) KEY (id)", "f.sql:1:28", "an index of vectors has one column"),
        ("CREATE VECTOR INDEX i ON t (a BOOST 2) KEY (id)", "f.sql:1:28", "an index of vectors has one column"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) KEY (b)", "f.sql:1:43", "KEY is said twice"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) TARGET ''", "f.sql:1:50", "is no place"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) TARGET x", "f.sql:1:50", "'x' is not a text"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) WHERE", "f.sql:1:48", "the statement ends where a condition"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) WHERE OPTIONS (a = 1)", "f.sql:1:49", "the condition is missing"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) OPTIONS (a = b)", "f.sql:1:56", "'b' is neither a text nor"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) OPTIONS (a = 1, A = 2)", "f.sql:1:59", "'a' is said twice"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) OPTIONS (a = 1234567890123)", "f.sql:1:56", "is neither a text"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) OPTIONS (columns = 'b')", "f.sql:1:30", "the columns are said"),
        ("CREATE FULLTEXT INDEX i ON t (a) KEY (id) USING lance", "f.sql:1:43", "'USING' is not expected here"),
        ("CREATE OR REPLACE FULLTEXT INDEX IF NOT EXISTS i ON t (a)", "f.sql:1:48", "contradict each other"),
        ("CREATE FULLTEXT INDEX i ON", "f.sql:1:27", "the statement ends where a table's name should follow"),
    ],
)
def test_a_faulty_statement_is_refused_with_its_place(statement: str, place: str, message: str) -> None:
    error = refused(statement)
    assert message in error.message
    assert error.field == place
    assert error.remedy


def test_no_statement_has_columns_without_end() -> None:
    many = ", ".join(f"c{number}" for number in range(COLUMNS_MAX + 1))
    assert "more than" in refused(f"CREATE FULLTEXT INDEX i ON t ({many}) KEY (id)").message


WORDS = st.sampled_from(
    (
        *("OR", "REPLACE", "FULLTEXT", "INDEX", "IF", "NOT", "EXISTS", "ON", "BOOST", "KEY", "TARGET", "WHERE"),
        *("OPTIONS", "SCHEDULE", "EVERY", "HOURS", "i", "t", "(", ")", ",", ".", "=", "2", "'x'", "`y`", ";"),
    )
)


@given(st.lists(WORDS, max_size=30))
def test_whatever_is_written_is_a_statement_or_refused_with_its_place(words: list[str]) -> None:
    for found in parse_all(" ".join(["CREATE", "FULLTEXT", "INDEX", *words])):
        if isinstance(found, InvalidRequest):
            assert found.field.startswith("f.sql:1:")
        elif isinstance(found, IndexStatement):
            assert found.key
            assert found.options


PIECES = ["'", '"', "`", "\\", "--", "\n", "/*", "*/", " ", "a", "r'", "12", ".", "ü", "(", ";", "''"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
CONTENTS = st.text(st.characters(codec="utf-8"), max_size=8)


def cut(text: str) -> list[tuple[TokenKind, str]]:
    return [(each.kind, each.text) for each in tokens_of(SqlSource(text, "x.sql"))]


@given(TEXTS)
def test_tokens_follow_each_other_and_only_blanks_and_comments_lie_between(text: str) -> None:
    try:
        tokens = list(tokens_of(SqlSource(text, "x.sql")))
    except InvalidRequest:
        return
    ends = [0, *(each.end for each in tokens)]
    for end, token in zip(ends, tokens, strict=False):
        assert end <= token.start < token.end <= len(text)
        assert cut(text[end : token.start]) == []
        assert cut(text[token.start : token.end]) == [(token.kind, token.text)]
    assert cut(text[ends[-1] :]) == []
    assert all(one.end <= other.start for one, other in pairwise(tokens))


@given(CONTENTS)
def test_what_is_quoted_says_what_was_put_in(content: str) -> None:
    name = content.replace("`", "``")
    assert cut(f"`{name}`") == [(TokenKind.QUOTED, content)]
    for quote in "'\"":
        escaped = content.replace("\\", "\\\\").replace(quote, f"\\{quote}")
        assert cut(f"x{quote}{escaped}{quote};") == [
            (TokenKind.WORD, "x"),
            (TokenKind.TEXT, content),
            (TokenKind.SIGN, ";"),
        ]


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("'it''s'", TokenKind.TEXT, "it's"),
        ('"a""b"', TokenKind.TEXT, 'a"b'),
        (r"r'\d+\'", TokenKind.TEXT, r"\d+\ "[:-1]),
        (r'R"\n"', TokenKind.TEXT, r"\n"),
        ("rows", TokenKind.WORD, "rows"),
        ("größe_2", TokenKind.WORD, "größe_2"),
        ("1.50", TokenKind.NUMBER, "1.50"),
        ("/* a /* b */ ' */x--'", TokenKind.WORD, "x"),
        ("-- ' /*\n`a b`", TokenKind.QUOTED, "a b"),
    ],
)
def test_a_token_is_as_spark_reads_it(text: str, kind: TokenKind, says: str) -> None:
    assert cut(text) == [(kind, says)]


@pytest.mark.parametrize(
    ("text", "place"),
    [("'a\nb", "1:1"), ("a\n /* /* */", "2:2"), ("x 'a\\'", "1:3"), ("\n\n`", "3:1"), ('"', "1:1")],
)
def test_what_does_not_end_is_refused_where_it_begins(text: str, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        cut(text)
    assert refused.value.field == f"x.sql:{place}"


@pytest.mark.parametrize(("offset", "place"), [(0, "v.sql:3:7"), (2, "v.sql:3:9"), (3, "v.sql:4:1"), (5, "v.sql:4:3")])
def test_a_part_of_a_file_knows_where_it_stands_there(offset: int, place: str) -> None:
    assert SqlSource("ab\ncd", "v.sql", line=3, column=7).place(offset) == place


def test_a_keyword_is_one_in_any_case_and_never_within_quotes() -> None:
    tokens = list(tokens_of(SqlSource("select `select` 'select' ;", "x.sql")))
    assert [each.says("SELECT", ";") for each in tokens] == [True, False, False, True]
