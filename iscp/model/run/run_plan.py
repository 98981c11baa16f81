"""Decide which jobs of a run come next: those whose tables are as fresh as the run will make them.

A job comes after all jobs whose targets it reads, and is skipped if one of them fails. Jobs of one table that are ready
together are one unit, as their table is read once for all of them. A job that reads its tables itself is a unit of its
own: it shares no read, and would wait for whatever the others do.

A job as a file or a program wants it.

Choose the jobs of files that a run is about, by their names and tags.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter

from iscp.model.api.api_requests import RegisterRequest
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import Refusals

PARALLEL_DEFAULT, PARALLEL_MAX = 4, 64
"""Tables whose jobs are run at once: by default, and at the most."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of a plan: its own table is the first that it `reads`; an empty `target` is that of no table.

    `place` says where it is written (`jobs.yaml[3]`). Others may have the same target if it is `shared`. `alone`: it
    reads its tables itself.
    """

    name: str
    account: str
    reads: tuple[str, ...]
    target: str
    place: str
    shared: bool = False
    alone: bool = False

    @property
    def unit(self) -> tuple[str, str]:
        """Return what jobs of one unit have in common."""
        return self.account, self.reads[0]


@dataclass(slots=True)
class RunPlan:
    """The jobs of a run by their numbers, and what has become of them. Makes no decision twice; not safe for threads.

    `chosen` are the numbers of the jobs that are run; the others count as they are. With `fail_fast` nothing is begun
    after the first failure.
    """

    jobs: Sequence[PlannedJob]
    chosen: Collection[int]
    fail_fast: bool = False
    skipped: dict[int, str] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _begun: set[int] = field(default_factory=set)
    _waits: dict[int, set[int]] = field(default_factory=dict)
    _readers: dict[int, set[int]] = field(default_factory=dict)
    _makers: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InvalidRequest for all jobs in a circle, and all of one table with one name or one target."""
        refusals = Refusals()
        _refuse_same_names(self.jobs, refusals)
        makers = _makers_of(self.jobs, refusals)
        with refusals.collect():
            _refuse_circle(self.jobs, makers)
        refusals.raise_all()
        for number in self.chosen:
            found = {maker for uri in self.jobs[number].reads for maker in makers.get(uri, ())}
            self._makers[number] = found & set(self.chosen)
            self._waits[number] = set(self._makers[number])
            for maker in self._waits[number]:
                self._readers.setdefault(maker, set()).add(number)

    def tables_on_several_ways(self) -> set[str]:
        """Return the tables, none of the run's targets, that some chosen job reads on several ways: itself, or through
        the targets of others.
        """
        below: dict[str, set[str]] = {}
        several: set[str] = set()
        for number in TopologicalSorter({number: self._makers[number] for number in self.chosen}).static_order():
            job = self.jobs[number]
            ways = [below.get(uri, {uri}) for uri in job.reads]
            found = set().union(*ways)
            several.update(uri for uri in found if sum(uri in way for way in ways) > 1)
            if job.target:
                below[job.target] = below.get(job.target, set()) | found
        return several

    @property
    def over(self) -> bool:
        return len(self._ended) == len(self.chosen)

    def begin(self) -> list[tuple[int, ...]]:
        """Return the units that can be begun now, each once, in the order of their first jobs."""
        units: dict[tuple[str, str, int], list[int]] = {}
        for number in sorted(self._waits):
            if number not in self._begun and not self._waits[number]:
                job = self.jobs[number]
                units.setdefault((*job.unit, number if job.alone else -1), []).append(number)
        self._begun.update(number for unit in units.values() for number in unit)
        return [tuple(unit) for unit in units.values()]

    def end(self, number: int, *, failed: bool) -> list[int]:
        """Take in that a job has ended; return the numbers of those that are skipped because of it."""
        self._ended.add(number)
        name = self.jobs[number].name
        if not failed:
            for reader in self._readers.get(number, ()):
                self._waits[reader].discard(number)
            return []
        skipped = self._skip(self._readers.get(number, ()), f"reads the target of {name!r}, which failed")
        return skipped + self.stop(f"{name!r} failed before its turn") if self.fail_fast else skipped

    def stop(self, why: str) -> list[int]:
        """Return the numbers of all jobs that were not begun, which are skipped for this reason."""
        return self._skip(set(self.chosen) - self._begun, why)

    def _skip(self, numbers: Iterable[int], why: str) -> list[int]:
        """Skip jobs, and those that read their targets; return the numbers of all of them that were not begun."""
        found, left = [], deque((number, why) for number in sorted(numbers))
        while left:
            number, reason = left.popleft()
            if number in self._begun:
                continue
            self._begun.add(number)
            self._ended.add(number)
            self.skipped[number] = reason
            found.append(number)
            reason = f"reads the target of {self.jobs[number].name!r}, which was skipped"
            left.extend((reader, reason) for reader in sorted(self._readers.get(number, ())))
        return found


