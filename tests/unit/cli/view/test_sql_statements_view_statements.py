"""Statements in Databricks' syntax: what is read of them, and where one that cannot be taken over is faulty."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cli.view.sql_statements import SqlSource, ViewStatement, parse_statements
from iscp.model.values.errors import InvalidRequest


def parse_all(text: str) -> list[ViewStatement | InvalidRequest]:
    return list(parse_statements(SqlSource(text, "f.sql")))


def parse_one(text: str) -> ViewStatement:
    (found,) = parse_all(text)
    assert isinstance(found, ViewStatement), found
    return found


def test_a_file_of_several_statements_with_comments() -> None:
    first, second = parse_all(
        """-- daily; not a statement
CREATE OR REPLACE MATERIALIZED VIEW sales.daily
COMMENT 'it''s; daily' TBLPROPERTIES ('a' = 'b', 'c' = '(')
AS /* one /* within */ another; */ SELECT ';' AS x, `a;b` FROM t -- ends
;
create materialized view if not exists `my view` as select 1 from u;;
"""
    )
    assert isinstance(first, ViewStatement)
    assert isinstance(second, ViewStatement)
    assert (first.name, first.replace, first.if_missing) == ("sales.daily", True, False)
    assert first.sql == "SELECT ';' AS x, `a;b` FROM t -- ends"
    assert first.ignored == ("COMMENT", "TBLPROPERTIES")
    assert (first.place, first.query.place(0)) == ("f.sql:2:1", "f.sql:4:36")
    assert (second.name, second.replace, second.if_missing) == ("my view", False, True)


@pytest.mark.parametrize(
    ("clause", "run", "refresh"),
    [
        ("", {}, ""),
        ("SCHEDULE EVERY 2 HOURS", {"every": 7200.0}, ""),
        ("SCHEDULE REFRESH EVERY 1 DAY", {"every": 86400.0}, ""),
        ("schedule every 5 minutes", {"every": 300.0}, ""),
        ("SCHEDULE CRON '0 30 6 * * ?'", {"cron": "0 30 6 * * ?"}, ""),
        (
            "SCHEDULE REFRESH CRON '0 0 */2 ? * MON-FRI' AT TIME ZONE 'Europe/Berlin' REFRESH POLICY FULL",
            {"cron": "0 0 */2 ? * MON-FRI", "time_zone": "Europe/Berlin"},
            "full",
        ),
        ("TRIGGER ON UPDATE", {}, ""),
        ("TRIGGER ON UPDATE AT MOST EVERY INTERVAL 1 HOUR", {"every": 3600.0}, ""),
        ("TRIGGER ON UPDATE AT MOST EVERY INTERVAL '10' MINUTES", {"every": 600.0}, ""),
        ("REFRESH POLICY AUTO", {}, "auto"),
        ("REFRESH POLICY INCREMENTAL", {}, "incremental"),
        ("REFRESH POLICY INCREMENTAL STRICT", {}, "strict"),
        ("REFRESH POLICY FULL SCHEDULE EVERY 1 WEEK", {"every": 604800.0}, "full"),
    ],
)
def test_clauses_say_when_and_how_it_is_refreshed(clause: str, run: dict[str, Any], refresh: str) -> None:
    found = parse_one(f"CREATE MATERIALIZED VIEW v {clause} AS SELECT 1 FROM t")
    assert (found.run, found.refresh) == (run, refresh)


def test_named_columns_rename_the_result() -> None:
    found = parse_one("CREATE MATERIALIZED VIEW v (a COMMENT 'x', `b c`) AS SELECT 1, 2 FROM t -- last")
    assert found.sql == "SELECT * FROM (\nSELECT 1, 2 FROM t -- last\n) AS renamed(`a`, `b c`)"
    assert found.ignored == ("comments of columns",)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("SELECT 1", "f.sql:1:1", "the statement 'SELECT' is not supported; CREATE MATERIALIZED VIEW is, and CREATE"),
        ("CREATE VIEW v AS SELECT 1", "f.sql:1:8", "the statement 'CREATE VIEW' is not supported; CREATE MATERIALIZED"),
        (
            "create streaming table t AS SELECT 1",
            "f.sql:1:8",
            "the statement 'create streaming table' is not supported",
        ),
        (
            "CREATE OR REFRESH MATERIALIZED VIEW v AS SELECT 1",
            "f.sql:1:11",
            "REPLACE is expected here, and not 'REFRESH'",
        ),
        ("CREATE", "f.sql:1:7", "the statement ends where MATERIALIZED VIEW should follow"),
        ("CREATE MATERIALIZED VIEW v\n SCHEDULE CRON '0 * * *' AS SELECT 1", "f.sql:2:16", "has 4 fields"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE CRON '0 61 0 * * ?' AS SELECT 1", "f.sql:1:42", "at character 3"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE CRON '0 0 0 * * ?' AT TIME ZONE 'X' AS SELECT 1", "f.sql:1:69", "zone"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE CRON EVERY AS SELECT 1", "f.sql:1:42", "not a text"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE CRON '0 0 0 * * ?' AT NOON AS SELECT 1", "f.sql:1:59", "TIME"),
        (
            "CREATE MATERIALIZED VIEW v SCHEDULE CRON '0 0 0 * * ?' SCHEDULE EVERY 1 DAY AS SELECT 1",
            "f.sql:1:73",
            "twice",
        ),
        ("CREATE MATERIALIZED VIEW v PARTITIONED BY (a) AS SELECT 1", "f.sql:1:28", "partitioned"),
        ("CREATE MATERIALIZED VIEW v CLUSTER BY AUTO AS SELECT 1", "f.sql:1:28", "clustered"),
        ("CREATE MATERIALIZED VIEW v WITH ROW FILTER f ON (a) AS SELECT 1", "f.sql:1:28", "row filters"),
        ("CREATE MATERIALIZED VIEW v (a INT) AS SELECT 1", "f.sql:1:31", "no types"),
        ("CREATE MATERIALIZED VIEW v AS", "f.sql:1:30", "ends where the query"),
        ("CREATE MATERIALIZED VIEW v", "f.sql:1:27", "ends where AS"),
        ("CREATE MATERIALIZED VIEW 7 AS SELECT 1", "f.sql:1:26", "not a view's name"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE EVERY 0 HOURS AS SELECT 1", "f.sql:1:43", "must be 1 to"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE EVERY x HOURS AS SELECT 1", "f.sql:1:43", "whole number"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE EVERY 1 YEAR AS SELECT 1", "f.sql:1:45", "'YEAR'"),
        ("CREATE MATERIALIZED VIEW v REFRESH POLICY NEVER AS SELECT 1", "f.sql:1:43", "'NEVER'"),
        ("CREATE MATERIALIZED VIEW v COMMENT x AS SELECT 1", "f.sql:1:36", "not a text"),
        ("CREATE OR REPLACE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT 1", "f.sql:1:51", "contradict"),
        (
            "CREATE MATERIALIZED VIEW v REFRESH POLICY FULL REFRESH POLICY AUTO AS SELECT 1",
            "f.sql:1:63",
            "said twice",
        ),
    ],
)
def test_what_cannot_be_taken_over_is_refused_with_its_place(text: str, place: str, said: str) -> None:
    (found,) = parse_all(text)
    assert isinstance(found, InvalidRequest), found
    assert found.field == place
    assert said in found.message
    assert found.remedy


@pytest.mark.parametrize(("text", "place"), [("x\n 'abc", "f.sql:2:2"), ("/* /* */", "f.sql:1:1"), ("`a", "f.sql:1:1")])
def test_what_does_not_end_is_refused_where_it_begins(text: str, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_all(text)
    assert refused.value.field == place


VOCABULARY = """CREATE OR REPLACE MATERIALIZED VIEW IF NOT EXISTS v . ( ) , COMMENT 'x' SCHEDULE EVERY 1 HOUR TRIGGER ON
UPDATE AT MOST INTERVAL REFRESH POLICY FULL TBLPROPERTIES AS SELECT ; -- /* */ ' ` é"""
WORDS = st.sampled_from([*VOCABULARY.split(), "\n"])


@given(st.lists(WORDS, max_size=20).map(" ".join) | st.text(max_size=40))
def test_any_text_is_read_or_refused_with_its_place(text: str) -> None:
    try:
        found = parse_all(text)
    except InvalidRequest as error:
        found = [error]
    for each in found:
        assert not isinstance(each, InvalidRequest) or each.field.startswith("f.sql:")
