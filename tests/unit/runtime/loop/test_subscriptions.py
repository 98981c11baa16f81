"""Each effect is carried out by all that have subscribed to its type, and none is lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from iscp.core.values.errors import InvariantBroken
from iscp.runtime.loop.subscriptions import Subscriptions


@dataclass(frozen=True)
class Start:
    number: int


@dataclass(frozen=True)
class Stop:
    number: int


def test_an_effect_goes_to_those_of_its_type_in_the_order_of_their_subscription() -> None:
    taken: list[tuple[str, object]] = []
    orders = Subscriptions()
    orders.subscribe(lambda effect: taken.append(("first", effect)), Start, Stop)
    orders.subscribe(lambda effect: taken.append(("second", effect)), Start)
    for effect in (Start(1), Stop(2), Start(3)):
        orders.publish(effect)
    assert taken == [
        ("first", Start(1)),
        ("second", Start(1)),
        ("first", Stop(2)),
        ("first", Start(3)),
        ("second", Start(3)),
    ]


def test_what_nobody_carries_out_is_no_silent_loss() -> None:
    orders = Subscriptions()
    orders.subscribe(lambda effect: None, Start)
    with pytest.raises(InvariantBroken, match="Stop"):
        orders.publish(Stop(1))


def test_what_one_raises_ends_it_for_those_behind_it() -> None:
    """As the loop is broken then, nobody is to go on by an order that another has not got."""
    taken: list[object] = []
    orders = Subscriptions()

    def refuse(effect: Start) -> None:
        raise ValueError(effect.number)

    orders.subscribe(refuse, Start)
    orders.subscribe(taken.append, Start)
    with pytest.raises(ValueError, match="1"):
        orders.publish(Start(1))
    assert taken == []
