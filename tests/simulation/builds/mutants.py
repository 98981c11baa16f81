"""Each guard of builds, dropped: some seed has to miss it. `MUTANTS` says which did, so that the tests are quick."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from iscp.cluster.builds.builder import Builder, BuildWorker
from iscp.cluster.builds.staging_tasks import Replacement, Replacements, StagingTasks
from iscp.cluster.builds.table_turns import TableTurns
from iscp.model.build.build_state import (
    BuilderEvent,
    BuildLimits,
    BuildState,
    BuildsUnknown,
    Change,
    CountDone,
    DeleteTask,
    DropBuild,
    PutPlan,
    PutRetained,
    PutStaging,
    TableSeen,
    WorkRequested,
)
from iscp.model.build.build_task import RetainedSpan
from tests.simulation.builds.play import violation
from tests.simulation.builds.store import Store
from tests.simulation.builds.world import Parts

SEEDS_MAX = 500
"""Seeds beside the known ones: what is drawn otherwise finds the same elsewhere."""


class FinishesWhatIsAborted(BuildWorker):
    def _is_live(self, task_id: str) -> bool:
        return super()._is_live(task_id) or task_id in self.state.aborted


class ObeysAnyOwner(BuildWorker):
    def _is_stale(self, request: WorkRequested) -> bool:
        return False


class ReadsRangesTwice(BuildWorker):
    def _is_busy(self, place: object) -> bool:
        return False


class TakesLateResults(Builder):
    """What a node says it has finished is removed, aborted or not."""

    def _counts(self, task_id: str) -> bool:
        return True

    def _follow(self, state: BuildState) -> None:
        finished = self.finished
        super()._follow(state)
        self.finished = {each: size for each, size in finished.items() if each in state.live or each in state.aborted}

    def _removals(self, state: BuildState) -> Iterator[Sequence[Change]]:
        if self._remove_at_s is not None and self._now_s >= self._remove_at_s:
            for task in [*state.live.values(), *state.aborted.values()]:
                if task.task_id in self.finished:
                    yield [DeleteTask(task.job_id, task.task_id)]
            self._remove_at_s = None


class RemovesUncounted(Builder):
    """What is finished is removed by itself."""

    def _removals(self, state: BuildState) -> Iterator[Sequence[Change]]:
        for changes in super()._removals(state):
            yield [each for each in changes if not isinstance(each, CountDone)]


class CountsFromOne(Builder):
    """Ids without the term: an owner gives those of the last one again."""

    def _next_id(self) -> str:
        self._counter += 1
        return f"{self._counter:08x}"


class GoesOnAfterAFailure(Builder):
    """What failed to be written counts as not written."""

    def _take(self, event: BuilderEvent) -> None:
        if isinstance(event, BuildsUnknown) and self.state is not None:
            self._store.end(self._now_s)
            return
        super()._take(event)


class NeverReadsAgain(Builder):
    """An owner that has nothing to write does not notice that etcd was emptied."""

    def __init__(self, owner_rev: int, limits: BuildLimits, *given: Any) -> None:
        super().__init__(owner_rev, replace(limits, check_every_s=inf), *given)


class KeepsHalf(Replacements):
    """A split goes on with one half alone."""

    def split(self, *of: Any) -> None:
        super().split(*of)
        self.aborting.extend(self._cut(self.aborting.pop()) for _ in range(len(self.aborting)))

    def _cut(self, each: Replacement) -> Replacement:
        return Replacement(each.job_id, each.task_ids, each.range_ids[:1])


class MergesEachHalf(Replacements):
    """Each of two halves makes a task of the whole."""

    def merge(self, state: BuildState, finished: Container[str], table_id: str, range_id: int) -> None:
        before = len(self.aborting)
        super().merge(state, finished, table_id, range_id)
        merged = [self.aborting.popleft() for _ in range(len(self.aborting) - before)]
        self.aborting.extendleft(
            Replacement(each.job_id, (task_id,), each.range_ids) for each in merged for task_id in each.task_ids
        )


class AbortsTwice(Replacements):
    """What waits twice to be replaced is written twice, as it is not written yet."""

    def abort_groups(self, state: BuildState, finished: Container[str]) -> Iterator[Sequence[Change]]:
        self.begun = _HasNone(self.begun)
        yield from super().abort_groups(state, finished)


class _HasNone(dict[str, Replacement]):
    def __contains__(self, key: object) -> bool:
        return False


class RevivesAborted(Replacements):
    """What others are to take the place of keeps its id."""

    def successor_groups(
        self, state: BuildState, next_id: Callable[[], str], *places: Any
    ) -> Iterator[Sequence[Change]]:
        ids = iter(list(state.aborted))
        yield from super().successor_groups(state, lambda: next(ids, None) or next_id(), *places)


class CopiesNothing(Replacements):
    """What was aborted by an owner before, or whose second step failed, is nobody's."""

    def successor_groups(self, state: BuildState, *of: Any) -> Iterator[Sequence[Change]]:
        known = BuildState(aborted={each: task for each, task in state.aborted.items() if each in self.begun})
        yield from super().successor_groups(known, *of)


