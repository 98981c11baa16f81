"""What holds of builds after each change, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from iscp.cluster.builds.builder import BuildWorker
from iscp.model.build.build_state import (
    AnswerWork,
    BuildState,
    BuildWorkerEffect,
    BuildWorkerEvent,
    Change,
    DeleteTask,
    DropBuild,
    MarkBuilt,
    PutTask,
    RefuseWork,
    WorkRequested,
)
from iscp.model.build.build_task import DEPTH_MAX, covers, depth
from iscp.model.rows.key_ranges import WHOLE, children
from iscp.model.values.progress import TableSize, total_size
from tests.simulation.violation import expect

ROWS = 1 << DEPTH_MAX
Files = Mapping[tuple[str, int], Collection[int]]


def tiles(ranges: Collection[int]) -> bool:
    """Whether a choice of them is the whole snapshot, each part of it once."""
    return covered(WHOLE, frozenset(ranges), max(map(depth, ranges), default=0))


def is_there(range_id: int, staged: Collection[int]) -> bool:
    """Whether all of the range is staged, in any pieces."""
    whole = any(covers(each, range_id) for each in staged)
    return whole or covered(range_id, frozenset(staged), max(map(depth, staged), default=0))


def covered(range_id: int, ranges: frozenset[int], deepest: int) -> bool:
    if range_id in ranges:
        return True
    return depth(range_id) < deepest and all(covered(half, ranges, deepest) for half in children(range_id))


def size_of(range_id: int) -> TableSize:
    """What it has of the source, in which all ranges of a size have as much."""
    return TableSize(ROWS >> depth(range_id), 8 * ROWS >> depth(range_id))


class Checks:
    """`aborted` counts tasks."""

    def __init__(self) -> None:
        self.aborted = 0
        self._ids: set[str] = set()

    def check_write(self, before: BuildState, changes: Sequence[Change], after: BuildState, files: Files) -> None:
        self._check_ids(before, changes)
        self._check_ends(before, changes, files)
        for job_id, plan in after.plans.items():
            tasks = list(after.jobs.get(job_id, {}).values())
            ranges = sorted(task.range_id for task in tasks)
            twice = [
                (one, other)
                for index, one in enumerate(ranges)
                for other in ranges[index + 1 :]
                if covers(one, other) or covers(other, one)
            ]
            expect(not twice, "{} has tasks that overlap: {}", job_id, twice)
            together = [*ranges, *files.get((job_id, plan.version), ())]
            expect(tiles(together), "{}: {} and what is staged leave parts out", job_id, ranges)
            counted = total_size([*after.done.get(job_id, {}).values(), *map(size_of, ranges)])
            expect(counted == size_of(WHOLE), "{}: {} and what is counted are {}", job_id, ranges, counted)

    def _check_ids(self, before: BuildState, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, PutTask):
                task = change.task
                self.aborted += task.aborted
                known = before.live.get(task.task_id)
                expect(
                    known is not None and task == known._replace(aborted=True)
                    if task.aborted
                    else task.task_id not in self._ids,
                    "the id {} was given before, or its task was changed to {}",
                    *(task.task_id, task),
                )
                self._ids.add(task.task_id)

    def _check_ends(self, before: BuildState, changes: Sequence[Change], files: Files) -> None:
        dropped = {change.job_id for change in changes if isinstance(change, DropBuild)}
        new = [change.task for change in changes if isinstance(change, PutTask) and not change.task.aborted]
        for change in changes:
            if isinstance(change, MarkBuilt):
                staged = files.get((change.job_id, change.version), ())
                expect(tiles(staged), "{} is marked as built, and only {} is staged", change.job_id, staged)
            if not isinstance(change, DeleteTask) or change.job_id in dropped:
                continue
            task = before.jobs.get(change.job_id, {}).get(change.task_id)
            expect(task is not None, "{} is removed twice", change.task_id)
            assert task is not None
            plan = before.plans.get(task.job_id)
            staged = files.get((task.job_id, plan.version), ()) if plan else (WHOLE,)  # what is left over is dropped
            if task.aborted:
                heirs = [
                    each.range_id
                    for each in new
                    if each.job_id == task.job_id
                    and (covers(each.range_id, task.range_id) or covers(task.range_id, each.range_id))
                ]
                expect(bool(heirs), "{} was aborted, and is removed as if it were finished", task)
            else:
                expect(is_there(task.range_id, staged), "{} is removed, and not staged", task)

    def check_worker(
        self, worker: BuildWorker, heard: int, event: BuildWorkerEvent, effects: Sequence[BuildWorkerEffect]
    ) -> None:
        for effect in effects:
            if isinstance(effect, AnswerWork):
                aborted = [task_id for task_id in effect.finished if task_id in worker.state.aborted]
                expect(not aborted, "{} says that {} are finished, which are aborted", worker.node_id, aborted)
        if isinstance(event, WorkRequested) and event.owner_rev < heard:
            refused = any(isinstance(effect, RefuseWork) and effect.number == event.number for effect in effects)
            expect(refused, "{} obeys term {} after {}", worker.node_id, event.owner_rev, heard)
        places = [batch.place for batch in worker.batches.values()]
        expect(len(places) == len(set(places)), "{} runs two batches of one range: {}", worker.node_id, places)
