"""`iscp.local`: the same jobs as a cluster's, in one's own program and on any SparkSession.

The target of such a job is brought up to date when the program says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from iscp.app.local_engine import LocalEngine, local_settings
from iscp.cli.shell.arguments import absolute_table, absolute_target
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.job.start_rule import VerifyReport
from iscp.model.query_plan import QueryExplanation
from iscp.model.run.run_plan import (
    PARALLEL_DEFAULT,
    PARALLEL_MAX,
    JobForecast,
    JobSelection,
    RunPlan,
    RunResult,
    Wanted,
)
from iscp.model.spec.spec import RunFields, to_spec_json
from iscp.model.spec.spec_parsing import ViewFields
from iscp.model.values.errors import ErrorCode, InvalidRequest, JobFailed
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.model.values.untrusted_values import require_seconds
from iscp.standalone.local_run import RunListener, RunOrders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iscp.standalone.local_run import RequestedJob


Around = Callable[[], AbstractContextManager[None]]
"""A function that returns the context within which work is done on the caller's thread."""


class LocalJob:
    """A job on one table, with one target. What it has to know is in the target: nothing is kept anywhere else."""

    def __init__(self, engine: LocalEngine, wanted: Wanted, around: Around) -> None:
        self._engine = engine
        self._wanted = wanted
        self._around = around

    @property
    def name(self) -> str:
        return self._wanted.request.job.name

    def __repr__(self) -> str:
        return f"<iscp job {self.name!r} on {self._wanted.request.job.table}>"

    def refresh(self, *, full: bool = False, take_over: bool = False) -> RunResult:
        """Bring the target to the newest version of its tables, and return what was done.

        The target is made if it is not there. `full`: its rows are built again from all rows of its tables.
        `take_over`: it may be taken from the cluster that keeps it. Raises JobFailed with the fault's code and remedy;
        what was committed before that stays.
        """
        with self._around():
            jobs, plan = self._planned()
            (result,) = self._engine.run(jobs, plan, RunOrders(full, take_over), RunListener(), 1).run()
        if not result.ok:
            raise JobFailed(result.error, code=ErrorCode(result.error_code))
        return result

    def forecast(self, *, full: bool = False, take_over: bool = False) -> JobForecast:
        """Return what `refresh` would do, and why. Nothing is written."""
        with self._around():
            jobs, plan = self._planned()
            (found,) = self._engine.forecast(jobs, plan, RunOrders(full, take_over))
        return found

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Compare the target with its tables at the version that it is at, row by row; with `repair` make it equal.

        Raises IscpError where they cannot be compared.
        """
        with self._around():
            return self._engine.verify(self._wanted.request, repair=repair)

    def explain(self) -> QueryExplanation:
        """Return how a view's query is kept, operator by operator. Raises InvalidRequest for other jobs."""
        with self._around():
            return self._engine.explain(self._wanted.request)

    def _planned(self) -> tuple[list[RequestedJob], RunPlan]:
        jobs = self._engine.jobs([self._wanted])
        return jobs, self._engine.plan([self._wanted], jobs, JobSelection(), fail_fast=False)


def local(spark: SparkSession | None = None, *, config: str | Path | None = None) -> Lake:
    """Return a Lake whose jobs run in this process, and whose Spark starts by itself, once something needs it.

    With `spark`, a session of yours, they run in its SparkContext, in sessions of their own: nothing of yours is
    changed, and `close` leaves it running. `config` is a TOML file as of a node: Spark's and S3's settings, consumers
    and embedders. Raises ConfigurationError, and InvalidRequest with all that the session lacks, and with the lines
    that add it (`iscp.spark_conf`).
    """
    settings = local_settings(Path(config) if config is not None else None)
    if spark is None:
        return Lake(LocalEngine(config=settings))
    from iscp.spark.given_spark import GivenSpark

    given = GivenSpark(spark)
    with given.leaving_unchanged():
        return Lake(LocalEngine(given, settings), given.leaving_unchanged)


