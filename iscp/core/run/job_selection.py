"""Choose the jobs of files that a run is about, by their names and tags."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from iscp.core.values.errors import InvalidRequest

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
        for field, patterns in (("--select", self.select), ("--exclude", self.exclude)):
            _refuse_unfit(field, patterns, jobs)
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
