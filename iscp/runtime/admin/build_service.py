"""Requests about builds, answered by the owner from what its builder knows (port BuildAdmin)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from iscp.coordination.jobs.job_book import JobBook
from iscp.core.api.api_requests import ChangeOutcome, ChangeVerb, JobChange, JobName
from iscp.core.build.api_builds import BuildStage, BuildView
from iscp.core.build.build_changes import (
    builds_of,
    priority_to_be_next,
    ranges_after_merge,
    ranges_after_split,
    ranges_to_merge,
    ranges_to_split,
)
from iscp.core.build.build_progress import JobBuild, KnownBuilds, build_views
from iscp.core.values.errors import InvalidRequest, IscpError
from iscp.ports.catalog import Catalog
from iscp.ports.system import Clock
from iscp.runtime.admin.job_lookup import JobLookup
from iscp.runtime.owner.owner_loop import OwnerLoop


class TermBuilds(Protocol):
    """The builder of the owner's term, for all threads.

    Raises NotOwner between terms, Unavailable until it knows what etcd has. Changes of several ranges are taken
    together, for all jobs of the table, or refused together: InvalidRequest.
    """

    def known(self) -> KnownBuilds: ...

    def split(self, table_id: str, ranges: Sequence[int]) -> None: ...

    def merge(self, table_id: str, ranges: Sequence[int]) -> None:
        """Put the halves of each of these ranges together."""

    def prioritize(self, table_id: str, priority: int) -> None: ...


class OwnerBuilds:
    """One change at a time, each validated by what is known of builds; `change_jobs` pauses jobs, as users do."""

    def __init__(
        self,
        owner: OwnerLoop,
        catalog: Catalog,
        builder: TermBuilds,
        change_jobs: Callable[[Sequence[JobChange]], Sequence[ChangeOutcome]],
        clock: Clock,
    ) -> None:
        self._owner = owner
        self._lookup = JobLookup(catalog)
        self._builder = builder
        self._change_jobs = change_jobs
        self._clock = clock
        # Validated by what the one before has changed.
        self._lock = threading.Lock()

    def builds(self, table: str, account: str = "") -> list[BuildView]:
        table_ids = self._table_ids(table, account) if table else None
        known = self._builder.known()
        wanted = [
            each
            for each in known.jobs
            if (table_ids is None or each.plan.table_id in table_ids) and account in ("", each.plan.account)
        ]
        return build_views(KnownBuilds(tuple(wanted), known.running), self._names(wanted), self._clock.now_s())

    def abort(self, job: JobName) -> int:
        with self._lock:
            builds = self._builds(job.table, job.account if job.name else "")
            builds = [each for each in builds if not job.name or _is_of(each, job)]
            unfinished = [each for each in builds if each.stage is not BuildStage.PUBLISHING]
            if not unfinished:
                raise self._nothing_to_abort(job, bool(builds))
            for outcome in self._change_jobs([_pause(each) for each in unfinished]):
                if isinstance(outcome, IscpError):
                    raise outcome
        return sum(not task.aborted for each in unfinished for task in each.tasks)

    def prioritize(self, table: str) -> bool:
        with self._lock:
            table_ids = self._table_ids(table)
            known = self._builder.known()
            builds_of(known, table, table_ids)
            wanted = priority_to_be_next(known, table_ids)
            if wanted is not None:
                self._builder.prioritize(*wanted)
            return wanted is not None

    def split(self, table: str, range_id: int) -> int:
        with self._lock:
            builds = self._builds_of_one(table)
            ranges = ranges_to_split(builds, range_id)
            self._builder.split(builds[0].plan.table_id, ranges)
            return len(ranges_after_split(builds, ranges))

    def merge(self, table: str, range_id: int) -> int:
        with self._lock:
            builds = self._builds_of_one(table)
            ranges = ranges_to_merge(builds, range_id)
            self._builder.merge(builds[0].plan.table_id, ranges)
            return len(ranges_after_merge(builds, ranges))

    def _table_ids(self, table: str, account: str = "") -> tuple[str, ...]:
        return self._lookup.table_ids(self._owner.current_writer(), table, account)

    def _builds(self, table: str, account: str = "") -> list[JobBuild]:
        table_ids = self._table_ids(table, account)
        return [each for each in self._builder.known().jobs if each.plan.table_id in table_ids]

    def _builds_of_one(self, table: str) -> list[JobBuild]:
        """Raises InvalidRequest where nothing of it is being built, or it is several tables."""
        builds = builds_of(self._builder.known(), table, self._table_ids(table))
        table_ids = dict.fromkeys(each.plan.table_id for each in builds)
        if len(table_ids) > 1:
            raise InvalidRequest(
                f"{table} was dropped and recreated, and each is being built: {', '.join(table_ids)}",
                about="table",
                remedy="Name the id of the one that is meant",
            )
        return builds

    def _names(self, builds: Sequence[JobBuild]) -> Mapping[str, str]:
        """Return the users' names of the tables, by id, if they still have jobs."""
        job_ids = {each.plan.table_id: each.plan.job_id for each in builds}

        def read(book: JobBook) -> dict[str, str]:
            rows = {table_id: book.by_id(job_id) for table_id, job_id in job_ids.items()}
            return {table_id: row.table_name for table_id, row in rows.items() if row is not None}

        found: dict[str, str] = self._owner.current_writer().read(read)
        return found

    def _nothing_to_abort(self, job: JobName, staged: bool) -> IscpError:
        """Raises JobNotFound."""
        if job.name:
            self._lookup.row(self._owner.current_writer(), job)
        what = f"job {job.name!r} on {job.table}" if job.name else job.table
        why = "is staged as a whole, and about to be published" if staged else "is not being built"
        return InvalidRequest(
            f"{what} {why}",
            about="job" if job.name else "table",
            remedy="See `iscp-admin build list`; `iscp-admin job pause` stops a job in any case",
        )


def _is_of(build: JobBuild, job: JobName) -> bool:
    return (build.plan.job_name, build.plan.account) == (job.name, job.account)


def _pause(build: JobBuild) -> JobChange:
    plan = build.plan
    return JobChange(ChangeVerb.PAUSE, JobName(plan.table_id, plan.job_name, plan.account))
