from __future__ import annotations

from iscp.core.metrics.chain_lag import UNKNOWN, chain_lags

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
