"""Of many cursors those that are furthest behind are named, and the others are in sums."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from iscp.model.job.job_row import JobRow
from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import DeclaredMetric, MetricReading
from iscp.model.metrics.metric_readings import (
    UNKNOWN,
    CursorLag,
    JobLag,
    chain_lags,
    cursor_readings,
    figure_readings,
    lag_readings,
    reason_class,
    whole_jobs,
)
from iscp.views.refresh.refresh_choice import Policy, RefreshSample, Scans, Strategy, choose_strategy
from tests.fakes.owned_jobs import row

JOBS = 5_000


def kind_of(row: JobRow) -> str:
    return "replica"


def lags(count: int = JOBS) -> list[JobLag]:
    """The first lags least, and the last most."""
    return [JobLag(row(f"j-{n}", job_id=f"id-{n}"), float(n), 2 * n, 3.0 * n) for n in range(count)]


def readings(found: list[JobLag], named_max: int) -> dict[str, list[MetricReading]]:
    by_name: dict[str, list[MetricReading]] = {}
    for each in lag_readings(found, named_max, kind_of):
        by_name.setdefault(each.metric.name, []).append(each)
    return by_name


def only(found: dict[str, list[MetricReading]], metric: DeclaredMetric) -> float:
    (reading,) = found[metric.name]
    return reading.value


def test_those_that_lag_most_are_named_and_the_rest_is_in_sums() -> None:
    found = readings(lags(), 500)
    named = {each.attributes["iscp.job"]: each.value for each in found[metrics.JOB_LAG.name]}
    assert named == {f"j-{n}": float(n) for n in range(JOBS - 500, JOBS)}
    assert only(found, metrics.JOB_UNNAMED) == JOBS - 500
    assert only(found, metrics.JOB_LAG_MAX) == JOBS - 1
    assert sum(named.values()) + only(found, metrics.JOB_LAG_REST) == sum(range(JOBS))
    whole = sum(each.value for each in found[metrics.JOB_LAG_GLOBAL.name])
    assert whole + only(found, metrics.JOB_LAG_GLOBAL_REST) == 3 * sum(range(JOBS))
    versions = sum(each.value for each in found[metrics.JOB_VERSIONS.name])
    assert versions + only(found, metrics.JOB_VERSIONS_REST) == 2 * sum(range(JOBS))


def test_a_named_job_has_its_account_table_and_kind() -> None:
    (reading,) = readings(lags(1), 1)[metrics.JOB_LAG.name]
    key = row("j-0").key
    assert reading.attributes == {
        "iscp.account": key.account,
        "iscp.table": row("j-0").table_uri,
        "iscp.job": "j-0",
        "iscp.kind": "replica",
    }


def test_a_lag_that_is_not_known_is_no_number_and_counts_in_no_sum() -> None:
    unknown = [JobLag(row(f"j-{n}", job_id=f"id-{n}"), -1.0, 3) for n in range(2)]
    found = readings(unknown, 1)
    assert metrics.JOB_LAG.name not in found
    assert metrics.JOB_LAG_MAX.name not in found
    assert only(found, metrics.JOB_LAG_REST) == 0
    assert only(found, metrics.JOB_VERSIONS) == only(found, metrics.JOB_VERSIONS_REST) == 3


def test_nobody_is_named_where_none_may_be() -> None:
    found = readings(lags(3), 0)
    assert metrics.JOB_LAG.name not in found
    assert (only(found, metrics.JOB_LAG_REST), only(found, metrics.JOB_UNNAMED)) == (3.0, 3)


def test_a_job_on_a_split_table_lags_as_its_worst_range() -> None:
    whole = row("j", job_id="id")
    ranges = [whole._replace(job_id=f"id-{n}", origin="id", key=whole.key.of_range(n)) for n in (2, 3)]
    (found,) = whole_jobs([JobLag(ranges[0], 5.0, 1), JobLag(ranges[1], 2.0, 4)])
    assert (found.lag_s, found.versions) == (5.0, 4)


CHAIN = 5_000


def test_a_job_lags_by_all_that_lies_before_it() -> None:
    lags_s = {"copy": 5.0, "view": 2.0, "top": 1.0, "other": 4.0}
    inputs = {"view": ("copy", "other"), "top": ("view",)}
    assert chain_lags(lags_s, inputs) == {"copy": 5.0, "other": 4.0, "view": 7.0, "top": 8.0}


def test_what_is_not_known_on_the_way_is_not_known_at_its_end() -> None:
    found = chain_lags({"copy": UNKNOWN, "view": 2.0, "alone": 3.0}, {"view": ("copy",)})
    assert found == {"copy": UNKNOWN, "view": UNKNOWN, "alone": 3.0}


def test_a_table_that_no_known_job_makes_is_a_beginning() -> None:
    assert chain_lags({"view": 2.0}, {"view": ("gone",)}) == {"view": 2.0}


def test_a_circle_ends() -> None:
    found = chain_lags({"a": 1.0, "b": 2.0}, {"a": ("b",), "b": ("a",)})
    assert found.keys() == {"a", "b"}
    assert all(each <= 3.0 for each in found.values())
    assert chain_lags({"a": 1.0}, {"a": ("a",)}) == {"a": 1.0}


def test_a_long_chain_is_no_recursion() -> None:
    lags_s = {str(n): 1.0 for n in range(CHAIN)}
    inputs = {str(n): (str(n - 1),) for n in range(1, CHAIN)}
    assert chain_lags(lags_s, inputs)[str(CHAIN - 1)] == CHAIN
    assert chain_lags(dict(reversed(lags_s.items())), inputs)[str(CHAIN - 1)] == CHAIN


CURSORS = 5_000


def test_the_worst_are_named_and_the_rest_is_in_sums() -> None:
    lags = [CursorLag(row(f"j-{n % 7}"), f"reader-{n}", float(n)) for n in range(CURSORS)]
    found = list(cursor_readings(lags, 500))
    named = {each.attributes["iscp.feed.cursor"]: each.value for each in found if each.metric is metrics.FEED_LAG}
    assert named == {f"reader-{n}": float(n) for n in range(CURSORS - 500, CURSORS)}
    sums = {each.metric: each.value for each in found if each.metric is not metrics.FEED_LAG}
    assert sums[metrics.FEED_UNNAMED] == CURSORS - 500
    assert sums[metrics.FEED_COUNT] == CURSORS
    assert sums[metrics.FEED_LAG_REST] + sum(named.values()) == sum(range(CURSORS))


def test_a_named_cursor_has_the_job_that_writes_its_feed() -> None:
    key = row("feed").key
    (lag, *_) = cursor_readings([CursorLag(row("feed"), "mail", 3.5)], 1)
    assert (lag.metric, lag.value) == (metrics.FEED_LAG, 3.5)
    assert lag.attributes == {
        "iscp.account": key.account,
        "iscp.table": row("feed").table_uri,
        "iscp.job": "feed",
        "iscp.feed.cursor": "mail",
    }


def test_without_cursors_there_is_nothing() -> None:
    assert list(cursor_readings([], 500)) == []


FIGURES = {
    "rows": 9,
    "faults": 1,
    "key.segments": 2,
    "key.fresh_rows": 3,
    "text.body.segments": 4,
    "text.body.fresh_rows": 5,
    "dead_rows": 6,
    "versions": 7,
    "bytes": 800,
}


def test_the_figures_of_parts_are_added_up_and_others_are_left_out() -> None:
    found = {each.metric.name: each.value for each in figure_readings(row("words"), FIGURES)}
    assert found == {
        "iscp.index.rows": 9,
        "iscp.index.rows.faults": 1,
        "iscp.index.segments": 6,
        "iscp.index.rows.fresh": 8,
        "iscp.index.rows.dead": 6,
        "iscp.index.size": 800,
    }


def test_an_index_is_named_by_its_job() -> None:
    (reading,) = figure_readings(row("words"), {"rows": 1})
    assert reading.attributes == {"iscp.account": "a", "iscp.table": "/tables/t-1", "iscp.job": "words"}


def test_an_index_that_could_not_be_read_has_no_figures() -> None:
    assert [*figure_readings(row("words"), {})] == []


MEASURED = [
    *(RefreshSample(Strategy.FULL, 1_000_000, 4.0) for _ in range(3)),
    *(RefreshSample(Strategy.INCREMENTAL, 1_000, 0.2) for _ in range(3)),
]


@pytest.mark.parametrize(
    ("policy", "samples", "scans", "expected"),
    [
        (Policy.FULL, (), Scans(), "policy"),
        (Policy.INCREMENTAL, (), Scans(), "policy"),
        (Policy.AUTO, (), Scans(), "cost"),
        (Policy.AUTO, (), Scans(changes=10**10, full=10**9), "cost"),
        (Policy.AUTO, MEASURED, Scans(), "cost"),
    ],
)
def test_a_choice_has_its_class(policy: Policy, samples: Sequence[RefreshSample], scans: Scans, expected: str) -> None:
    choice = choose_strategy(policy, 1_000, 1_000_000, samples, scans)
    assert reason_class(choice.strategy, choice.reason) == expected


@pytest.mark.parametrize(
    ("strategy", "reason", "expected"),
    [
        ("full", "the first build", "first"),
        ("full", "the first build, on one node: it has no key", "first"),
        ("groups", "few rows of a view of groups have changed", "small"),
        ("joins", "few rows of a view of joined tables have changed", "small"),
        ("full", "changes took 2.1 s, as long as a full one, and were given up", "abandoned"),
        ("unchanged", "50.00% of the bytes have changed", "unchanged"),
        ("full", "versions 3 to 5 of orders were cleaned away", "forced"),
        ("full", "", "forced"),
    ],
)
def test_each_other_reason_has_its_class_and_what_is_not_known_was_forced(
    strategy: str, reason: str, expected: str
) -> None:
    assert reason_class(strategy, reason) == expected