class Lake:
    """Makes jobs, and runs those of files. Threads may share one. Close it, or use it in a `with`, to stop its Spark.

    A Lake that was closed, and one in a fork of a process that has read tables, refuses whatever is wanted of it.

    Places are paths, which may be relative, URIs, or `db.table` of a catalog of Spark.
    """

    def __init__(self, engine: LocalEngine, around: Around = nullcontext) -> None:
        """Make one whose work is done within `around`."""
        self._engine = engine
        self._around = around

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop Spark, if it was started for this."""
        self._engine.close()

    def replica(
        self,
        table: str,
        target: str,
        *,
        key: Sequence[str] = (),
        columns: Sequence[str] = (),
        where: str = "",
        name: str = "",
        **run: Unpack[RunFields],
    ) -> LocalJob:
        """Return a replica: the rows of `table` by their `key`, or, without one, every row that was ever inserted."""
        return self.job(table, target, "replica", key=key, columns=columns, where=where, name=name, **run)

    def changefeed(
        self,
        table: str,
        target: str,
        *,
        key: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        name: str = "",
        **run: Unpack[RunFields],
    ) -> LocalJob:
        """Return a feed of the table's changes in their order, a Delta table too."""
        return self.job(table, target, "changefeed", key=key, options=options, name=name, **run)

    def index(
        self,
        table: str,
        target: str,
        kind: str,
        *,
        key: Sequence[str],
        options: Mapping[str, Any],
        name: str = "",
        **run: Unpack[RunFields],
    ) -> LocalJob:
        """Return an index of one of the kinds fulltext, vector and search, which `iscp.search` searches."""
        return self.job(table, target, kind, key=key, options=options, name=name, **run)

    def view(
        self,
        name: str,
        sql: str,
        *,
        target: str,
        tables: Mapping[str, str],
        refresh: str = "",
        deletion_vectors: bool = True,
        waits_for: float | None = None,
        **run: Unpack[RunFields],
    ) -> LocalJob:
        """Return a materialized view. `tables` has the place of each table in the query.

        `refresh`, `deletion_vectors` and `waits_for` mean the same as in `Client.create_view`.
        """
        places = {table: absolute_table(place) for table, place in tables.items()}
        waits_for_s = None if waits_for is None else require_seconds(waits_for, "waits_for")
        place = absolute_target(target)
        fields = ViewFields(sql, places, place, refresh, run, deletion_vectors, waits_for_s=waits_for_s)
        return self._job(fields.table, name, fields.spec_json())

    def job(
        self,
        table: str,
        target: str,
        consumer: str,
        *,
        key: Sequence[str] = (),
        columns: Sequence[str] = (),
        where: str = "",
        options: Mapping[str, Any] | None = None,
        name: str = "",
        **run: Unpack[RunFields],
    ) -> LocalJob:
        """Return a job of any kind of consumer, also one of yours. Its name is the last part of its target's place by
        default.
        """
        _refuse_one_text(key=key, columns=columns)
        place = absolute_target(target)
        fields = {"consumer": consumer, "target": place or None, "key": list(key) or None}
        more = {"columns": list(columns) or None, "where": where or None, "options": options}
        name = name or place.rstrip("/").rpartition("/")[2]
        return self._job(absolute_table(table), name, to_spec_json({**fields, **more, **run}))

    def run(
        self,
        *files: str | Path,
        tables: Mapping[str, str] | None = None,
        target_root: str = "",
        account: str = DEFAULT_ACCOUNT,
        select: Sequence[str] = (),
        exclude: Sequence[str] = (),
        parallel: int = PARALLEL_DEFAULT,
        full_refresh: bool = False,
        take_over: bool = False,
        fail_fast: bool = False,
    ) -> list[RunResult]:
        """Bring the jobs of files up to date, as `iscp run` does, and return a result for each.

        A job that fails is a result that is not `ok`; it does not raise. Raises InvalidRequest, with all faults, if the
        files are wrong: nothing was begun then.
        """
        if not 1 <= parallel <= PARALLEL_MAX:
            raise InvalidRequest(
                f"is {parallel!r:.20}", field="parallel", remedy=f"Write a number from 1 to {PARALLEL_MAX}"
            )
        with self._around():
            jobs, plan = self._read(files, tables or {}, target_root, account, select, exclude, fail_fast=fail_fast)
            return self._engine.run(jobs, plan, RunOrders(full_refresh, take_over), RunListener(), parallel).run()

    def forecast(
        self,
        *files: str | Path,
        tables: Mapping[str, str] | None = None,
        target_root: str = "",
        account: str = DEFAULT_ACCOUNT,
        select: Sequence[str] = (),
        exclude: Sequence[str] = (),
        full_refresh: bool = False,
        take_over: bool = False,
    ) -> list[JobForecast]:
        """Return what `run` would do to each job, and why. Nothing is written."""
        with self._around():
            jobs, plan = self._read(files, tables or {}, target_root, account, select, exclude, fail_fast=False)
            return self._engine.forecast(jobs, plan, RunOrders(full_refresh, take_over))

    def _read(
        self,
        files: Sequence[str | Path],
        tables: Mapping[str, str],
        target_root: str,
        account: str,
        select: Sequence[str],
        exclude: Sequence[str],
        *,
        fail_fast: bool,
    ) -> tuple[list[RequestedJob], RunPlan]:
        from iscp.cli.view.definition_files import read_definitions

        _refuse_one_text(select=select, exclude=exclude)
        if not files:
            raise InvalidRequest("are not given", field="files", remedy="Name at least one file of jobs")
        places = {name: absolute_table(place) for name, place in tables.items()}
        root = absolute_target(target_root)
        wanted = read_definitions([str(each) for each in files], quiet=True).jobs([], places, root, account)
        jobs = self._engine.jobs(wanted)
        selection = JobSelection(tuple(select), tuple(exclude))
        return jobs, self._engine.plan(wanted, jobs, selection, fail_fast=fail_fast)

    def _job(self, table: str, name: str, spec_json: str) -> LocalJob:
        wanted = Wanted(RegisterRequest(JobName(table, name), spec_json), "job")
        return LocalJob(self._engine, wanted, self._around)


def _refuse_one_text(**lists: Sequence[str]) -> None:
    """Raise InvalidRequest for a text where a list is due: its letters would be taken for the parts of the list."""
    for name, given in lists.items():
        if isinstance(given, str):
            raise InvalidRequest(f"is the text {given!r:.200}", field=name, remedy=f"Write a list, as {name}=[…]")