def _refuse_same_names(jobs: Sequence[PlannedJob], refusals: Refusals) -> None:
    """Refuse jobs of a table that have the name of an earlier one: they are known by it."""
    places: dict[tuple[str, str, str], str] = {}
    for job in jobs:
        key = (*job.unit, job.name)
        if key in places:
            message = f"has the name of the job at {places[key]}, {job.name!r}, on the same table"
            remedy = "Give each job of a table a name of its own"
            refusals.add(InvalidRequest(message, field=job.place, remedy=remedy))
        places.setdefault(key, job.place)


def _makers_of(jobs: Sequence[PlannedJob], refusals: Refusals) -> dict[str, list[int]]:
    """Return the numbers of the jobs that make each target; refuse those that make one which is not shared."""
    makers: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        if not job.target:
            continue
        others = makers.setdefault(job.target, [])
        if others and not (job.shared and jobs[others[0]].shared):
            message = f"has the target of {jobs[others[0]].name!r} at {jobs[others[0]].place}, {job.target}"
            refusals.add(InvalidRequest(message, field=job.place, remedy="Give each job a target of its own"))
        others.append(number)
    return makers


def _refuse_circle(jobs: Sequence[PlannedJob], makers: Mapping[str, Sequence[int]]) -> None:
    """Raise InvalidRequest if a job reads what follows from its own target, or that itself."""
    reads = {number: [maker for uri in job.reads for maker in makers.get(uri, ())] for number, job in enumerate(jobs)}
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        circle: Sequence[int] = error.args[1]
        if len(set(circle)) == 1:
            raise InvalidRequest(
                f"has the table as its target that it reads, {jobs[circle[0]].target}",
                field=jobs[circle[0]].place,
                remedy="Give it another target",
            ) from error
        named = " → ".join(jobs[number].name for number in circle)
        raise InvalidRequest(
            f"is in a circle: {named}", field=jobs[circle[0]].place, remedy="Have one of them read other tables"
        ) from error


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that is wanted, and where it is written (`jobs/sales.yaml[3]`).

    `rebuild`: the target may be rebuilt if the user agrees. `leave`: a job of this name that is there stays as it is.
    """

    request: RegisterRequest
    place: str
    rebuild: bool = False
    leave: bool = False


TAG_PREFIX = "tag:"
"""The beginning of a pattern that is of tags, as dbt writes it."""

PATTERNS_MAX = 1_000
"""Patterns of one run; more are refused."""


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A job as patterns see it."""

    name: str
    tags: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class JobSelection:
    """Patterns of jobs, as shells have them (`*`, `?`, `[ab]`), over names, or after `tag:` over tags.

    A job is selected if a pattern of `select` fits (all do where there is none), and none of `exclude` does.
    """

    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def choose(self, jobs: Sequence[NamedJob]) -> list[bool]:
        """Return for each job whether it is selected.

        Raises InvalidRequest for a pattern that fits no job: it would leave out, or run, what was not meant.
        """
        for option, patterns in (("--select", self.select), ("--exclude", self.exclude)):
            _refuse_unfit(option, patterns, jobs)
        return [
            (not self.select or _fits_any(self.select, each)) and not _fits_any(self.exclude, each) for each in jobs
        ]


def _refuse_unfit(field: str, patterns: Sequence[str], jobs: Iterable[NamedJob]) -> None:
    if len(patterns) > PATTERNS_MAX:
        raise InvalidRequest(f"is given more than {PATTERNS_MAX} times", field=field, remedy="Use wider patterns")
    jobs = tuple(jobs)
    for pattern in patterns:
        if not any(_fits(pattern, each) for each in jobs):
            raise InvalidRequest(
                f"{pattern!r:.200} fits no job of these files",
                about=field,
                remedy="Write a job's name, a pattern as in 'sales.*', or a tag as in 'tag:nightly'",
            )


def _fits_any(patterns: Iterable[str], job: NamedJob) -> bool:
    return any(_fits(pattern, job) for pattern in patterns)


def _fits(pattern: str, job: NamedJob) -> bool:
    if pattern.startswith(TAG_PREFIX):
        return any(fnmatchcase(tag, pattern.removeprefix(TAG_PREFIX)) for tag in job.tags)
    return fnmatchcase(job.name, pattern)
