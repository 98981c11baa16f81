"""Decide when a job's trigger lets it start, unless that is simply whenever its source is ahead of it.

Periodic: when `interval_s` have gone by since the job last came up to date. Jobs that share go by the clock instead, at
the multiples of their interval: so they come due together, whenever each was made, and once one iteration has brought
each to the newest version they are at one watermark and go on in one. Cron: at its next time after what is outstanding
came to be; however many times were missed, it runs once. Custom: a class decides.

No time of another clock (a node's that ran the job before, a commit's) counts as later than this node's now: a clock
that was ahead for one iteration, or one commit of the future, would have the job wait until it is so late.

Nothing is outstanding while the source does not move: then no trigger is called, and no time is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, inf

from iscp.coordination.clocks import CLOCKS_APART_S
from iscp.core.job.custom_trigger import TriggerFacts, wait_of
from iscp.core.job.job_row import JobRow
from iscp.core.spec.cron_schedule import parse_cron
from iscp.core.spec.spec import TriggerSpec
from iscp.core.values.errors import ErrorCode, TemporaryError

EvaluateTrigger = Callable[[str, TriggerFacts], object]
"""Evaluates a trigger by its name. Raises IscpError where it is not there, or fails."""


def no_triggers(name: str, facts: TriggerFacts) -> object:
    raise TemporaryError(f"this node has no trigger {name!r}", code=ErrorCode.TRIGGER_FAILED)


LEAST_WAIT_S = 0.001
"""Least seconds until a trigger is checked again; what is due within it counts as due, as clocks are not exact."""


class Pace:
    """The times that one job's trigger goes by. Times ending in `_now_s` are monotonic, those in `_at_s` are Unix time.

    `delayed_until_s` (monotonic): what is outstanding is not started before it (0: it may start). `faults` counts those
    of a trigger of the user's own, in a row. `_settled`: at some time while this node had the job nothing was
    outstanding. `_since_at_s`: since when something is, as far as is known (0: nothing is).
    """

    __slots__ = (
        "_applied_at_s",
        "_applied_now_s",
        "_ran_at_s",
        "_settled",
        "_since_at_s",
        "delayed_until_s",
        "faults",
        "trigger",
    )

    def __init__(self, trigger: TriggerSpec, row: JobRow, now_s: float, at_s: float) -> None:
        """Begin with `row`: a node that takes a job over goes on with the wait that was under way."""
        self.trigger = trigger
        self.delayed_until_s = 0.0
        self.faults = 0
        self._settled = False
        self._since_at_s = 0.0
        status = row.status
        self._ran_at_s = (status.start_at_s, status.end_at_s)
        self._applied_at_s = status.end_at_s
        waited_s = max(0.0, at_s - self._applied_at_s) if self._applied_at_s else inf
        self._applied_now_s = now_s - waited_s

    def record_run(self, start_at_s: float, now_s: float, at_s: float, *, up_to_date: bool) -> None:
        """An iteration of the job has ended."""
        self._ran_at_s = (start_at_s, at_s)
        if up_to_date:
            self._applied_now_s, self._applied_at_s = now_s, at_s
            self.settle()

    def settle(self) -> None:
        """Note that nothing is outstanding."""
        self._settled, self._since_at_s = True, 0.0

    def hold(
        self,
        row: JobRow,
        newest: int | None,
        since_s: float,
        now_s: float,
        at_s: float,
        evaluate: EvaluateTrigger,
    ) -> None:
        """Note that something is outstanding, as far as is known since `since_s` (Unix time): set until when it has to
        wait.

        Raises IscpError if a trigger cannot say.
        """
        trigger, interval_s = self.trigger, self.trigger.interval_s
        if trigger.name:
            facts = self._facts(row, newest, at_s)
            wait_s = wait_of(evaluate(trigger.name, facts), facts)
        elif trigger.cron:
            # When its first commit was made is not known of what a node has taken over: times since may be missed.
            if not self._since_at_s:
                self._since_at_s = max(self._applied_at_s, since_s) if self._settled else self._applied_at_s
            if self._since_at_s > at_s:
                self._since_at_s = at_s
            wait_s = parse_cron(trigger.cron, trigger.time_zone).next_after(self._since_at_s) - at_s
        elif interval_s is None:
            wait_s = 0.0
        elif trigger.share:
            turn = floor(at_s / interval_s)
            same = turn == floor(self._applied_at_s / interval_s)
            wait_s = max(LEAST_WAIT_S, (turn + 1) * interval_s - at_s) if same else 0.0
        else:
            wait_s = self._applied_now_s + interval_s - now_s
        self.delayed_until_s = now_s + wait_s if wait_s > 0.0 else 0.0

    def _facts(self, row: JobRow, newest: int | None, at_s: float) -> TriggerFacts:
        return TriggerFacts(
            account=row.key.account,
            table=row.table_name,
            job=row.key.job_name,
            applied_version=row.watermark.version,
            applied_at_s=row.watermark.at_s,
            source_version=row.watermark.version if newest is None else newest,
            now_s=at_s,
            last_start_at_s=min(self._ran_at_s[0], at_s),
            last_end_at_s=min(self._ran_at_s[1], at_s),
            options=self.trigger.options,
        )


def recorded_due_at_s(row: JobRow, at_s: float) -> float:
    """Return until when the job's rows need no change, as its last iteration has recorded it.

    The time is in Unix seconds; 0 means for as long as no table changes. If the clock of that iteration was ahead, it
    is now.
    """
    if '"due_at"' not in row.status_json:
        return 0.0
    status = row.status
    return at_s if status.end_at_s > at_s + CLOCKS_APART_S else status.due_at_s
