"""How long and deep SQL may be is found in one pass, as Spark reads texts and comments."""

from __future__ import annotations

import time

import pytest

from iscp.core.sql.sql_bounds import SQL_CHARACTERS_MAX, SQL_NESTING_MAX, nesting_of, refuse_unbounded
from iscp.core.values.errors import InvalidRequest

DEPTHS = {
    "SELECT a FROM t": 0,
    "SELECT f(g([1, {2}])) FROM (SELECT 1)": 4,
    "'(((' ((": 2,
    r"r'\' (( '": 2,
    r"'\' ((": 0,
    "bar'(('": 0,
    '"((" (': 1,
    "'a''((b' (": 1,
    "`((`(": 1,
    "-- ((\n(": 1,
    "-- \\\n((( \n(": 1,
    "/* ( /* */ (( */ (": 1,
    "/* ((": 0,
    "))) (": 1,
}


@pytest.mark.parametrize("sql", DEPTHS)
def test_only_levels_outside_of_texts_and_comments_count(sql: str) -> None:
    assert nesting_of(sql) == DEPTHS[sql]


def test_what_is_too_deep_or_too_long_is_refused_with_its_field() -> None:
    refuse_unbounded("(" * SQL_NESTING_MAX + ")" * SQL_NESTING_MAX, "x.sql")
    refuse_unbounded("x" * SQL_CHARACTERS_MAX, "x.sql")
    for sql in ("(" * (SQL_NESTING_MAX + 1), "[" * SQL_NESTING_MAX + "(", "x" * (SQL_CHARACTERS_MAX + 1)):
        with pytest.raises(InvalidRequest) as refused:
            refuse_unbounded(sql, "x.sql")
        assert refused.value.field == "x.sql"
        assert refused.value.remedy


@pytest.mark.parametrize("piece", ["'\\", "'", "/*", "(", "`", "--\\\n", "r'", "/*'*/", '"', "x'"])
def test_the_pass_takes_no_longer_than_the_text_is_long(piece: str) -> None:
    sql = (piece * SQL_CHARACTERS_MAX)[:SQL_CHARACTERS_MAX]
    began_s = time.process_time()
    nesting_of(sql)
    assert time.process_time() - began_s < 1.0
