"""Which connections give way: those without a call, the longest idle first, and only where there is little room."""

from __future__ import annotations

from iscp.client.channel.silent_calls import IDLE_LEAST_S, ConnectionPlaces
from iscp.system.http_exchange import Peer

MOST = 100


def peers(host: str, count: int, first: int = 0) -> list[Peer]:
    return [(host, port) for port in range(first, first + count)]


def from_many_hosts(count: int) -> list[Peer]:
    return [(f"10.0.0.{number}", 1) for number in range(count)]


def test_while_there_is_room_everybody_stays() -> None:
    places = ConnectionPlaces(MOST)
    there = from_many_hosts(75)
    assert places.surplus(there, 0.0) == []
    assert places.surplus(there, 1_000_000.0) == []


def test_beyond_those_that_are_idle_for_longest_go() -> None:
    places = ConnectionPlaces(MOST)
    there = from_many_hosts(80)
    assert places.surplus(there[:10], 0.0) == []
    assert places.surplus(there, 5.0) == there[:5]


def test_one_host_has_a_part_and_leaves_others_alone() -> None:
    places = ConnectionPlaces(MOST)
    of_one, others = peers("10.0.0.1", 40), peers("10.0.0.2", 20)
    assert places.surplus([*others, *of_one], 0.0) == []
    assert places.surplus([*others, *of_one], IDLE_LEAST_S) == of_one[:15]


def test_who_makes_a_call_stays_and_is_idle_from_its_end_on() -> None:
    places = ConnectionPlaces(MOST)
    there = from_many_hosts(76)
    for peer in there[:2]:
        places.begin_call(peer)
    places.begin_call(there[0])
    assert places.surplus(there, 0.0) == []
    assert places.surplus(there, 10.0) == [there[2]]
    places.end_call(there[0], 20.0)
    places.end_call(there[1], 20.0)
    assert places.surplus(there, 30.0) == [there[2]]
    for peer in there[2:]:
        places.begin_call(peer)
    assert places.surplus(there, 40.0) == [there[1]]


def test_who_has_just_come_is_given_time() -> None:
    places = ConnectionPlaces(MOST)
    there = from_many_hosts(100)
    assert places.surplus(there, 0.0) == []
    assert places.surplus(there, IDLE_LEAST_S / 2) == []
    assert len(places.surplus(there, IDLE_LEAST_S)) == 25


def test_a_port_that_another_connection_has_now_is_new() -> None:
    places = ConnectionPlaces(MOST)
    there = from_many_hosts(76)
    places.surplus(there, 0.0)
    places.surplus(there[1:], 10.0)
    assert places.surplus(there, 10.5) == [there[1]]
