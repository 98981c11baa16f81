"""An owner that hears of none of several nodes is cut off, and gives way. Of a single one it may be the fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.cluster.membership.membership import RESIGN_AGAIN_S
from iscp.model.protocol.events import (
    Deposed,
    Elected,
    FromNode,
    MembersChanged,
    OwnerEffect,
    Resign,
    RevokeLease,
    Tick,
)
from iscp.model.protocol.messages import Alive
from iscp.model.values.ids import NodeRecord
from tests.fakes.driven_owner import N1, N2, N3, Driver
from tests.fakes.loopback import TIMES

ALIVE = replace(TIMES, alive_s=1.0)


def resigned(effects: list[OwnerEffect]) -> bool:
    return any(isinstance(effect, Resign) for effect in effects)


def revoked(effects: list[OwnerEffect]) -> list[str]:
    return [effect.record.node_id for effect in effects if isinstance(effect, RevokeLease)]


def pass_s(driver: Driver, seconds: float, *heard: NodeRecord) -> list[OwnerEffect]:
    """Each second these nodes, and the owner's own, say that they are there."""
    found: list[OwnerEffect] = []
    for _ in range(int(seconds)):
        found += driver.step(Tick(), 1.0)
        for record in (N1, *heard):
            found += driver.step(FromNode(record.node_id, Alive(1, record.epoch)))
    return found


def synced(*members: NodeRecord) -> Driver:
    driver = Driver(*members, wanted=("a",), times=ALIVE)
    for record in members:
        driver.sync(record)
    return driver


def test_it_resigns_before_it_gives_up_on_any_of_them() -> None:
    effects = pass_s(synced(N1, N2, N3), ALIVE.sync_deadline_s)
    assert resigned(effects)
    assert not revoked(effects[: next(n for n, effect in enumerate(effects) if isinstance(effect, Resign))])


def test_also_where_none_of_them_has_ever_been_heard() -> None:
    driver = Driver(N1, N2, N3, wanted=("a",), times=ALIVE)
    driver.sync(N1)
    assert resigned(pass_s(driver, ALIVE.sync_deadline_s))


@pytest.mark.parametrize("members", [(N1, N2), (N1,)])
def test_beside_a_single_node_it_stays(members: tuple[NodeRecord, ...]) -> None:
    effects = pass_s(synced(*members), 4 * ALIVE.sync_deadline_s)
    assert not resigned(effects)
    assert ("n2" in revoked(effects)) == (N2 in members)


def test_one_that_hears_of_any_stays() -> None:
    effects = pass_s(synced(N1, N2, N3), 4 * ALIVE.sync_deadline_s, N2)
    assert not resigned(effects)
    assert "n3" in revoked(effects)


def test_nodes_that_have_just_come_may_not_have_been_heard_yet() -> None:
    driver = synced(N1)
    pass_s(driver, ALIVE.alone_s)
    effects = driver.step(MembersChanged((N1, N2, N3)))
    effects += pass_s(driver, ALIVE.alone_s - 1.0)
    assert not resigned(effects)
    assert resigned(pass_s(driver, 2.0))


def test_an_owner_that_stood_still_hears_first_what_has_come_meanwhile() -> None:
    driver = synced(N1, N2, N3)
    assert not resigned(driver.step(Tick(), 10 * ALIVE.alone_s))
    driver.step(FromNode("n2", Alive(1, N2.epoch)))
    assert not resigned(pass_s(driver, ALIVE.alone_s - 1.0, N2))


def test_where_no_node_reaches_another_one_of_them_stays_in_the_end() -> None:
    driver = synced(N1, N2, N3)
    assert resigned(pass_s(driver, ALIVE.sync_deadline_s))
    driver.step(Deposed())
    driver.step(Elected(2, 201, (N1, N2, N3), {}, 0.0))
    effects = pass_s(driver, 4 * ALIVE.sync_deadline_s)
    assert not resigned(effects)
    assert set(revoked(effects)) >= {"n2", "n3"}
    driver.step(Deposed())
    driver.now_s += RESIGN_AGAIN_S
    driver.step(Elected(3, 301, (N1, N2, N3), {}, 0.0))
    assert resigned(pass_s(driver, ALIVE.sync_deadline_s))
