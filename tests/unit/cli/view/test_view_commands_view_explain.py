"""`iscp-admin view explain`: the tree that is shown, and whose it is."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from iscp.cli.view.view_commands import cost_words
from iscp.model.query_plan import ChangeCost, OperatorUpkeep
from iscp.model.spec.spec_parsing import ViewFields
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]
Kept = Callable[[], list[tuple[str, str, ViewFields]]]

SQL = "SELECT name, sum(total) FROM orders GROUP BY name"
QUERY = ("--sql", SQL, "--table", "orders=/lake/orders")


def test_operators_are_a_tree_with_reasons_and_remedies(run: Run, kept: Kept) -> None:
    shown = run("view", "explain", *QUERY)
    assert shown.exit_code == 0
    head, first, second, third, *rest = shown.stdout.splitlines()
    assert [*filter(None, map(str.strip, head.split("  ")))] == [
        *("OPERATOR", "MAINTAINED", "COST OF 1,000 ROWS", "STATE NEEDED", "WHY", "REMEDY")
    ]
    assert first.startswith("sum(total) by name")
    assert "one row for each group" in first
    assert second.startswith("  full outer join")
    assert second.rstrip().endswith("Join inner")
    assert third.startswith("    orders")
    assert "columns       name string, total decimal(20,2)" in rest
    assert "orders: groups of 1,000 rows" in first
    assert "orders: keys of 1,000 rows among 150,000 rows" in second
    assert "orders: 1,000 rows" in third
    assert "table orders  /lake/orders  150,000 rows, 2.5 MB" in rest
    assert "the result    /x/totals  an unknown number of rows, 400 bytes" in rest
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


def test_what_the_last_refreshes_took_is_shown_of_a_view_that_is_there(run: Run, service: FakeAdmin) -> None:
    run("view", "create", "totals", "--target", "/x", *QUERY)
    service.refreshed = {"data_type": "groups", "reason": "few rows", "rows_in": 12}
    service.apply("/lake/orders", "totals", 7)
    shown = run("view", "explain", "totals").stdout.split("last refreshes")[1]
    assert "groups" in shown
    assert "few rows" in shown
    (entry,) = json.loads(run("view", "explain", "totals", "-o", "json").stdout)["refreshes"]
    assert (entry["data_type"], entry["rows_in"]) == ("groups", 12)
    assert json.loads(run("view", "explain", *QUERY, "-o", "json").stdout)["refreshes"] == []


@pytest.mark.parametrize(
    ("upkeep", "cost", "words"),
    [
        (OperatorUpkeep.LINEAR, ChangeCost("t", 1_000, 0), "t: 1,000 rows"),
        (OperatorUpkeep.LINEAR, ChangeCost("t", 0, 70), "t: all of 70 rows"),
        (OperatorUpkeep.JOINED, ChangeCost("t", 1_000, 70), "t: 1,000 rows joined with 70 rows"),
        (OperatorUpkeep.WHOLE, ChangeCost("t", 1_000, -1), "t: all of an unknown number of rows"),
    ],
)
def test_costs_are_said_in_words(upkeep: OperatorUpkeep, cost: ChangeCost, words: str) -> None:
    assert cost_words(upkeep, cost) == words


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
