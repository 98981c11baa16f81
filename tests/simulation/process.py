"""One life of a node's process: its parts, its clocks, and what SIGSTOP and SIGKILL do to it.

Monotonic clocks never step, and run a little fast or slow; wall clocks step. A stopped process handles nothing; when
it goes on, whatever waited for it comes at once and in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from iscp.model.values.ids import Moment, NodeRecord
from tests.simulation.builds.building import Building
from tests.simulation.etcd import Client, Watch
from tests.simulation.member_store import KeyWatch, follow_members, reads_of
from tests.simulation.owner_side import OwnerSide
from tests.simulation.threads import Threads
from tests.simulation.wire import Streams
from tests.simulation.worker_side import WorkerSide

if TYPE_CHECKING:
    from tests.simulation.world import World

LOOK_S = 0.5
LEAVE_MAX_S = 10.0
"""How long an orderly stop may take; then the process ends as it stands."""

Action = Callable[[], None]


class Process:
    def __init__(self, world: World, node_id: str, rate: float, wall_offset_s: float) -> None:
        self.world = world
        self.node_id = node_id
        self.alive, self.paused, self.leaving = True, False, False
        self.started_s = world.agenda.now_s
        self.wall_offset_s = wall_offset_s
        self._rate = rate
        self._stood_s = 0.0
        self._stands_since_s: float | None = None
        self._deferred: list[Action] = []
        self.went_on_s = 0.0
        self.watches: list[Watch | KeyWatch] = []
        self.etcd = Client(self)
        self.ttl_s = world.ttls_s[node_id]
        self.worker = WorkerSide(self)
        self.engine = world.parts.engine(self)
        self.threads = Threads(self)
        self.streams = Streams(self)
        self.reads = reads_of(self, world.parts.reads)
        self.owner = OwnerSide(self)
        self._building: Building | None = None
        self.registration = world.parts.registration(self, self._registered, self.worker.on_lease_lost)
        self.candidacy = world.parts.candidacy(self)
        self._started = False
        if world.trouble_drawn.builds:
            self._building = Building(self)

    @property
    def building(self) -> Building:
        """Of a world with builds."""
        assert self._building is not None
        return self._building

    @property
    def now_s(self) -> float:
        since_s = self.world.agenda.now_s if self._stands_since_s is None else self._stands_since_s
        return (since_s - self._stood_s) * self._rate

    @property
    def wall_s(self) -> float:
        return self.world.agenda.now_s + self.wall_offset_s + self.world.wrongs.ahead_s[self.node_id]

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.registration.start()

    def run_for_owner(self, leftover_id: int = 0) -> None:
        self.candidacy = self.world.parts.candidacy(self, leftover_id)
        self.candidacy.start()

    def leave(self) -> None:
        """An orderly stop: hand over what runs here, then go."""
        if not self.leaving:
            self.leaving = True
            self.registration.leave()
            self._leave_when_idle(self.now_s + LEAVE_MAX_S)

    def kill(self) -> None:
        self.alive = False
        self._deferred.clear()
        for watch in list(self.watches):
            watch.close()

    def pause(self) -> None:
        self.paused = True

    def suspend(self) -> None:
        """As `pause`, and the monotonic clock stands still, as where a machine sleeps or is moved."""
        self.paused, self._stands_since_s = True, self.world.agenda.now_s

    def go_on(self) -> None:
        self.paused, self.went_on_s = False, self.world.agenda.now_s
        if self._stands_since_s is not None:
            self._stood_s += self.world.agenda.now_s - self._stands_since_s
            self._stands_since_s = None
        deferred, self._deferred = self._deferred, []
        self.world.random.shuffle(deferred)
        for action in deferred:
            self.world.agenda.after(self.world.random.random() * 0.01, lambda action=action: self.act(action))  # type: ignore[misc]

    def _registered(self, epoch: int) -> None:
        self.world.note(self.node_id, f"is registered, epoch {epoch}")
        self.worker.registered(epoch)
        if not self._started:
            self._started = True
            follow_members(self, self._members_changed)
            self.run_for_owner()

    def _members_changed(self, members: tuple[NodeRecord, ...], moment: Moment) -> None:
        """As `iscp/cluster/node.py` passes it on."""
        self.registration.on_members_changed(members, moment)
        self.owner.on_members_changed(members, moment)

    def _leave_when_idle(self, until_s: float) -> None:
        if not self.worker.idle and self.now_s < until_s:
            self.after(LOOK_S, lambda: self._leave_when_idle(until_s))
            return
        self.candidacy.resign()
        self.registration.deregister()
        self.after(LOOK_S, lambda: self.world.end(self))

    # --- time --------------------------------------------------------------------------------------------------

    def after(self, delay_s: float, action: Action) -> None:
        """`delay_s` by this node's clock; nothing happens in a process that has ended."""
        self.world.agenda.after(delay_s / self._rate, lambda: self.act(action))

    def act(self, action: Action) -> None:
        if self.paused:
            self._deferred.append(action)
        elif self.alive:
            action()

    def after_in_spark(self, delay_s: float, action: Action) -> None:
        """In the JVM, which may or may not be stopped or killed together with its process."""
        along = self.world.random.random() < 0.5

        def act() -> None:
            if along and self.paused:
                self._deferred.append(action)
            elif self.alive or not along:
                action()

        self.world.agenda.after(delay_s, act)
