"""Say what `iscp up` waits for, if it waits for longer than a moment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from iscp.adapters.system.child_process import tail

NOTICE_AFTER_S = 3.0
"""Seconds that `iscp up` waits for one thing before it says so."""

_AWAITED_AFTER = {
    "node.stopped": "{} to start",
    "jars.downloading": "{} to download jars",
    "spark.starting": "{} to start Spark",
    "spark.started": "{} to be taken in by an owner, which has to be elected first",
}
"""The thing that a node waits for, by the last of these events in its log."""


@dataclass(slots=True)
class WaitNotice:
    """Each thing that is waited for is said once."""

    _awaited: str = ""
    _since_s: float = 0.0
    _announced: str = ""

    def due(self, awaited: str, now_s: float) -> str:
        """Return what is to be said at `now_s` (monotonic); empty if nothing is. `awaited` is empty once all is
        there.
        """
        if awaited != self._awaited:
            self._awaited, self._since_s = awaited, now_s
        if awaited in ("", self._announced) or now_s - self._since_s < NOTICE_AFTER_S:
            return ""
        self._announced = awaited
        return f"waiting for {awaited}"


def awaited_of(node: str, log: Path) -> str:
    """Return what a node that has been started, and does not serve yet, is at, by its log."""
    awaited = "{} to start"
    for line in tail(log).splitlines():
        try:
            found = json.loads(line)
        except ValueError:  # the first one is cut, and others print as well
            continue
        event = found.get("event") if isinstance(found, dict) else None
        awaited = _AWAITED_AFTER.get(event, awaited) if isinstance(event, str) else awaited
    return awaited.format(node)
