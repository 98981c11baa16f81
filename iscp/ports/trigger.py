"""Triggers of the user's own: classes named by entry points of the group `iscp.triggers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from iscp.core.job.custom_trigger import NotBefore, StartNow, TriggerFacts


class Trigger(Protocol):
    """A trigger is made without arguments, once in each node, and called for all jobs that name it, from one thread.

    The trigger must answer at once, and have no state that its answers depend on: another node may evaluate the job the
    next time.
    """

    def validate(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError saying what is wrong with a job's options: the job is then refused."""

    def decide(self, facts: TriggerFacts) -> StartNow | NotBefore:
        """Return whether an iteration of this job starts now; called only if its source is ahead of it."""
