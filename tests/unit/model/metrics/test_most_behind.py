""" """

from __future__ import annotations

from iscp.model.job.job_row import JobRow
from iscp.model.metrics import job_metrics as metrics
from iscp.model.metrics.metric import DeclaredMetric, MetricReading
from iscp.model.metrics.most_behind import UNKNOWN, JobLag, chain_lags, lag_readings, whole_jobs
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
    named = {each.attributes["iscp.job"]: each.value for each in found[metrics.LAG.name]}
    assert named == {f"j-{n}": float(n) for n in range(JOBS - 500, JOBS)}
    assert only(found, metrics.UNNAMED) == JOBS - 500
    assert only(found, metrics.LAG_MAX) == JOBS - 1
    assert sum(named.values()) + only(found, metrics.LAG_REST) == sum(range(JOBS))
    whole = sum(each.value for each in found[metrics.LAG_GLOBAL.name])
    assert whole + only(found, metrics.LAG_GLOBAL_REST) == 3 * sum(range(JOBS))
    versions = sum(each.value for each in found[metrics.VERSIONS.name])
    assert versions + only(found, metrics.VERSIONS_REST) == 2 * sum(range(JOBS))


def test_a_named_job_has_its_account_table_and_kind() -> None:
    (reading,) = readings(lags(1), 1)[metrics.LAG.name]
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
    assert metrics.LAG.name not in found
    assert metrics.LAG_MAX.name not in found
    assert only(found, metrics.LAG_REST) == 0
    assert only(found, metrics.VERSIONS) == only(found, metrics.VERSIONS_REST) == 3


def test_nobody_is_named_where_none_may_be() -> None:
    found = readings(lags(3), 0)
    assert metrics.LAG.name not in found
    assert (only(found, metrics.LAG_REST), only(found, metrics.UNNAMED)) == (3.0, 3)


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
