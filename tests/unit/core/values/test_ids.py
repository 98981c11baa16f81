"""The order of ids, which the fences rely on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iscp.core.values.ids import JobKey, ShardId, TableEpoch, next_job_id

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
