"""`iscp-admin view pause`, `resume`, `history`, `verify` and `logs`: what the commands of jobs do, by a view's name."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from iscp.model.api.api_requests import JobName, LogLine, LogPage, LogPlace, LogQuery
from iscp.model.job.start_rule import Comparison
from iscp.model.values.untrusted_values import LogLevel
from tests.fakes.admin import FakeAdmin, table_id_of
from tests.fakes.operators import FakeOperator

Run = Callable[..., Result]

ORDERS = "/lake/orders"
CREATE = ("view", "create", "totals", "--target", "/x/totals", "--sql", "SELECT 1 FROM t", "--table", f"t={ORDERS}")


@pytest.fixture(autouse=True)
def view(run: Run) -> None:
    assert run(*CREATE).exit_code == 0


def test_a_view_is_paused_and_resumed_by_its_name(run: Run, service: FakeAdmin) -> None:
    steps = (("pause", "is paused"), ("pause", "was paused already"), ("resume", "is resumed"))
    for verb, said in (*steps, ("resume", "is neither paused nor failing")):
        done = run("view", verb, "totals")
        assert (done.exit_code, done.stdout) == (0, f"the view totals {said}\n")
    assert json.loads(run("view", "pause", "totals", "-o", "json").stdout) == {"changed": True}
    assert service.status(JobName(ORDERS, "totals")).reason == "paused"


def test_what_a_view_has_done_and_how_it_compares_is_shown_as_of_its_job(run: Run, service: FakeAdmin) -> None:
    service.apply(ORDERS, "totals", 7)
    service.apply(ORDERS, "totals", 8)
    for verb in ("history", "verify"):
        for form in ("json", "wide"):
            of_view = run("view", verb, "totals", "-o", form)
            of_job = run("job", verb, ORDERS, "totals", "-o", form)
            assert (of_view.exit_code, of_view.stdout) == (0, of_job.stdout)
    (entry,) = json.loads(run("view", "history", "totals", "--limit", "1", "-o", "json").stdout)
    assert entry["to_version"] == 8


def test_a_view_that_differs_ends_the_comparison_with_4_unless_it_is_repaired(run: Run, service: FakeAdmin) -> None:
    service.comparisons["totals"] = Comparison(rows_source=10, rows_target=9, missing=1, ranges=1, ranges_differing=1)
    assert run("view", "verify", "totals").exit_code == 4
    repaired = run("view", "verify", "totals", "--repair", "-o", "json")
    assert (repaired.exit_code, json.loads(repaired.stdout)["repaired"]) == (0, True)


def test_lines_of_a_view_are_those_of_its_job(run: Run, operator: FakeOperator) -> None:
    line = LogLine(1, 1.0, json.dumps({"time": "12:00", "level": "info", "event": "refresh.done", "node": "n-1"}))
    operator.logs = [[LogPage("n-1", LogPlace(5, 1), lines=(line,))]]
    shown = run("view", "logs", "totals", "--tail", "7", "--since", "10m", "--level", "warning")
    assert (shown.exit_code, shown.stdout) == (0, "12:00 info    n-1 refresh.done\n")
    assert operator.jobs == [JobName(table_id_of(ORDERS), "totals", "default")]
    assert operator.queries == [(LogQuery(None, 600.0, 7, LogLevel.WARNING), {})]


@pytest.mark.parametrize("verb", ["pause", "resume", "history", "verify", "logs"])
def test_what_is_no_view_is_refused_and_of_several_the_table_is_to_be_named(run: Run, verb: str) -> None:
    run("job", "register", "--table", ORDERS, "--name", "copy", "--target", "/x/copy")
    refused = run("view", verb, "copy")
    assert refused.exit_code == 1
    assert "there is no view 'copy'" in refused.stderr
    run(*CREATE[:4], "/y/totals", *CREATE[5:7], "--table", "t=/lake/others")
    assert "each of /lake/orders, /lake/others" in run("view", verb, "totals").stderr
    assert run("view", verb, "totals", "--table", "/lake/others").exit_code == 0
