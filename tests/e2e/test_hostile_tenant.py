"""Whatever one account writes into its queries, specs and tables, another account's table goes on, and roots hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from iscp.model.values.errors import ErrorCode
from tests.e2e.tenants import Tenants
from tests.fakes.tenant_moves import TIMEOUT_S, moves

MOVES = 50
MOVES_BETWEEN = 10
"""Moves after which the neighbour commits, and all is checked."""

APPLIED_P95_S = 5.0
"""The valid requests of the hostile account are served too, on the same cores."""

LONG_S = 600.0


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    with Tenants(tmp_path_factory.mktemp("tenants")) as made:
        yield made


def play(tenants: Tenants, number: int, count: int) -> Counter[str]:
    """So many moves, which `number` alone decides; how they ended."""
    ended: Counter[str] = Counter()

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # a node that has ended takes no smaller example
    )
    @given(st.data())
    def at_random(data: st.DataObject) -> None:
        move = data.draw(moves())
        began_s = time.monotonic()
        error = move(tenants.evil, tenants.roots["evil"])
        assert time.monotonic() - began_s < TIMEOUT_S + 10.0
        assert tenants.node.alive(), tenants.cluster.node.log.read_text()[-4_000:]
        assert error is None or error.code is not ErrorCode.INTERNAL, error
        ended["done" if error is None else error.code.name] += 1
        if ended.total() % MOVES_BETWEEN == 0:
            tenants.neighbour.commits(2)
            tenants.assert_unharmed(APPLIED_P95_S)

    at_random()
    return ended


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_random_moves_harm_nobody(tenants: Tenants) -> None:
    ended = play(tenants, 0, MOVES)
    assert {"done", "INVALID_REQUEST"} <= set(ended), ended


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_random_moves_for_ten_minutes_harm_nobody(tenants: Tenants) -> None:
    end_s, number = time.monotonic() + LONG_S, 1
    while time.monotonic() < end_s:
        play(tenants, number, MOVES)
        number += 1
