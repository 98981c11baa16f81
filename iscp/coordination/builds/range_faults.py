"""Ranges that do not come to an end: which nodes have had them in vain, and whose jobs are shown as failing.

A node has a range for so long; then another one gets it that has not had it yet, and once all have, each may again.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from iscp.coordination.builds.build_state import BuildPlace, BuildState
from iscp.coordination.builds.builder_events import CancelCall, RangeFailed, ShowFault
from iscp.coordination.builds.range_calls import FAILURES_SHOWN, RangeCall, RangeCalls
from iscp.core.build.build_task import BuildTask
from iscp.core.values.errors import ErrorCode


@dataclass(slots=True)
class _Vain:
    """A range that nodes had in vain. `tried` has the nodes that had it for too long; `node_id` is the one that has it
    instead (empty: whichever should).
    """

    tried: set[str] = field(default_factory=set)
    node_id: str = ""


class RangeFaults:
    """The faults of one term. `shown` has the jobs that were reported as failing."""

    def __init__(self, calls: RangeCalls) -> None:
        self.shown: set[str] = set()
        self._calls = calls
        self._vain: dict[tuple[str, int], _Vain] = {}

    def fail(self, event: RangeFailed, state: BuildState | None, now_s: float) -> list[ShowFault]:
        """Note that a call has failed, and return what is to be shown."""
        call = self._calls.by_number.get(event.number)
        self._calls.fail(event.number, event.fault, now_s)
        if call is None or state is None or self._calls.failures(call.place) < FAILURES_SHOWN:
            return []
        return self._show(_jobs_of(call.task_ids, state), event.code, event.fault)

    def finish(self, call: RangeCall, state: BuildState | None) -> list[ShowFault]:
        """Note that a call has finished something, and return whose builds go on again."""
        self._calls.end(call.number)
        self._calls.finish(call.place)
        self._vain.pop((call.place.table_id, call.place.range_id), None)
        if state is None or not self.shown:
            return []
        failing = [place for place in self._calls.setbacks if self._calls.failures(place) >= FAILURES_SHOWN]
        still = {job_id for place in failing for job_id in _jobs_of(tasks_at(place, state), state)}
        better = sorted(self.shown.intersection(_jobs_of(call.task_ids, state)).difference(still))
        self.shown.difference_update(better)
        return [ShowFault(job_id, ErrorCode.OK) for job_id in better]

    def take_overdue(
        self, state: BuildState, staying: Collection[str], finished: Container[str], now_s: float
    ) -> tuple[list[ShowFault | CancelCall], Iterator[BuildTask]]:
        """Return what is to be reported of nodes that have used their time, and the tasks that are to move."""
        notices: list[ShowFault | CancelCall] = []
        moving: list[BuildTask] = []
        for place in self._calls.overdue(now_s):
            tasks = tasks_at(place, state)
            if (number := self._calls.take_away(place, now_s)) is not None:
                notices.append(CancelCall(number))
            fault = f"a range of the build was not finished by {place.node_id} within {self._calls.timeout_s:g} s"
            notices += self._show(_jobs_of(tasks, state), ErrorCode.TIMEOUT, fault)
            if self._send_elsewhere(place, staying):
                moving += [task for task_id, task in tasks.items() if task_id not in finished]
        return notices, iter(moving)

    def node_of(self, task: BuildTask, staying: Container[str], usual: str) -> str:
        """Return the node at which a range should be that is `usual`ly at that one."""
        vain = self._vain.get((task.table_id, task.range_id))
        return vain.node_id if vain is not None and vain.node_id in staying else usual

    def forget(self, state: BuildState) -> None:
        """Forget what is known of places, builds and tables that are over."""
        self._calls.forget(state)
        self.shown.intersection_update(state.jobs)
        for each in [each for each in self._vain if each[0] not in state.tables]:
            del self._vain[each]

    def _send_elsewhere(self, place: BuildPlace, staying: Collection[str]) -> bool:
        vain = self._vain.setdefault((place.table_id, place.range_id), _Vain())
        vain.tried.add(place.node_id)
        free = sorted(set(staying) - vain.tried)
        if not free:
            vain.tried.clear()
            return False
        vain.node_id = free[place.range_id % len(free)]
        return True

    def _show(self, job_ids: Collection[str], code: int, fault: str) -> list[ShowFault]:
        self.shown.update(job_ids)
        return [ShowFault(job_id, code, fault) for job_id in sorted(job_ids)]


def tasks_at(place: BuildPlace, state: BuildState) -> Mapping[str, BuildTask]:
    return state.places.get(place.node_id, {}).get(place, {})


def _jobs_of(task_ids: Iterable[str], state: BuildState) -> set[str]:
    return {state.live[task_id].job_id for task_id in task_ids if task_id in state.live}
