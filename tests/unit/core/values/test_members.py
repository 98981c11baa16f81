"""Which nodes go together in a cluster, and in which order a process has seen etcd."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.values.members import TTL_RATIO_MAX, WIRE_FORMAT, Moment, ttls_fit, understands

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
