"""The tables of a query are found as Spark would, without Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from iscp.cli.view.project_import import tables_read
from iscp.cli.view.sql_statements import SqlSource
from iscp.model.values.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT * FROM t", ("t",)),
        ("SELECT * FROM b x JOIN a USING (id), c", ("b", "a", "c")),
        ("SELECT * FROM Orders UNION ALL SELECT * FROM orders", ("Orders",)),
        ("SELECT * FROM sales.orders, `my t`", ("sales.orders", "my t")),
        ("WITH c AS (SELECT * FROM t) SELECT * FROM c", ("t",)),
        ("WITH c AS (SELECT * FROM c), d AS (SELECT * FROM c) SELECT * FROM d", ("c",)),
        ("WITH a AS (SELECT 1) SELECT * FROM (WITH b AS (SELECT * FROM a) SELECT * FROM b, t)", ("t",)),
        (
            "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.i = t.i) AND x NOT IN (SELECT y FROM w)",
            ("t", "u", "w"),
        ),
        ("SELECT k FROM t LATERAL VIEW explode(a) z AS k", ("t",)),
        ("SELECT * FROM range(10)", ()),
        ("SELECT * FROM VALUES (1), (2) AS v(x)", ()),
    ],
)
def test_tables_are_named_in_the_order_of_the_text(text: str, tables: tuple[str, ...]) -> None:
    assert tables_read(SqlSource(text, "f")) == tables


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("SELECT (1", "f:3:"),
        ("DROP TABLE t", "f:3:5"),
        ("SELECT 1; SELECT 2", "f:3:5"),
        ("SELECT 'a", "f:3:5"),
        ("(" * 3_000, "f:3:5"),
    ],
)
def test_what_is_no_query_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tables_read(SqlSource(text, "f", 3, 5))
    assert refused.value.field.startswith(place)


def test_the_parser_is_not_loaded_at_the_start_of_the_program() -> None:
    program = "import sys, iscp.cli.iscp_admin; print('sqlglot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
