"""Messages between nodes: lost, doubled, late, and therefore in any order; cut in one direction or both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

LATE_S = 6.0

Delivery = Callable[["Process"], None]


class Wire:
    """`cuts` counts for each direction the faults that cut it. A node reaches itself whatever the network does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cuts: Counter[tuple[str, str]] = Counter()
        self.sent = 0

    def send(self, source: str, target: str, delivery: Delivery) -> None:
        """To whatever process has the target's address when it arrives."""
        self.sent += 1
        world, random = self._world, self._world.random
        if source == target:
            world.agenda.after(0.0, lambda: self._arrive(source, target, delivery))
            return
        if random.random() < world.trouble.drop:
            return
        world.agenda.after(self._lag_s(), lambda: self._arrive(source, target, delivery))
        if random.random() < world.trouble.double:
            world.agenda.after(random.random() * LATE_S, lambda: self._arrive(source, target, delivery))

    def _lag_s(self) -> float:
        random = self._world.random
        if random.random() < self._world.trouble.late:
            return random.random() * LATE_S
        return 0.001 + random.random() * 0.01

    def _arrive(self, source: str, target: str, delivery: Delivery) -> None:
        if source != target and self.cuts[source, target]:
            return
        process = self._world.processes.get(target)
        if process is not None:
            process.act(lambda: delivery(process))
