"""Triggers of the user's own: classes named by entry points of the group `iscp.triggers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from iscp.core.job.custom_trigger import NotBefore, StartNow, TriggerFacts


class Trigger(Protocol):
    """Made without arguments, once in each node; called for all jobs that name it, from one thread.

    It must answer at once, and hold no state that its answers depend on: a job may be evaluated by another node the
    next time.
    """

    def validate(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError saying what is wrong with a job's options: the job is then refused."""

    def decide(self, facts: TriggerFacts) -> StartNow | NotBefore:
        """Whether an iteration of this job starts now; called only where its source is ahead of it."""
