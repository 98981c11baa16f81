"""`iscp-admin view create`, `list`, `show`, `drop`, `wait` and `refresh`: views are found by their names alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from iscp.model.spec.spec_parsing import ViewFields
from iscp.model.values.watermark import SourceMark, Watermark
from tests.fakes.admin import MISSING, FakeAdmin

Run = Callable[..., Result]
Kept = Callable[[], list[tuple[str, str, ViewFields]]]

SQL = "SELECT c.name, sum(o.total) AS total FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.name"
TABLES = ("--table", "orders=/lake/orders", "--table", "customers=sales.customers")
CREATE = ("view", "create", "totals", "--target", "/x/totals", "--sql", SQL, *TABLES)


def test_a_view_is_a_job_on_the_first_of_its_tables(run: Run, kept: Kept) -> None:
    created = run(*CREATE, "--refresh", "strict", "--every", "10m", "--target-lag", "30s")
    assert (created.exit_code, created.stdout) == (0, "totals on /lake/orders: created\n")
    ((table, name, view),) = kept()
    assert (table, name, view.sql, view.target, view.refresh) == ("/lake/orders", "totals", SQL, "/x/totals", "strict")
    assert list(view.tables.items()) == [("orders", "/lake/orders"), ("customers", "sales.customers")]
    assert view.run == {"trigger": "periodic", "every": 600.0, "target_lag": 30.0}


def test_a_target_may_be_without_deletion_vectors(run: Run, kept: Kept) -> None:
    run(*CREATE, "--no-deletion-vectors")
    ((_, _, view),) = kept()
    assert not view.deletion_vectors


def test_a_view_may_hold_its_tables_which_is_shown(run: Run, kept: Kept) -> None:
    run(*CREATE, "--hold", "7d")
    ((_, _, view),) = kept()
    assert view.hold_s == 7 * 86_400
    assert "tables keep what was removed for" in " ".join(run("view", "show", "totals").stdout.split())


def test_a_view_may_wait_for_tables_that_are_behind_which_is_shown(run: Run, kept: Kept) -> None:
    run(*CREATE, "--waits-for", "1m")
    ((_, _, view),) = kept()
    assert view.waits_for_s == 60.0
    shown = " ".join(run("view", "show", "totals").stdout.split())
    assert "waits for tables that are behind, at most 60.0 s" in shown


def test_a_view_may_be_refreshed_at_times_by_cron(run: Run, kept: Kept) -> None:
    run(*CREATE, "--cron", "0 30 6 * * ?", "--time-zone", "Europe/Berlin")
    ((_, _, view),) = kept()
    assert view.run == {"trigger": "periodic", "cron": "0 30 6 * * ?", "time_zone": "Europe/Berlin"}
    for shown in (run("view", "show", "totals").stdout, run("view", "list", "-o", "wide").stdout):
        assert "cron 0 30 6 * * ? in Europe/Berlin" in " ".join(shown.split())


def test_a_spec_holds_no_defaults(run: Run, service: FakeAdmin) -> None:
    run(*CREATE, "--refresh", "auto")
    (job,) = json.loads(run("job", "list", "-o", "json").stdout)
    assert job["spec"] == {
        "iteration": {
            "consumer": {
                "kind": "view",
                "target": "/x/totals",
                "options": {"sql": SQL, "tables": {"orders": "/lake/orders", "customers": "sales.customers"}},
            }
        }
    }


def test_creating_it_again_changes_nothing_and_another_of_its_name_is_refused(run: Run, kept: Kept) -> None:
    run(*CREATE)
    before = kept()
    again = run(*CREATE, "-o", "json")
    assert (again.exit_code, json.loads(again.stdout)["created"]) == (0, False)
    other = run(*CREATE[:-1], "customers=sales.others")
    assert other.exit_code == 1
    assert "totals on /lake/orders exists already" in other.stderr
    assert "sales.others" in other.stderr
    assert kept() == before


def test_the_query_may_be_in_a_file(run: Run, kept: Kept, tmp_path: Path) -> None:
    file = tmp_path / "totals.sql"
    file.write_text(f"\n{SQL};\n")
    assert run("view", "create", "a", "--target", "/x/a", "--sql-file", str(file), *TABLES).exit_code == 0
    piped = run("view", "create", "b", "--target", "/x/b", "--sql-file", "-", *TABLES, stdin=SQL)
    assert piped.exit_code == 0
    assert [view.sql for _, _, view in kept()] == [SQL, SQL]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--target", "/x", *TABLES), 1, "field: --sql"),
        (("--target", "/x", "--sql", " ; ", *TABLES), 1, "field: --sql"),
        (("--target", "/x", "--sql", SQL), 1, "field: --table"),
        (("--sql", SQL, *TABLES), 2, "--target"),
        (("--target", "/x", "--sql", SQL, "--sql-file", "f", *TABLES), 2, "--sql and --sql-file"),
        (("--target", "/x", "--sql-file", "nothing/here", *TABLES), 1, "field: --sql-file"),
        (("--target", "/x", "--sql", SQL, "--table", "orders"), 2, "NAME=URI"),
        (("--target", "/x", "--sql", SQL, "--table", "a=/b", "--table", "a=/c"), 2, "given twice"),
        (("--target", "/x", "--sql", SQL, "--table", f"a={MISSING}/t"), 1, "field: --table"),
    ],
)
def test_what_cannot_be_created_is_refused(
    run: Run, kept: Kept, arguments: tuple[str, ...], status: int, said: str
) -> None:
    refused = run("view", "create", "totals", *arguments)
    assert refused.exit_code == status
    assert said in refused.stderr
    assert kept() == []


def test_views_alone_are_listed_and_shown(run: Run) -> None:
    run("job", "register", "--table", "/lake/orders", "--name", "copy", "--target", "/x/copy")
    run(*CREATE)
    listed = run("view", "list")
    assert listed.exit_code == 0
    assert "totals" in listed.stdout
    assert "orders=/lake/orders" in listed.stdout
    assert "copy" not in listed.stdout
    assert [job["name"] for job in json.loads(run("view", "list", "-o", "json").stdout)] == ["totals"]
    shown = run("view", "show", "totals").stdout
    assert SQL in shown
    assert "sales.customers" in shown
    assert json.loads(run("view", "show", "totals", "-o", "json").stdout)["name"] == "totals"
    assert run("view", "show", "copy").exit_code == 1


def test_a_view_shows_how_and_why_it_was_refreshed_and_other_jobs_have_no_such_columns(
    run: Run, service: FakeAdmin
) -> None:
    run(*CREATE)
    assert "last refreshes" not in run("view", "show", "totals").stdout
    parts = {"plan": 0.5, "rows": 1.25}
    service.refreshed = {"data_type": "full", "reason": "30% of the bytes", "rows_in": 4_000, "parts_s": parts}
    service.apply("/lake/orders", "totals", 7)
    shown = run("view", "show", "totals").stdout.split("last refreshes")[1]
    for word in ("full", "4000", "rows 1.25 s, plan 0.50 s", "30% of the bytes", "WHY"):
        assert word in shown
    (entry,) = json.loads(run("view", "show", "totals", "-o", "json").stdout)["refreshes"]
    assert (entry["reason"], entry["rows_in"], entry["parts_s"]) == ("30% of the bytes", 4_000, parts)
    assert "WHY" in run("job", "history", "/lake/orders", "totals").stdout
    service.refreshed = {}
    run("job", "register", "--table", "/lake/orders", "--name", "copy", "--target", "/x/copy", "--key", "id")
    service.apply("/lake/orders", "copy", 7)
    assert "WHY" not in run("job", "history", "/lake/orders", "copy").stdout


def test_of_several_of_one_name_the_table_is_to_be_named(run: Run, kept: Kept) -> None:
    for table in ("/lake/a", "/lake/b"):
        run("view", "create", "v", "--target", f"/x{table}", "--sql", "SELECT 1 FROM t", "--table", f"t={table}")
    refused = run("view", "drop", "v")
    assert refused.exit_code == 1
    assert "each of /lake/a, /lake/b" in refused.stderr
    assert "field: --table" in refused.stderr
    refused = run("view", "drop", "v", "--table", "/lake/a", "--delete-target", stdin="n\n")
    assert refused.exit_code == 1
    assert "with its target /x/lake/a, and what is kept beside it? [y/N]" in refused.stderr
    dropped = run("view", "drop", "v", "--table", "/lake/a").stdout
    assert dropped.startswith("deleted; /x/lake/a stays as it is, and so does /x/lake/a_view_state_2")
    assert [table for table, _, _ in kept()] == ["/lake/b"]
    gone = run("view", "drop", "v", "--delete-target", "--yes", "-o", "json")
    assert json.loads(gone.stdout) == {"deleting": True}


@pytest.mark.parametrize("verb", ["show", "drop", "wait", "refresh"])
@pytest.mark.parametrize("name", ["none", "*", ""])
def test_a_view_that_is_not_there_is_said_to_be_missing(run: Run, kept: Kept, verb: str, name: str) -> None:
    run(*CREATE)
    refused = run("view", verb, name)
    assert refused.exit_code == 1
    assert "field: NAME" in refused.stderr
    assert "iscp-admin view list" in refused.stderr
    assert len(kept()) == 1


def test_a_wait_returns_once_the_version_is_applied(run: Run, service: FakeAdmin) -> None:
    run(*CREATE)
    assert run("view", "wait", "totals", "--timeout", "10ms").exit_code == 3
    service.apply("/lake/orders", "totals", 7)
    assert run("view", "wait", "totals").stdout == "at version 7\n"


def test_a_wait_takes_a_version_of_each_table_and_says_how_far_each_is(run: Run, service: FakeAdmin) -> None:
    run(*CREATE)
    read = {"/lake/orders": 7, "sales.customers": 3}
    marks = {uri: SourceMark("id", Watermark(version, 1.0)) for uri, version in read.items()}
    service.apply("/lake/orders", "totals", 7, sources=marks)
    waited = run("view", "wait", "totals", "--version", "orders=7", "--version", "sales.customers=3")
    assert (waited.exit_code, waited.stdout) == (0, "at version 7 of orders, 3 of customers\n")
    assert service.versions_wanted == {"orders": 7, "sales.customers": 3}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("7",), "'7' is not TABLE=VERSION"),
        (("=7",), "is not TABLE=VERSION"),
        (("orders=x",), "'x'"),
        (("orders=-1",), "-1"),
        (("orders=1", "orders=2"), "'orders' is given twice: 1 and 2"),
    ],
)
def test_a_version_is_said_of_one_table_and_once(run: Run, given: tuple[str, ...], said: str) -> None:
    run(*CREATE)
    refused = run("view", "wait", "totals", *(each for version in given for each in ("--version", version)))
    assert refused.exit_code == 2
    assert said in refused.stderr


def test_a_refresh_has_all_tables_probed_and_a_full_one_rebuilds(run: Run, service: FakeAdmin) -> None:
    run(*CREATE)
    asked = run("view", "refresh", "totals", "-o", "json")
    assert json.loads(asked.stdout) == {"tables": ["/lake/orders", "sales.customers"]}
    assert service.asked["notify"] == 2
    full = run("view", "refresh", "totals", "--full")
    assert "is being rebuilt as job-2" in full.stdout
    assert service.asked["resync"] == 1
