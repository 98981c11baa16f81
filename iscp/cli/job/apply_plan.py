"""The plan that makes jobs as files say: one step for each, in their order, and the fault where there is none."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from iscp.core.api.api_requests import JobName, RegisterRequest
from iscp.core.api.api_views import Action, CheckedJob, JobView
from iscp.core.run.wanted import Wanted
from iscp.core.spec.spec_fields import CONSUMER_FIELDS, PATHS, flatten, nest
from iscp.core.spec.view_fields import view_of
from iscp.core.values.errors import InvalidRequest, PermanentError, TableNotFound

DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a plan. `job` is named so that the node finds it: one that is there by the id of its table.

    `awaits`: jobs whose targets this one reads, and that are not there yet. They have to be built before it can be
    checked and registered.
    """

    action: str
    job: JobName
    table: str
    changes: tuple[str, ...] = ()
    wanted: Wanted | None = None
    checked: CheckedJob = field(default_factory=CheckedJob)
    awaits: tuple[JobName, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanFault:
    place: str
    error: PermanentError


def steps_for(
    wanted: Sequence[Wanted], checked: Sequence[CheckedJob], *, resync: bool
) -> tuple[list[Step], list[PlanFault]]:
    """Return a step for each job that can be had, after those that it awaits, and a fault for each other one.

    `resync`: targets may be rebuilt.
    """
    steps, faults, places = [], [], dict[tuple[str, str, str], str]()
    awaited = _awaited(wanted, checked)
    for number in (*(each for each in range(len(wanted)) if each not in awaited), *awaited):
        each = wanted[number]
        step = _step(each, CheckedJob(), awaited[number]) if number in awaited else _step(each, checked[number])
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
    return Step(checked.action.value, name, job.table, changes, wanted, checked, awaits)


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


def prunable(steps: Iterable[Step], jobs: Iterable[JobView]) -> list[Step]:
    """Return a step that deletes each of `jobs` that no step is about."""
    named = {
        (step.job.account, table_id, step.job.name)
        for step in steps
        for table_id in (step.checked.table_id, step.checked.there_id)
    }
    return [
        Step(DELETE, JobName(job.table_id, job.name, job.account), job.table)
        for job in jobs
        if (job.account, job.table_id, job.name) not in named
    ]


def update_json(step: Step) -> str:
    """Return the change that makes a job's spec what is wanted: fields that are not given go back to their defaults."""
    given = flatten(step.checked.spec_json)
    return json.dumps(nest({name: given.get(name) for name in PATHS if name not in CONSUMER_FIELDS}, null=True))


def counts(steps: Iterable[Step]) -> dict[str, int]:
    found = Counter(step.action for step in steps)
    return {action: found[action] for action in (*Action, DELETE)}
