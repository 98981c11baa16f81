"""State tables: the state that each event leads to. The code steps by them, and their diagrams are written from
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Generic, TypeVar

from iscp.model.values.errors import InvariantBroken

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class StateTable(Generic[S, E]):
    """For each event, the state that follows each state in which the event may come; in any other it must not."""

    __slots__ = ("_moves",)

    def __init__(self, moves: Mapping[E, Mapping[S, S]]) -> None:
        self._moves = {event: dict(states) for event, states in moves.items()}

    def __iter__(self) -> Iterator[tuple[S, E, S]]:
        """Yield all transitions: from, event, to."""
        for event, states in self._moves.items():
            for state, after in states.items():
                yield state, event, after

    def after(self, state: S, event: E, subject: object) -> S:
        """Return the state of `subject` after `event`; raise InvariantBroken if that must not come in this state."""
        try:
            return self._moves[event][state]
        except KeyError:
            raise InvariantBroken(
                f"{subject} is {state.value}, and cannot take the event {event.value!r} in that state"
            ) from None
