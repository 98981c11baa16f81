"""What waits for an owner's loop. Stands for `iscp/runtime/inbox.py`: one thing at a time, each takes its time.

`Trouble.step_s` is what an event costs the owner, so that it may fall behind; above `Trouble.inbox_max` what comes from
nodes is refused, as by the real one, if it finds no room within PUT_WAIT_S.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from iscp.runtime.inbox import PUT_WAIT_S

if TYPE_CHECKING:
    from tests.simulation.process import Process

Action = Callable[[], None]


@dataclass(eq=False, slots=True)
class _Waiting:
    came_s: float
    action: Action


class Inbox:
    """`held` says whether the loop blocks in what it does. `read_s`: all that came before has been taken."""

    def __init__(self, process: Process, held: Callable[[], bool]) -> None:
        self._process = process
        self._held = held
        self._waiting: deque[_Waiting] = deque()
        self._busy = False
        self.read_s = 0.0

    def post(self, action: Action) -> None:
        """What the process itself has to say is never refused."""
        self._waiting.append(_Waiting(self._process.now_s, action))
        self.go_on()

    def put(self, action: Action, lost: Action = lambda: None) -> None:
        """What comes from elsewhere waits for room, and is `lost` if there is none for long."""
        waiting = _Waiting(self._process.now_s, action)
        self._waiting.append(waiting)
        room = self._process.world.trouble.inbox_max
        if room and len(self._waiting) > room:
            self._process.after(PUT_WAIT_S, partial(self._give_up, waiting, room, lost))
        self.go_on()

    def put_first(self, action: Action) -> None:
        """A part of what is being done."""
        self._waiting.appendleft(_Waiting(self.read_s, action))

    def go_on(self) -> None:
        if self._busy:
            return
        self._busy = True
        while self._waiting and not self._held():
            waiting = self._waiting.popleft()
            self.read_s = max(self.read_s, waiting.came_s)
            waiting.action()
            if (step_s := self._process.world.trouble.step_s) > 0.0:
                self._process.after(step_s * (0.5 + self._process.world.random.random()), self._free)
                return
        self._busy = False

    def _free(self) -> None:
        self._busy = False
        self.go_on()

    def _give_up(self, waiting: _Waiting, room: int, lost: Action) -> None:
        outside = list(self._waiting)[room:]
        if waiting in outside:
            self._waiting.remove(waiting)
            lost()
