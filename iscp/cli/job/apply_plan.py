"""The plan that makes jobs as files say: one step for each, in their order, and the fault where there is none."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from iscp.model.api.api_requests import Action, CheckedJob, JobName, JobView, RegisterRequest
from iscp.model.run.run_plan import Wanted
from iscp.model.spec.spec import CONSUMER_FIELDS, PATHS, SET, differing_fields, flatten, nest, set_of, with_set
from iscp.model.spec.spec_parsing import view_of
from iscp.model.values.errors import InvalidRequest, PermanentError, TableNotFound

DELETE = "delete"

READERS_SHOWN = 5
"""Names of jobs that are named where a deletion is refused, as they read the target."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a plan. `job` is named so that the node finds it: one that is there by the id of its table.

    `awaits`: jobs whose targets this one reads, and that are not there yet. They have to be built before it can be
    checked and registered. Of a deletion: jobs that read its target, and are deleted before it. `outside`: the job is
    there without the set of its file, and stays so.
    """

    action: str
    job: JobName
    table: str
    changes: tuple[str, ...] = ()
    wanted: Wanted | None = None
    checked: CheckedJob = field(default_factory=CheckedJob)
    awaits: tuple[JobName, ...] = ()
    outside: bool = False

    @property
    def claims(self) -> bool:
        """Return whether the job that is there becomes one of another set."""
        return bool(self.checked.there_id) and set_of(self.checked.there_json) != set_of(self.checked.spec_json)


@dataclass(frozen=True, slots=True)
class PlanFault:
    place: str
    error: PermanentError


def steps_for(
    wanted: Sequence[Wanted], checked: Sequence[CheckedJob], *, resync: bool, claim: bool = False
) -> tuple[list[Step], list[PlanFault]]:
    """Return a step for each job that can be had, after those that it awaits, and a fault for each other one.

    `resync`: targets may be rebuilt. `claim`: jobs that are there become of the sets of their files.
    """
    steps, faults, places = [], [], dict[tuple[str, str, str], str]()
    awaited = _awaited(wanted, checked)
    for number in (*(each for each in range(len(wanted)) if each not in awaited), *awaited):
        each = wanted[number]
        found = CheckedJob() if number in awaited else checked[number] if claim else _kept_in_set(each, checked[number])
        step = _step(each, found, awaited.get(number, ()))
        error = step.checked.error or _refusal(step, resync or each.rebuild)
        key = (step.job.account, step.checked.table_id or step.job.table, step.job.name)
        if error is None and (first := places.setdefault(key, each.place)) != each.place:
            error = InvalidRequest(f"is the job at {first} again", field="name", remedy="Name each job once")
        if error is None:
            steps.append(step)
        else:
            faults.append(PlanFault(each.place, error))
    return steps, faults


def _awaited(wanted: Sequence[Wanted], checked: Sequence[CheckedJob]) -> dict[int, tuple[JobName, ...]]:
    """Return the jobs that each job without its tables awaits, by the number of the job, in an order to build them.

    They are new, or are registered and have built nothing yet: a wait for one that has failed says why. A job is not in
    it if one of its tables is the target of a job that cannot be built.
    """
    missing = [number for number, found in enumerate(checked) if isinstance(found.error, TableNotFound)]
    if not missing:
        return {}
    places = {number: _places_of(each.request) for number, each in enumerate(wanted)}
    new = {places[number][0]: wanted[number].request.job for number, found in enumerate(checked) if found.error is None}
    awaited: dict[int, tuple[JobName, ...]] = {}
    while True:
        pending = {places[number][0] for number in missing if number not in awaited}
        ready = [
            number
            for number in missing
            if number not in awaited and new.keys() & places[number][1] and pending.isdisjoint(places[number][1])
        ]
        if not ready:
            return awaited
        awaited |= {number: tuple(new[table] for table in places[number][1] if table in new) for number in ready}
        new |= {places[number][0]: wanted[number].request.job for number in ready}


def _places_of(request: RegisterRequest) -> tuple[str, tuple[str, ...]]:
    """Return the target of a job, and the tables that it reads."""
    if view := view_of(request.spec_json):
        return view.target, tuple(dict.fromkeys((request.job.table, *view.tables.values())))
    return str(flatten(request.spec_json).get("target", "")), (request.job.table,)


def _step(wanted: Wanted, checked: CheckedJob, awaits: tuple[JobName, ...] = ()) -> Step:
    job = wanted.request.job
    if checked.there_id and wanted.leave:
        checked = dataclasses.replace(
            checked, action=Action.UNCHANGED, table_id=checked.there_id, spec_json=checked.there_json, error=None
        )
    name = JobName(checked.there_id or job.table, job.name, job.account)
    changes = tuple(changes_of(checked)) if checked.there_id else ()
    if awaits:
        changes = (f"once built: {', '.join(each.name for each in awaits)}",)
    outside = bool(checked.there_id and set_of(wanted.request.spec_json) and not set_of(checked.spec_json))
    return Step(checked.action.value, name, job.table, changes, wanted, checked, awaits, outside)


def _kept_in_set(wanted: Wanted, checked: CheckedJob) -> CheckedJob:
    """Return what is to be done if the job that is there stays in the set that it is in, or in none.

    Another set's job is refused: the files of both would change it in turns, and each would delete it for the other.
    """
    given, there = set_of(wanted.request.spec_json), set_of(checked.there_json or "{}")
    if checked.error or not checked.there_id or given == there or wanted.leave:
        return checked
    if given and there:
        return dataclasses.replace(checked, error=_another_set(there))
    spec_json, action = with_set(checked.spec_json, there), checked.action
    if action is Action.UPDATE and not differing_fields(spec_json, checked.there_json):
        action = Action.UNCHANGED
    return dataclasses.replace(checked, spec_json=spec_json, action=action)


def _another_set(there: str) -> InvalidRequest:
    return InvalidRequest(
        f"is a job of the set {there}",
        field="set",
        remedy="Leave it to the files of that set, or take it into this one with --claim",
    )


def changes_of(checked: CheckedJob) -> Iterator[str]:
    """Yield what differs between the job that is there and what it is to be, in words, field by field."""
    if checked.there_id != checked.table_id:
        yield f"table: {checked.there_id} → {checked.table_id}"
    before, after = flatten(checked.there_json), flatten(checked.spec_json)
    for name in PATHS:
        if before.get(name) != after.get(name):
            yield f"{name}: {_word(before.get(name))} → {_word(after.get(name))}"


def _word(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _refusal(step: Step, resync: bool) -> PermanentError | None:
    if step.action != Action.RESYNC or resync:
        return None
    return InvalidRequest(
        f"changes what the target holds ({'; '.join(step.changes)})",
        field="spec",
        remedy="Apply with --resync: the target is rebuilt, and readers see the old rows until then",
    )


def prunable(
    steps: Iterable[Step], jobs: Iterable[JobView], left_out: Collection[str] = ()
) -> tuple[list[Step], list[PlanFault]]:
    """Return a step that deletes each of `jobs` that was made by a set of the steps and is in none of them, readers
    first; and a fault for each one whose target a job reads that stays.

    `left_out`: names of what the files define and was not understood, which nothing of that name is deleted for.
    """
    planned, jobs = [step for step in steps if step.wanted], list(jobs)
    sets = {(step.job.account, set_of(step.wanted.request.spec_json)) for step in planned if step.wanted}
    named = {
        (step.job.account, table_id, step.job.name): step
        for step in planned
        for table_id in (step.checked.table_id, step.checked.there_id)
    }
    # Of these it is not known yet whether they are there.
    awaiting = {(step.job.account, step.job.name) for step in planned if step.awaits}

    def is_doomed(job: JobView) -> bool:
        name = _set_of_view(job)
        kept = (job.account, job.table_id, job.name) in named or (job.account, job.name) in awaiting
        return bool(name) and (job.account, name) in sets and not kept and job.name not in left_out

    doomed = [job for job in jobs if is_doomed(job)]
    readers = _readers_after(planned, jobs, {job.job_id for job in doomed})
    faults = [fault for job in doomed if (fault := _read_by_others(job, readers)) is not None]
    return _readers_first(doomed), faults


def _readers_after(planned: Iterable[Step], jobs: Iterable[JobView], doomed: Collection[str]) -> dict[str, list[str]]:
    """Return the names of the jobs that read each table once the plan is carried out."""
    staying = {
        (job.account, job.table_id, job.name): (job.name, job.spec_json, job.table)
        for job in jobs
        if job.job_id not in doomed
    }
    for step in planned:
        wanted = step.wanted.request.spec_json if step.wanted else ""
        key = (step.job.account, step.checked.table_id or step.table, step.job.name)
        staying[key] = (step.job.name, step.checked.spec_json or wanted, step.table)
    return _by_table(staying.values())


def _by_table(jobs: Iterable[tuple[str, str, str]]) -> dict[str, list[str]]:
    """Return the names of jobs, given with their specs and tables, by the tables that they read."""
    found: dict[str, list[str]] = {}
    for name, spec_json, table in jobs:
        for each in _places(spec_json, table)[1]:
            found.setdefault(each, []).append(name)
    return found


def _set_of_view(job: JobView) -> str:
    try:
        return set_of(job.spec_json)
    except (ValueError, RecursionError, AttributeError):  # a spec that was damaged in the job log names no set
        return ""


def _read_by_others(job: JobView, readers: Mapping[str, Sequence[str]]) -> PlanFault | None:
    target, _ = _places(job.spec_json, job.table)
    names = readers.get(target, ()) if target else ()
    if not names:
        return None
    error = InvalidRequest(
        f"would delete {job.name} on {job.table}, and {', '.join(names[:READERS_SHOWN])} would go on to read {target}, "
        "which nothing keeps then",
        field="--prune",
        remedy="Keep its definition, or delete what reads it first",
    )
    return PlanFault("--prune", error)


def _readers_first(jobs: Sequence[JobView]) -> list[Step]:
    """Return the deletions, each after those of jobs that read its target; those in a circle have no order."""
    by_id = {job.job_id: job for job in jobs}
    reading = _by_table((job.job_id, job.spec_json, job.table) for job in jobs)
    before = {
        job.job_id: [each for each in reading.get(_places(job.spec_json, job.table)[0], ()) if each != job.job_id]
        for job in jobs
    }
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        order, before = list(by_id), {}
    return [
        Step(
            DELETE,
            _name_of(job),
            job.table,
            (f"of the set {set_of(job.spec_json)}",),
            checked=CheckedJob(job_id=job.job_id),
            awaits=tuple(_name_of(by_id[each]) for each in before.get(job.job_id, ())),
        )
        for job in map(by_id.__getitem__, order)
    ]


def _name_of(job: JobView) -> JobName:
    return JobName(job.table_id, job.name, job.account)


def _places(spec_json: str, table: str) -> tuple[str, frozenset[str]]:
    """Return the target of a job, and the tables that it reads, each in one form."""
    try:
        target, tables = _places_of(RegisterRequest(JobName(table, ""), spec_json or "{}"))
    except (ValueError, RecursionError, AttributeError):  # damaged in the job log
        target, tables = "", (table,)
    return _one_form(target), frozenset(map(_one_form, tables))


def _one_form(place: str) -> str:
    return place.removeprefix("file://").rstrip("/")


def update_json(step: Step) -> str:
    """Return the change that makes a job's spec what is wanted: fields that are not given go back to their defaults.

    The set is left out unless it changes: what another set has claimed meanwhile stays with that one.
    """
    given = flatten(step.checked.spec_json)
    left_out = CONSUMER_FIELDS if step.claims else {*CONSUMER_FIELDS, SET}
    return json.dumps(nest({name: given.get(name) for name in PATHS if name not in left_out}, null=True))


def counts(steps: Iterable[Step]) -> dict[str, int]:
    found = Counter(step.action for step in steps)
    return {action: found[action] for action in (*Action, DELETE)}
