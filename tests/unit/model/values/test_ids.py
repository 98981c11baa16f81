"""The order of ids, which the fences rely on.

Which nodes go together in a cluster, and in which order a process has seen etcd.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.values.ids import (
    TTL_RATIO_MAX,
    WIRE_FORMAT,
    JobKey,
    Moment,
    ShardId,
    TableEpoch,
    next_job_id,
    ttls_fit,
    understands,
)

TIMES_S = st.floats(0, 200_000_000_000, allow_nan=False)


@given(TIMES_S, st.lists(TIMES_S, max_size=20))
def test_later_ids_sort_after_earlier_ones_whatever_the_clock_does(first_s: float, steps_s: list[float]) -> None:
    ids = [next_job_id(first_s, "")]
    for now_s in steps_s:
        ids.append(next_job_id(now_s, ids[-1]))
    assert ids == sorted(set(ids))


def test_an_id_begins_with_the_time_so_that_a_log_recreated_goes_on_after_the_old_one() -> None:
    assert int(next_job_id(1_700_000_000.0, ""), 16) == 1_700_000_000_000
    old = next_job_id(1_700_000_000.0, "")
    assert next_job_id(1_700_000_000.001, "") > old


def test_ids_of_one_millisecond_and_of_a_clock_that_steps_back_follow_one_another() -> None:
    first = next_job_id(1_700_000_000.0, "")
    second = next_job_id(1_700_000_000.0, first)
    third = next_job_id(1_600_000_000.0, second)
    assert [int(each, 16) - int(first, 16) for each in (first, second, third)] == [0, 1, 2]


def test_ids_are_of_one_length_until_long_after_us() -> None:
    assert len(next_job_id(0.0, "")) == len(next_job_id(200_000_000_000.0, "")) == 12


def test_a_whole_table_is_called_like_it_and_a_part_by_its_range() -> None:
    assert str(ShardId("t")) == "t"
    assert str(ShardId("t", 6)) == "t/6"


def test_a_later_owners_dispatch_exceeds_any_earlier_one() -> None:
    assert TableEpoch(2, 0) > TableEpoch(1, 10**9) > TableEpoch(1, 10**9 - 1)


def test_a_key_distinguishes_accounts_tables_and_names() -> None:
    keys = {JobKey("a", "t", "n"), JobKey("b", "t", "n"), JobKey("a", "u", "n"), JobKey("a", "t", "m")}
    assert len(keys) == 4
    assert JobKey("a", "t", "n") in keys


TTLS = st.floats(0.001, 1e6)


@pytest.mark.parametrize(("other", "fits"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_releases_beside_each_other_go_together(other: int, fits: bool) -> None:
    assert understands(WIRE_FORMAT, WIRE_FORMAT + other) is fits
    assert understands(WIRE_FORMAT + other, WIRE_FORMAT) is fits


@given(TTLS, TTLS)
def test_leases_go_together_whichever_comes_first(one_s: float, other_s: float) -> None:
    assert ttls_fit(one_s, other_s) == ttls_fit(other_s, one_s)
    assert ttls_fit(one_s, one_s)
    assert ttls_fit(one_s, 0.0)  # a node of a release that does not say
    assert ttls_fit(0.0, one_s)
    assert ttls_fit(one_s, one_s * TTL_RATIO_MAX)
    assert not ttls_fit(one_s, one_s * TTL_RATIO_MAX * 1.01)


@pytest.mark.parametrize("ttl_s", [-1.0, -0.001])
def test_no_lease_lasts_less_than_no_time(ttl_s: float) -> None:
    assert not ttls_fit(ttl_s, 10.0)


def test_a_store_that_went_back_or_was_out_of_sight_is_later_than_before() -> None:
    seen = [
        Moment(revision=5),
        Moment(revision=6),
        Moment(restores=1, revision=2),
        Moment(restores=1, revision=2, breaks=1),
    ]
    seen += [Moment(restores=2)]
    assert all(one < other for one, other in pairwise(seen))
