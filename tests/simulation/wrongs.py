"""What else goes wrong: wrong clocks, commits of the future, writes of the job log whose answers are lost and that land
later or never, ranges of builds that hang, and changes that watches of etcd pass over. Drawn by itself, so that a seed
means what it meant before.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.trouble import Trouble

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

WRONG = 0.3
"""Runs in which each of these may be."""

TALKATIVE = 0.15
"""Runs in which nodes report idle sources."""

PASSED_OVER = 0.2
"""Runs in which watches lose events."""

UNHEARD = 0.3
"""Runs in which nodes do not hear of each commit, once and at once."""

HEARD_LATE_S = 10.0
"""Seconds by which an announcement may be late."""

WEEK_S = 7 * 86_400.0
HANGS_S = 60.0
"""For how long a range hangs: longer than nodes have it."""

RANGE_TIMEOUT_S = 15.0
"""How long nodes have ranges, where some hang."""


def draw_wrongs(random: Random, trouble: Trouble) -> Trouble:
    if trouble.quiet or trouble.together or random.random() > WRONG:
        return trouble
    jumps, future, lost_puts, hangs = (random.random() < 0.5 for _ in range(4))
    return replace(
        trouble,
        jumps=0.02 * 10.0 ** random.random() if jumps else 0.0,
        future=0.02 * 10.0 ** random.random() if future else 0.0,
        lost_puts=0.02 * 10.0 ** random.random() if lost_puts else 0.0,
        hanging_ranges=0.05 * 5.0 ** random.random() if hangs and trouble.builds else 0.0,
    )


def draw_talk(random: Random, trouble: Trouble) -> Trouble:
    return trouble if trouble.quiet or trouble.together else replace(trouble, talkative=random.random() < TALKATIVE)


def draw_losses(random: Random, trouble: Trouble) -> Trouble:
    if trouble.quiet or trouble.together or random.random() > PASSED_OVER:
        return trouble
    return replace(trouble, lost_events=0.02 * 25.0 ** random.random())


def draw_notices(random: Random, trouble: Trouble) -> Trouble:
    """In some runs nobody announces any commit, in others some of them."""
    if trouble.quiet or trouble.together or random.random() > UNHEARD:
        return trouble
    return replace(trouble, silent=random.choice((0.0, 0.3, 1.0)), stray=random.choice((0.0, 0.3)))


class Wrongs:
    """Of one world. `dated_s`: what the commits of each table say of when they were made. `ahead_since_s`: since when a
    node's clock is wrong.
    """

    def __init__(self, world: World, random: Random) -> None:
        self._world, self._random = world, random
        self._notices = Random(f"{world.trouble.silent} {world.trouble.stray}")
        self.ahead_s = dict.fromkeys(world.node_ids, 0.0)
        self.ahead_since_s = dict.fromkeys(world.node_ids, inf)
        self.dated_s: dict[str, list[float]] = {table: [0.0] for table in world.tables}

    def happen(self, chance: float) -> bool:
        return chance > 0.0 and self._random.random() < chance

    def note_commit(self, table: str) -> None:
        ahead_s = self._random.random() * WEEK_S if self.happen(self._world.trouble.future) else 0.0
        self.dated_s[table].append(self._world.agenda.now_s + ahead_s)

    def announce(self, process: Process, table: str) -> None:
        """Nodes hear of a commit, or do not: notices are hints, which may be lost, late, doubled and wrong."""
        random, trouble = self._notices, self._world.trouble_drawn
        if trouble.silent and random.random() < trouble.silent:
            return
        process.act(partial(process.engine.notify, table))
        if trouble.stray and random.random() < trouble.stray:
            process.act(partial(process.engine.notify, random.choice(self._world.tables)))
            late = partial(process.act, partial(process.engine.notify, table))
            self._world.agenda.after(random.random() * HEARD_LATE_S, late)

    def arrange(self) -> None:
        if self._world.trouble.jumps:
            self._world.agenda.after(self._random.expovariate(self._world.trouble.jumps), self._jump)

    def _jump(self) -> None:
        """Some node's clock is weeks ahead, for a while."""
        world = self._world
        if not world.calm:
            node_id, by_s = self._random.choice(world.node_ids), self._random.random() * 4 * WEEK_S
            world.note("fault", f"the clock of {node_id} is {by_s:.0f} s ahead")
            self._set_ahead(node_id, by_s)
            world.agenda.after(self._random.random() * world.trouble.long_s, partial(self._set_ahead, node_id, 0.0))
            self.arrange()

    def watch_lasts_s(self) -> float | None:
        """For how long a watch lasts that begins now; None: for as long as anybody looks, where none loses events."""
        if not self._world.trouble_drawn.lost_events:
            return None
        return self._world.parts.watch_max_s * self._random.uniform(0.5, 1.0)

    def put_clocks_right(self) -> None:
        for node_id in self.ahead_s:
            self._set_ahead(node_id, 0.0)

    def lands_after_s(self) -> float | None:
        """When a put lands that is not answered; None: never."""
        return self._random.random() * self._world.trouble_drawn.long_s if self._random.random() < 0.7 else None

    def _set_ahead(self, node_id: str, ahead_s: float) -> None:
        self.ahead_s[node_id] = ahead_s
        self.ahead_since_s[node_id] = min(self.ahead_since_s[node_id], self._world.agenda.now_s) if ahead_s else inf
