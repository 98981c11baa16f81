"""`iscp-admin view apply`: views on views, in their order; what is there already; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from iscp.core.spec.view_fields import ViewFields
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]
Kept = Callable[[], list[tuple[str, str, ViewFields]]]

CHAIN = """
CREATE MATERIALIZED VIEW top AS SELECT * FROM daily JOIN customers USING (id);
CREATE MATERIALIZED VIEW daily SCHEDULE EVERY 1 HOUR REFRESH POLICY INCREMENTAL STRICT
  AS SELECT id, sum(total) AS total FROM orders GROUP BY id;
"""
WHERE = ("--target-root", "/x", "--table", "orders=/lake/orders", "--table", "customers=sales.customers")


@pytest.fixture
def applied(run: Run) -> Run:
    def applied(text: str, *more: str) -> Result:
        return run("view", "apply", "-f", "-", *WHERE, *more, stdin=text)

    return applied


def test_a_view_on_a_new_view_is_registered_once_that_is_built(applied: Run, service: FakeAdmin, kept: Kept) -> None:
    service.absent.add("/x/daily")
    verbs: list[str] = []

    def build(verb: str) -> None:
        verbs.append(verb)
        if verb == "wait":
            service.absent.clear()
            service.apply("/lake/orders", "daily", 0)

    service.before = build
    dry = applied(CHAIN, "--dry-run")
    assert dry.stdout.splitlines()[:2] == [
        "create daily on /lake/orders",
        "create top on /x/daily (once built: daily)",
    ]
    assert kept() == []
    done = applied(CHAIN)
    assert done.exit_code == 0, done.output
    assert [verb for verb in verbs if verb in ("register", "wait")] == ["register", "wait", "register"]
    assert [(table, name, view.target) for table, name, view in kept()] == [
        ("/lake/orders", "daily", "/x/daily"),
        ("/x/daily", "top", "/x/top"),
    ]
    daily, top = (view for _, _, view in kept())
    assert (daily.refresh, daily.run) == ("strict", {"trigger": "periodic", "every": 3600.0})
    assert top.tables == {"daily": "/x/daily", "customers": "sales.customers"}


def test_applying_it_again_changes_nothing(applied: Run, kept: Kept) -> None:
    text = CHAIN.partition(";")[2]
    assert applied(text).exit_code == 0
    before = kept()
    again = applied(text, "-o", "json")
    assert json.loads(again.stdout)["counts"] == {"create": 0, "update": 0, "resync": 0, "unchanged": 1, "delete": 0}
    assert kept() == before


def test_a_view_that_is_not_built_in_time_ends_the_wait(applied: Run, service: FakeAdmin, kept: Kept) -> None:
    service.absent.add("/x/daily")
    late = applied(CHAIN, "--timeout", "10ms")
    assert late.exit_code == 3
    assert [name for _, name, _ in kept()] == ["daily"]


def test_a_view_may_read_one_that_is_registered(applied: Run, run: Run, kept: Kept) -> None:
    run("view", "create", "there", "--target", "/y/there", "--sql", "SELECT 1 FROM t", "--table", "t=/t")
    assert applied("CREATE MATERIALIZED VIEW v AS SELECT * FROM There").exit_code == 0
    assert ("/y/there", "v") in [(table, name) for table, name, _ in kept()]


FIRST = "CREATE MATERIALIZED VIEW v AS SELECT 1 AS n FROM orders"
OTHER = FIRST.replace("1 AS", "2 AS")


def test_another_query_is_refused_replaced_or_left_as_the_statement_says(applied: Run, kept: Kept) -> None:
    def query() -> str:
        return kept()[0][2].sql

    applied(FIRST)
    refused = applied(OTHER)
    assert (refused.exit_code, query()) == (1, "SELECT 1 AS n FROM orders")
    assert "stdin:1:1: spec changes what the target holds" in refused.stderr
    assert applied(OTHER.replace("VIEW v", "VIEW IF NOT EXISTS v")).exit_code == 0
    assert query() == "SELECT 1 AS n FROM orders"
    asked = applied(OTHER.replace("CREATE", "CREATE OR REPLACE"))
    assert asked.exit_code == 1
    assert "--yes" in asked.stderr
    assert query() == "SELECT 1 AS n FROM orders"
    assert applied(OTHER.replace("CREATE", "CREATE OR REPLACE"), "--yes").exit_code == 0
    assert query() == "SELECT 2 AS n FROM orders"
    assert applied(FIRST, "--resync").exit_code == 0
    assert query() == "SELECT 1 AS n FROM orders"


def test_the_view_stays_on_its_table_when_the_query_names_another_first(applied: Run, kept: Kept) -> None:
    applied("CREATE MATERIALIZED VIEW v AS SELECT * FROM orders JOIN customers USING (id)")
    turned = applied("CREATE MATERIALIZED VIEW v AS SELECT * FROM customers JOIN orders USING (id)", "--resync")
    assert turned.exit_code == 0, turned.output
    assert [table for table, _, _ in kept()] == ["/lake/orders"]
    gone = applied("CREATE MATERIALIZED VIEW v AS SELECT * FROM customers", "--resync")
    assert gone.exit_code == 1
    assert "iscp-admin view drop v" in gone.stderr


def test_what_has_no_effect_is_said(applied: Run) -> None:
    done = applied("CREATE MATERIALIZED VIEW v COMMENT 'x' AS SELECT * FROM orders")
    assert done.exit_code == 0
    assert done.stderr == "warning: stdin:1:1: of v not kept: COMMENT\n"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("", "stdin", "holds no view"),
        ("SELECT 1", "stdin:1:1", "is not supported; CREATE MATERIALIZED VIEW is"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM nowhere", "stdin:1:31", "--table nowhere="),
        ("CREATE MATERIALIZED VIEW v AS SELECT (1", "stdin:1:", "not SQL"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1", "stdin:1:31", "reads no table"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM v", "stdin:1:1", "circle: v → v"),
        (
            "CREATE MATERIALIZED VIEW a AS SELECT * FROM b;CREATE MATERIALIZED VIEW b AS SELECT * FROM a",
            "stdin:1:",
            "in a circle: ",
        ),
        (f"{FIRST};\n{FIRST}", "stdin:2:1", "is a view at stdin:1:1 already"),
        ("CREATE MATERIALIZED VIEW orders AS SELECT * FROM customers", "stdin:1:1", "given by --table"),
        ("CREATE MATERIALIZED VIEW `../v` AS SELECT * FROM orders", "stdin:1:1", "name of its target"),
    ],
)
def test_what_cannot_be_applied_is_refused_with_its_place(
    applied: Run, kept: Kept, text: str, place: str, said: str
) -> None:
    refused = applied(text)
    assert refused.exit_code == 1
    assert f"field: {place}" in refused.stderr
    assert said in refused.stderr
    assert kept() == []


def test_directories_are_searched_for_sql(run: Run, kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.sql").write_text(FIRST)
    (tmp_path / "b.sql").write_text(FIRST.replace("VIEW v", "VIEW w"))
    (tmp_path / "README.md").write_text("no view")
    assert run("view", "apply", "-f", str(tmp_path), *WHERE).exit_code == 0
    assert [name for _, name, _ in kept()] == ["v", "w"]
