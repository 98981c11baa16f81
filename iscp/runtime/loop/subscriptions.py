"""Register who carries out what a machine has decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from iscp.core.values.errors import InvariantBroken

S = TypeVar("S")


class Subscriptions:
    """Gives each effect to all that have subscribed to its type, in the order in which they have.

    All subscribe before the loop that publishes is started; from then on it is only read.
    """

    def __init__(self) -> None:
        self._takers: dict[type, list[Callable[[Any], None]]] = {}

    def subscribe(self, take: Callable[[S], None], *kinds: type[S]) -> None:
        """Subscribe `take`, which is called on the thread that publishes; what it raises is raised there."""
        for kind in kinds:
            self._takers.setdefault(kind, []).append(take)

    def publish(self, effect: object) -> None:
        """Raises InvariantBroken where nobody has subscribed: what was decided would be done by nobody."""
        takers = self._takers.get(type(effect))
        if takers is None:
            raise InvariantBroken(f"nobody has subscribed to {type(effect).__name__}")
        for take in takers:
            take(effect)
