"""What it takes to have the jobs that files say: one step for each, and why not where it cannot be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from iscp.core.api.api_requests import JobName, RegisterRequest
from iscp.core.api.api_views import Action, CheckedJob, JobView
from iscp.core.spec.spec_fields import CONSUMER_FIELDS, PATHS, flatten, nest
from iscp.core.values.errors import InvalidRequest, PermanentError

DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job as a file says, and where it says so (`jobs/sales.yaml[3]`)."""

    request: RegisterRequest
    place: str


@dataclass(frozen=True, slots=True)
class Step:
    """`job` is named so that the node finds it: one that is there by the id of its table."""

    action: str
    job: JobName
    table: str
    changes: tuple[str, ...] = ()
    request: RegisterRequest | None = None
    checked: CheckedJob = field(default_factory=CheckedJob)


@dataclass(frozen=True, slots=True)
class PlanFault:
    place: str
    error: PermanentError


def steps_for(
    wanted: Sequence[Wanted], checked: Sequence[CheckedJob], *, resync: bool
) -> tuple[list[Step], list[PlanFault]]:
    """A step for each that can be had, a fault for each other; `resync`: targets may be rebuilt."""
    steps, faults, places = [], [], dict[tuple[str, str, str], str]()
    for each, found in zip(wanted, checked, strict=True):
        step = _step(each.request, found)
        error = found.error or _refusal(step, resync)
        key = (step.job.account, found.table_id, step.job.name)
        if error is None and (first := places.setdefault(key, each.place)) != each.place:
            error = InvalidRequest(f"is the job at {first} again", field="name", remedy="Name each job once")
        if error is None:
            steps.append(step)
        else:
            faults.append(PlanFault(each.place, error))
    return steps, faults


def _step(request: RegisterRequest, checked: CheckedJob) -> Step:
    job = request.job
    name = JobName(checked.there_id or job.table, job.name, job.account)
    changes = tuple(changes_of(checked)) if checked.there_id else ()
    return Step(checked.action.value, name, job.table, changes, request, checked)


def changes_of(checked: CheckedJob) -> Iterator[str]:
    """What differs between the job that is there and what it is to be, in words, field by field."""
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
    """Those of `jobs` that no step is about."""
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
    """The change of a job's spec that makes it what is wanted: fields that are not given go back to their defaults."""
    given = flatten(step.checked.spec_json)
    return json.dumps(nest({name: given.get(name) for name in PATHS if name not in CONSUMER_FIELDS}, null=True))


def counts(steps: Iterable[Step]) -> dict[str, int]:
    found = Counter(step.action for step in steps)
    return {action: found[action] for action in (*Action, DELETE)}