class PlansFirst(TableTurns):
    """A job's plan is written with the first of its tasks."""

    def creations(self, *of: Any) -> Iterator[Sequence[Change]]:
        for group in super().creations(*of):
            plan = self.creation.plan if self.creation else None
            yield [*group, PutPlan(plan)] if plan is not None else group
            if plan is not None:
                return


class GoesOnCreating(TableTurns):
    """What is left of a creation that was broken off stays, beside the new tasks."""

    def creations(self, state: BuildState, *of: Any) -> Iterator[Sequence[Change]]:
        known = BuildState(plans=state.plans, tables=state.tables, built=state.built)
        yield from super().creations(known, *of)


class KeepsPlans(TableTurns):
    """A build at another version goes on with the tasks of the one before."""

    def creations(self, *of: Any) -> Iterator[Sequence[Change]]:
        for group in super().creations(*of):
            drop = next((each for each in group if isinstance(each, DropBuild)), None)
            yield group if drop is None else [PutPlan(self.wanted[drop.job_id])]


class ForgetsTails(StagingTasks):
    """What is kept is deleted when all is published, whether or not it was applied."""

    def see(self, event: TableSeen) -> None:
        super().see(replace(event, applied=None))


class LeavesAllToTheTail(StagingTasks):
    """What lands while a job is built is nobody's."""

    def changes(self, *of: Any) -> Iterator[Sequence[Change]]:
        yield from ()


class LeavesRepairsToTheTail(StagingTasks):
    """Where all jobs tail nothing is kept."""

    def see(self, event: TableSeen) -> None:
        super().see(replace(event, repair=0))


class KeepsRepairsAlone(StagingTasks):
    """Of what no job has applied the repair alone is kept, which no tail comes to without those before it."""

    def see(self, event: TableSeen) -> None:
        alone = event.applied is not None and event.repair > event.applied
        super().see(replace(event, applied=event.repair - 1) if alone else event)


class KeepsInSecret(StagingTasks):
    """That commits may be kept is written when they are."""

    def changes(self, *of: Any) -> Iterator[Sequence[Change]]:
        for group in super().changes(*of):
            begins = any(isinstance(change, PutStaging) for change in group)
            yield [change for change in group if not (begins and isinstance(change, PutRetained))]


class TrustsWhatIsDeleted(StagingTasks):
    """What is to be deleted counts as kept until it is."""

    def _begin(self, needs: Any, table_id: str, kept: RetainedSpan | None) -> Any:
        made = super()._begin(needs, table_id, kept)
        return (kept, *made[1:]) if made and made[1] == made[2] else made


class KeepsSideBySide(StagingTasks):
    """A further commit has a further task, though one is under way."""

    def changes(self, state: BuildState, *of: Any) -> Iterator[Sequence[Change]]:
        known = BuildState(plans=state.plans, built=state.built, retained=state.retained)
        yield from super().changes(known, *of)
        yield from super().changes(state, *of)


class GoesOnAtTheEnd(StagingTasks):
    """For a build of an earlier version only further commits are kept."""

    def _begin(self, needs: Any, table_id: str, kept: RetainedSpan | None) -> Any:
        made = super()._begin(needs, table_id, kept)
        if kept is None or made is None or made[0].since >= kept.since:
            return made
        return (kept, kept.until, made[2]) if made[2] > kept.until else None


class KeepsForNobody(StagingTasks):
    """A task stays until it is finished."""

    def _is_needed(self, *of: Any) -> bool:
        return True


class _Everybody:
    def __contains__(self, node_id: object) -> bool:
        return True


class WaitsForWhoLeft(StagingTasks):
    """A task stays at a node that is gone."""

    def changes(self, *of: Any) -> Iterator[Sequence[Change]]:
        changes: Any = super().changes
        yield from changes(*of[:-1], _Everybody())


class LosesTheOrder(Store):
    """A write that comes late comes into effect, whatever was written meanwhile."""

    def admits(self, term: int, head: int) -> bool:
        return term == self.term


def with_replacements(kind: type[Replacements]) -> type[Builder]:
    class Mutated(Builder):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.replacements = kind()

    return Mutated


