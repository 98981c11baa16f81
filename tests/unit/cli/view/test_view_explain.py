"""`iscp-admin view explain`: the tree that is shown, and whose it is."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from iscp.core.view_fields import ViewFields
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]
Kept = Callable[[], list[tuple[str, str, ViewFields]]]

SQL = "SELECT name, sum(total) FROM orders GROUP BY name"
QUERY = ("--sql", SQL, "--table", "orders=/lake/orders")


def test_operators_are_a_tree_with_reasons_and_remedies(run: Run, kept: Kept) -> None:
    shown = run("view", "explain", *QUERY)
    assert shown.exit_code == 0
    head, first, second, third, *rest = shown.stdout.splitlines()
    assert [*filter(None, map(str.strip, head.split("  ")))] == ["OPERATOR", "KEPT", "STATE NEEDED", "WHY", "REMEDY"]
    assert first.startswith("sum(total) by name")
    assert "one row for each group" in first
    assert second.startswith("  full outer join")
    assert second.rstrip().endswith("Join inner")
    assert third.startswith("    orders")
    assert "columns       name string, total decimal(20,2)" in rest
    assert "table orders  /lake/orders" in rest
    assert rest[-1] == "note: Sums of doubles are exact."
    assert kept() == []


def test_a_view_that_is_there_is_explained_by_its_name(run: Run) -> None:
    run("view", "create", "totals", "--target", "/x", *QUERY)
    for table in ((), ("--table", "/lake/orders")):
        explained = json.loads(run("view", "explain", "totals", *table, "-o", "json").stdout)
        assert explained["tables"] == {"orders": "/lake/orders"}
        assert [(each["depth"], each["upkeep"]) for each in explained["operators"]] == [
            (0, "state"),
            (1, "touched"),
            (2, "linear"),
        ]
    assert run("view", "explain", "totals", "--table", "/lake/others").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 1, "field: NAME"),
        (("none",), 1, "there is no view 'none'"),
        (("totals", "--sql", SQL), 2, "--sql cannot go with the NAME"),
        (("totals", "--refresh", "full"), 2, "--refresh cannot go with the NAME"),
        (("totals", "--table", "a", "--table", "b"), 2, "give --table once"),
        (("--sql", SQL), 1, "field: --table"),
        (("--sql", SQL, "--table", "orders"), 2, "NAME=URI"),
        (("--sql", SQL, "--table", "a=/b", "--table", "a=/c"), 2, "given twice"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    run: Run, service: FakeAdmin, arguments: tuple[str, ...], status: int, said: str
) -> None:
    refused = run("view", "explain", *arguments)
    assert refused.exit_code == status
    assert said in refused.stderr
    assert "explain" not in service.asked
