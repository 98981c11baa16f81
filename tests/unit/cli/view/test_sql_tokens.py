"""Any text is cut into tokens that cover it but for blanks and comments, or is refused where it does not end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cli.view.sql_tokens import SqlSource, TokenKind, tokens_of
from iscp.core.values.errors import InvalidRequest

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
