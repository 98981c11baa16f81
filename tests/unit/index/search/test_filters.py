"""Tests what a filter may be, and what Lance is given for it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from iscp.index.lance.lance_access import FALSE, TRUE
from iscp.index.search.filters import COMPARISONS_MAX, lance_filter
from iscp.model.values.errors import InvalidRequest

SCHEMA = pa.schema(
    [
        ("a", pa.int32()),
        ("Name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("x", pa.float64()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("dot.ted", pa.int32()),
        ("_key", pa.string()),
    ]
)
STORED = [name for name in SCHEMA.names if name != "_key"]


@pytest.mark.parametrize(
    ("condition", "made"),
    [
        ("a = 1", "`a` = 1"),
        ("NAME = 'x'", "`Name` = 'x'"),
        ("name = 'it\\'s'", "`Name` = 'it''s'"),
        ("NOT (a = 1 AND flag)", "(`a` <> 1 OR `flag` IS FALSE)"),
        ("a > 1.5", "`a` > 1"),
        ("a < 1.5", "`a` < 2"),
        ("a = 1.5", FALSE),
        ("a <> 1.5", "`a` IS NOT NULL"),
        ("a > 99999999999", FALSE),
        ("a = NULL OR NOT a = NULL", FALSE),
        ("a NOT IN (1, NULL)", FALSE),
        ("a IN (1, 2, NULL)", "`a` IN (1, 2)"),
        ("price > 1.005", "`price` > CAST('1.00' AS DECIMAL(10,2))"),
        ("at >= DATE '2026-01-01'", "`at` >= CAST('2026-01-01T00:00:00.000000Z' AS TIMESTAMP)"),
        ("raw IS NOT NULL", "`raw` IS NOT NULL"),
        ("TRUE OR a = 1", TRUE),
        ("a = 1 -- a comment", "`a` = 1"),
    ],
)
def test_a_condition_becomes_lances(condition: str, made: str) -> None:
    assert lance_filter(condition, SCHEMA, STORED) == made


@pytest.mark.parametrize(
    ("condition", "fault"),
    [
        ("", "not one condition"),
        ("a = 1; a = 2", "not one condition"),
        ("a = 1 OR", "does not parse"),
        ("a = 1) OR (1 = 1", "does not parse"),
        ("a", "not TRUE or FALSE"),
        ("1 = 1", "where a column is to be"),
        ("a + 1 = 2", "cannot have"),
        ("lower(name) = 'x'", "cannot have"),
        ("a = (SELECT 1)", "cannot have"),
        ("EXISTS (SELECT 1)", "cannot have"),
        ("a IN (SELECT 1)", "cannot have"),
        ("name LIKE 'x' ESCAPE '/'", "cannot have"),
        ("name LIKE ANY ('x')", "cannot have"),
        ("name ILIKE 'x'", "cannot have"),
        ("name RLIKE 'x'", "cannot have"),
        ("name LIKE 'a\\\\b'", "pattern"),
        ("a = :x", "cannot have"),
        ("a[0] = 1", "cannot have"),
        ("raw = X'ab'", "cannot have"),
        ("name = r'x'", "cannot have"),
        ("CASE WHEN a = 1 THEN TRUE END", "cannot have"),
        ("t.a = 1", "does not store"),
        ("_key = '1'", "does not store"),
        ("`dot.ted` = 1", "does not store"),
        ("CAST(a AS DATE) = DATE '2026-01-01'", "where a column is to be"),
        ("a = CAST(name AS INT)", "no value"),
        ("a = 'x'", "whole number"),
        ("name = 1", "a text"),
        ("raw = 'x'", "nothing to a filter"),
        ("a = name", "another type"),
        ("price = 1e2", "double"),
        ("x = 1e400", "no double"),
        ("a = " + "9" * 39, "digits"),
        ("name = 'a''b'", "twice"),
        ("name = '\\0'", "at character 9"),
        ("day = '2026-02-30'", "as a date"),
        ("at = '2026-01-01 25:00:00'", "as a time"),
        ("local = TIMESTAMP '2026-01-01'", "TIMESTAMP_NTZ"),
        ("a = - 'x'", "sign"),
        ("price = CAST(1.005 AS DECIMAL(10,2))", "which is no"),
        ("(" * 41 + "a = 1" + ")" * 41, "nested too deeply"),
        ("NOT " * 3_000 + "a = 1", "nested too deeply"),
        (" OR ".join(["a = 1"] * (COMPARISONS_MAX + 1)), "more than"),
        (f"a IN ({','.join(map(str, range(COMPARISONS_MAX + 1)))})", "more than"),
        ("a = 1 " * 5_000, "characters"),
    ],
)
def test_what_is_no_filter_is_refused_by_name(condition: str, fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault) as refused:
        lance_filter(condition, SCHEMA, STORED)
    assert refused.value.field == "filter"
    assert refused.value.remedy


def test_a_long_chain_is_a_flat_tree() -> None:
    made = lance_filter(" OR ".join(f"a = {number}" for number in range(COMPARISONS_MAX)), SCHEMA, STORED)
    deepest = depth = 0
    for sign in made:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        deepest = max(deepest, depth)
    assert deepest <= 10
