"""What code of the project costs, counted in lines that are run: the same each time, on whatever machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.protocol.events import OwnerEffect, OwnerEvent


@dataclass(slots=True)
class Effort:
    """`lines`: how many were run within `with` blocks, a loop's as often as it goes round, also within one line."""

    lines: int = 0

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines += 1
        return self._trace


class CountedOwner(OwnerMachine):
    """An owner's machine whose effort is counted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.effort = Effort()

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        with self.effort:
            return super().step(event, now_s, read_s)
