"""The owner's calls to nodes that work on tasks: which are made next, and when one that failed is made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass

from iscp.coordination.builds.build_limits import RANGE_TIMEOUT_S
from iscp.coordination.builds.build_state import BuildPlace, BuildState, place_of
from iscp.coordination.builds.builder_events import CallNode
from iscp.core.build.build_task import BuildPlan, BuildTask, TaskType

CALLS_OF_NODE_MAX = 2
"""Ranges that a node is given to work on at a time, so that its next one is there when one is finished; the others wait
at the owner, where they still can move.
"""

STAGING_CALLS_OF_NODE_MAX = 2
"""Tables of which a node is given commits to keep at a time, beside its ranges: what waits may be deleted."""

NODE_REST_S = 1.0
"""Pause before a node is called for another range after a call that has failed; those that it is at go on."""

CALL_RETRY_S = 1.0
"""Pause before a range is given to a node again that has failed at it or finished nothing; doubled each time."""

CALL_RETRY_MAX_S = 60.0
"""Longest pause before a range that keeps failing is tried again; other ranges go on meanwhile, and once a table has no
others left, tables that wait.
"""


TURN_HELD_S = 300.0
"""Seconds that an unfinished range may delay waiting tables once its table has no other ranges left."""

FAILURES_SHOWN = 3
"""Failures of a range in a row from which on its jobs are shown as failing."""


@dataclass(frozen=True, slots=True)
class RangeCall:
    number: int
    place: BuildPlace
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setback:
    """A `Setback` says why a place has to wait, and until when."""

    fault: str
    due_s: float
    pause_s: float
    failures: int = 1


class RangeCalls:
    """The calls of one term. `setbacks` has the places that failed last time, also when they are over.

    `since_s` says when each place was called for what it has not finished.
    """

    def __init__(self, owner_rev: int, timeout_s: float = RANGE_TIMEOUT_S) -> None:
        self._owner_rev = owner_rev
        self.timeout_s = timeout_s
        self.since_s: dict[BuildPlace, float] = {}
        self._number = 0
        self.by_number: dict[int, RangeCall] = {}
        self.setbacks: dict[BuildPlace, Setback] = {}
        self._busy: dict[BuildPlace, RangeCall] = {}
        self._resting: dict[str, float] = {}
        self._of_node: Counter[tuple[str, TaskType]] = Counter()

    def works_on(self, task: BuildTask, place: BuildPlace) -> bool:
        call = self._busy.get(place)
        return call is not None and task.task_id in call.task_ids

    def next_due_s(self, now_s: float) -> float | None:
        due = [*(each.due_s for each in self.setbacks.values()), *self._resting.values()]
        for since_s in self.since_s.values():
            due += (since_s + TURN_HELD_S, since_s + self.timeout_s)
        return min((due_s for due_s in due if due_s > now_s), default=None)

    def begin(
        self,
        state: BuildState,
        nodes: Container[str],
        finished: Container[str],
        deferred: Collection[str],
        now_s: float,
    ) -> Iterator[CallNode]:
        """Yield the calls that may be made now, at these nodes; ranges of `deferred` tables get none."""
        yield from self._begin_staging(state, nodes, finished, now_s)
        if deferred and all(table_id in deferred for table_id in state.tables):
            return
        for node_id, places in state.places.items():
            if node_id not in nodes or self._resting.get(node_id, now_s) > now_s:
                continue
            for place, tasks in places.items():
                if self._of_node[node_id, place.task_type] >= CALLS_OF_NODE_MAX:
                    break
                if place.table_id in deferred or self._waits(place, now_s):
                    continue
                if task_ids := _read_together(tasks, state.plans, finished):
                    self.since_s.setdefault(place, now_s)
                    yield self._begin(place, task_ids)

    def _begin_staging(
        self, state: BuildState, nodes: Container[str], finished: Container[str], now_s: float
    ) -> Iterator[CallNode]:
        for task in state.staging.values():
            place, node_id = place_of(task), task.node_id
            if node_id not in nodes or task.task_id in finished or self._resting.get(node_id, now_s) > now_s:
                continue
            free = self._of_node[node_id, place.task_type] < STAGING_CALLS_OF_NODE_MAX
            if free and not self._waits(place, now_s):
                yield self._begin(place, (task.task_id,))

    def _waits(self, place: BuildPlace, now_s: float) -> bool:
        """Return whether a call is under way, or the last one has failed lately."""
        setback = self.setbacks.get(place)
        return place in self._busy or (setback is not None and setback.due_s > now_s)

    def end(self, number: int) -> RangeCall | None:
        """End the call, and return it; None if it was over already."""
        call = self.by_number.pop(number, None)
        if call is not None:
            del self._busy[call.place]
            self._of_node[call.place.node_id, call.place.task_type] -= 1
        return call

    def fail(self, number: int, fault: str, now_s: float) -> None:
        """Note that the call has failed: at a node that is away, all others would as well, one after the other."""
        if (call := self.by_number.get(number)) is not None:
            self._resting[call.place.node_id] = now_s + NODE_REST_S
            self.set_back(number, fault, now_s)

    def set_back(self, number: int, fault: str, now_s: float) -> None:
        """Set the place back, whose call has failed, or finished nothing."""
        if (call := self.end(number)) is not None:
            before = self.setbacks.get(call.place)
            pause_s = min(before.pause_s * 2, CALL_RETRY_MAX_S) if before else CALL_RETRY_S
            failures = before.failures + 1 if before else 1
            self.setbacks[call.place] = Setback(fault, now_s + pause_s, pause_s, failures)

    def failures(self, place: BuildPlace) -> int:
        """Return how many calls for the place have failed in a row."""
        setback = self.setbacks.get(place)
        return setback.failures if setback is not None else 0

    def finish(self, place: BuildPlace) -> None:
        """Note that the place has finished what it was called for."""
        self.setbacks.pop(place, None)
        self.since_s.pop(place, None)

    def overdue(self, now_s: float) -> list[BuildPlace]:
        """Return the ranges that their nodes had for too long."""
        return [place for place, since_s in self.since_s.items() if since_s + self.timeout_s <= now_s]

    def take_away(self, place: BuildPlace, now_s: float) -> int | None:
        """End the turn of a node that has used its time, and return the number of the call to be canceled, if one runs.
        A range that stays at the node is called again later.
        """
        del self.since_s[place]
        call = self._busy.get(place)
        self.setbacks[place] = Setback(
            f"not finished within {self.timeout_s:g} s", now_s + CALL_RETRY_MAX_S, CALL_RETRY_MAX_S, FAILURES_SHOWN
        )
        return call.number if call is not None and self.end(call.number) else None

    def stuck(self, state: BuildState, now_s: float) -> set[str]:
        """Return the tables of whose ranges nothing is left but what keeps failing, or does not end."""
        failing = {place for place, each in self.setbacks.items() if each.pause_s >= CALL_RETRY_MAX_S}
        failing.update(place for place, since_s in self.since_s.items() if since_s + TURN_HELD_S <= now_s)
        if not failing:
            return set()
        places = [place for places in state.places.values() for place in places]
        going = {place.table_id for place in places if place not in failing}
        return {place.table_id for place in places}.difference(going)

    def forget(self, state: BuildState) -> None:
        """Forget the setbacks of places where nothing is to be done any more."""
        for place in [each for each in {**self.setbacks, **self.since_s} if not state.is_at(each)]:
            self.finish(place)

    def without(self, is_live: Callable[[str], bool]) -> list[int]:
        """Ends the calls none of whose tasks is live any more."""
        numbers = [call.number for call in self.by_number.values() if not any(map(is_live, call.task_ids))]
        for number in numbers:
            self.end(number)
        return numbers

    def _begin(self, place: BuildPlace, task_ids: tuple[str, ...]) -> CallNode:
        self._number += 1
        self.by_number[self._number] = self._busy[place] = RangeCall(self._number, place, task_ids)
        self._of_node[place.node_id, place.task_type] += 1
        return CallNode(self._number, self._owner_rev, place, task_ids)


def _read_together(
    tasks: Mapping[str, BuildTask], plans: Mapping[str, BuildPlan], finished: Container[str]
) -> tuple[str, ...]:
    """Return all that may be worked on, of those whose range is the same rows as the first one's."""
    ready = [
        (plan.reading, task_id)
        for task_id, task in tasks.items()
        if task_id not in finished and (plan := plans.get(task.job_id)) is not None
    ]
    return tuple(task_id for reading, task_id in ready if reading == ready[0][0])