def with_turns(kind: type[TableTurns]) -> type[Builder]:
    class Mutated(Builder):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            plans, self.turns = self.turns.wanted, kind(given[1].tables_at_once)
            for plan in plans.values():
                self.turns.want(plan, BuildState(), given[4])

    return Mutated


def with_staging(kind: type[StagingTasks]) -> type[Builder]:
    class Mutated(Builder):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.staging = kind(given[1].retained_bytes_max)

    return Mutated


@dataclass(frozen=True, slots=True)
class BuildMutant:
    """`seeds`: some that found it out."""

    parts: Parts
    seeds: tuple[int, ...] = ()


MUTANTS: dict[str, BuildMutant] = {
    "worker: the aborted flag": BuildMutant(Parts(worker=FinishesWhatIsAborted), seeds=(26,)),
    "worker: owner_rev": BuildMutant(Parts(worker=ObeysAnyOwner), seeds=(0, 1)),
    "worker: one batch a range": BuildMutant(Parts(worker=ReadsRangesTwice), seeds=(0, 1)),
    "owner: late results of aborted tasks": BuildMutant(Parts(builder=TakesLateResults), seeds=(5, 16)),
    "owner: counts with the removal": BuildMutant(Parts(builder=RemovesUncounted), seeds=(0, 1)),
    "owner: ids by term": BuildMutant(Parts(builder=CountsFromOne), seeds=(0, 1)),
    "owner: begins again after a failed write": BuildMutant(Parts(builder=GoesOnAfterAFailure), seeds=(6, 8)),
    "owner: etcd is read again": BuildMutant(Parts(builder=NeverReadsAgain), seeds=(23, 111)),
    "owner: both halves of a split": BuildMutant(Parts(builder=with_replacements(KeepsHalf)), seeds=(0, 1)),
    "owner: one task of a merge": BuildMutant(Parts(builder=with_replacements(MergesEachHalf)), seeds=(0, 2)),
    "owner: one replacement of a task": BuildMutant(Parts(builder=with_replacements(AbortsTwice)), seeds=(35, 36)),
    "owner: new ids for successors": BuildMutant(Parts(builder=with_replacements(RevivesAborted)), seeds=(0, 1)),
    "owner: copies of what was aborted": BuildMutant(Parts(builder=with_replacements(CopiesNothing)), seeds=(1, 12)),
    "owner: the plan after all tasks": BuildMutant(Parts(builder=with_turns(PlansFirst)), seeds=(0, 1)),
    "owner: leftovers of a creation dropped": BuildMutant(Parts(builder=with_turns(GoesOnCreating)), seeds=(15, 19)),
    "owner: new tasks for another version": BuildMutant(Parts(builder=with_turns(KeepsPlans)), seeds=(0, 1)),
    "owner: what lands meanwhile is kept": BuildMutant(Parts(builder=with_staging(LeavesAllToTheTail)), seeds=(0, 1)),
    "owner: kept until it is applied": BuildMutant(Parts(builder=with_staging(ForgetsTails)), seeds=(1, 2)),
    "owner: repairs are kept": BuildMutant(Parts(builder=with_staging(LeavesRepairsToTheTail)), seeds=(4,)),
    "owner: repairs with those before": BuildMutant(Parts(builder=with_staging(KeepsRepairsAlone)), seeds=(14, 30)),
    "owner: what may be kept is known before": BuildMutant(Parts(builder=with_staging(KeepsInSecret)), seeds=(0, 1)),
    "owner: what is deleted does not count": BuildMutant(
        Parts(builder=with_staging(TrustsWhatIsDeleted)), seeds=(188, 241)
    ),
    "owner: one staging task a table": BuildMutant(Parts(builder=with_staging(KeepsSideBySide)), seeds=(0, 1)),
    "owner: kept from the oldest build on": BuildMutant(Parts(builder=with_staging(GoesOnAtTheEnd)), seeds=(14, 31)),
    "owner: tasks that nobody needs end": BuildMutant(Parts(builder=with_staging(KeepsForNobody)), seeds=(0, 1)),
    "owner: staging tasks move": BuildMutant(Parts(builder=with_staging(WaitsForWhoLeft)), seeds=(0, 2)),
    "store: writes on top of what is known": BuildMutant(Parts(store=LosesTheOrder), seeds=(6, 8)),
}


def finds(seed: int, mutant: BuildMutant) -> bool:
    return bool(violation(seed, mutant.parts))


def finding(mutant: BuildMutant, seeds: Iterable[int] = range(SEEDS_MAX)) -> Iterator[int]:
    return (seed for seed in seeds if finds(seed, mutant))
