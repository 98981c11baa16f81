"""What `iscp run` shows of each job, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from iscp.cli.run.run_output import (
    NAME_WIDTH_MAX,
    RunLines,
    RunObjects,
    WatchLines,
    name_width,
    outcome_words,
    show_forecasts,
    show_summary,
)
from iscp.model.run.run_plan import Forecast, JobForecast, ResultState, RunResult
from iscp.model.values.errors import ErrorCode
from tests.fakes.local_runs import Local

CURRENT = RunResult("a", "acc", "replica", "/t", "/a", ResultState.CURRENT, from_version=4, to_version=4)
UPDATED = replace(
    CURRENT, state=ResultState.UPDATED, strategy="tail", from_version=3, rows=12_345, seconds=1.5, iterations=1
)
FAILED = replace(CURRENT, state=ResultState.FAILED, error_code=int(ErrorCode.CONFLICT), error="another one was first")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (CURRENT, "version 4"),
        (UPDATED, "tail, 12,345 rows in 1.50 s, version 3 → 4"),
        (replace(UPDATED, from_version=-1), "tail, 12,345 rows in 1.50 s, version → 4"),
        (replace(UPDATED, reason="the first build"), "tail, 12,345 rows in 1.50 s, version 3 → 4 (the first build)"),
        (replace(UPDATED, dead_letters=2), "tail, 12,345 rows in 1.50 s, version 3 → 4; 2 dead letters"),
        (replace(CURRENT, warning="void columns"), "version 4; warning: void columns"),
        (FAILED, "another one was first"),
    ],
)
def test_what_is_said_of_a_job_that_has_ended(result: RunResult, words: str) -> None:
    assert outcome_words(result) == words


def test_lines_say_which_of_how_many_and_stand_below_each_other(
    local: Local, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = RunLines(local.requested(local.request("a"), local.request("longer"), local.request("left_out")), [0, 1])
    lines.begin(0)  # said on a terminal only
    lines.end(1, replace(FAILED, name="longer"))
    lines.end(0, CURRENT)
    assert capsys.readouterr().out.splitlines() == [
        "2 of 2  longer  failed   another one was first",
        "1 of 2  a       current  version 4",
    ]


def test_a_line_shows_no_control_characters_of_an_error(local: Local, capsys: pytest.CaptureFixture[str]) -> None:
    lines = RunLines(local.requested(local.request("a")), [0])
    lines.end(0, replace(FAILED, error="bad\x1b[31m name"))
    assert "\x1b" not in capsys.readouterr().out


def test_a_line_of_a_watch_has_the_time_of_the_day(local: Local, capsys: pytest.CaptureFixture[str]) -> None:
    WatchLines(local.requested(local.request("a")), [0]).end(0, UPDATED)
    at, _, said = capsys.readouterr().out.partition("  ")
    assert [len(each) for each in at.split(":")] == [2, 2, 2]
    assert said == "a  updated  tail, 12,345 rows in 1.50 s, version 3 → 4\n"


def test_programs_get_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for result in (UPDATED, FAILED):
        RunObjects().end(0, result)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["name"], first["state"], first["rows"]) == ("a", "updated", 12_345)
    assert (first["spark"], first["started_spark"]) == (None, False)
    assert (second["state"], second["error_code"]) == ("failed", ErrorCode.CONFLICT)


def test_a_summary_counts_states_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    show_summary([FAILED, CURRENT, UPDATED, CURRENT], 1.26)
    assert capsys.readouterr().out == "1 updated, 2 current, 1 failed in 1.3 s\n"


def test_a_summary_says_which_job_spark_was_started_for_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    first = replace(UPDATED, kind="view", name="totals", spark="all rows are computed", started_spark=True)
    show_summary([replace(UPDATED, spark="a filter"), first, CURRENT], 6.0)
    said, _ = capsys.readouterr().out.splitlines()
    assert said == 'Spark was started for view "totals": all rows are computed'
    show_summary([first, replace(first, name="others")], 6.0)
    said, _ = capsys.readouterr().out.splitlines()
    assert said == 'Spark was started for view "totals", view "others": all rows are computed'


def test_a_watch_says_it_after_the_line_of_the_job(local: Local, capsys: pytest.CaptureFixture[str]) -> None:
    lines = WatchLines(local.requested(local.request("a")), [0])
    lines.end(0, replace(UPDATED, spark="a filter", started_spark=True))
    _, said = capsys.readouterr().out.splitlines()
    assert said == 'Spark was started for replica "a": a filter'


def test_a_forecast_says_that_spark_will_be_needed(capsys: pytest.CaptureFixture[str]) -> None:
    show_forecasts([JobForecast("a", "acc", "/t", "/a", Forecast.CREATE, "nothing is there", {}, "all rows")], "text")
    assert capsys.readouterr().out.splitlines()[0] == "a  create     nothing is there; needs Spark"


def test_forecasts_are_lines_with_a_count_or_objects(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        JobForecast("a", "acc", "/t", "/a", Forecast.UPDATE, "/t: 1 → 2", {"/t": (1, 2)}),
        JobForecast("b", "acc", "/a", "/b", Forecast.CURRENT, "no table has changed", {}),
    ]
    show_forecasts(found, "text")
    said = capsys.readouterr().out
    assert "a  update" in said
    assert said.endswith("would be: 1 update, 1 current\n")
    show_forecasts(found, "json")
    first, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["versions"] == {"/t": {"applied": 1, "newest": 2}}


def test_the_column_of_names_is_bounded() -> None:
    assert name_width([]) == 0
    assert name_width(["abc", "a" * 500]) == NAME_WIDTH_MAX
