"""Composes what runs jobs in this process, without a node: no etcd, no job log, no port.

The settings of such a process are those of a node, as far as they concern jobs. Its Spark starts once it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.app.registry import ConsumerRegistry, TriggerRegistry, index_services
from iscp.app.table_access import TableAccess, check_of_targets
from iscp.cluster.requests.job_maker import JobMaker
from iscp.delta.log.commits import newest_commit
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.engine.iteration_ports import HoldPlacer, IterationPorts
from iscp.model.api.api_requests import RegisterRequest
from iscp.model.job.start_rule import VerifyReport
from iscp.model.query_plan import QueryExplanation
from iscp.model.run.run_plan import JobForecast, JobSelection, NamedJob, RunPlan, Wanted
from iscp.model.settings.config import JobLogConfig, NodeConfig, ProbeConfig, is_local_master
from iscp.model.settings.variables import sets_any
from iscp.model.spec.spec import tags_of
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import Refusals
from iscp.spark.deferred_spark import DeferredSpark, SparkAccess
from iscp.standalone.local_run import (
    JobRegistrar,
    LocalRun,
    RequestedJob,
    RunListener,
    RunOrders,
    UnitRunner,
    forecast_run,
)
from iscp.storage.dataset_trial import try_datasets_as_user
from iscp.storage.s3_settings import enter_s3
from iscp.system.child_process import Before, refuse_fork
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.small_files import scratch_directory
from iscp.system.threads import SystemClock
from iscp.views.analysis.session_analysis import SessionAnalysis

if TYPE_CHECKING:
    from iscp.schedule.runner import Runner
    from iscp.spark.session import SparkRuntime
    from iscp.standalone.local_watch import LocalWatch


# --- settings ---------------------------------------------------------------------------------------------------------

NODE_ID = "run"
"""The name that such a process goes by, as settings want one."""

_NOT_HERE = {"ISCP_NODE_ID": NODE_ID, "ISCP_LOG__URI": "/nonexistent"}
"""What a node cannot be without, and no run has."""

DEFAULTS = NodeConfig(node_id=NODE_ID, log=JobLogConfig(uri=""))
"""The settings where none are given."""


FOLLOWING = replace(DEFAULTS, probe=ProbeConfig(interval_min_s=1.0, interval_max_s=10.0))
"""The settings where none are given of a process that follows its tables: nobody notifies it, as writers do a node."""


def local_settings(
    file: Path | None, environ: Mapping[str, str] = os.environ, *, following: bool = False
) -> NodeConfig:
    """Return the settings of `file`, if there is one, and of the variables. Raises ConfigurationError."""
    if file is None and not sets_any(environ):
        return FOLLOWING if following else DEFAULTS  # at once: pydantic is not loaded
    from iscp.app.settings import check_files, load_settings

    return check_files(load_settings(file, {**environ, **_NOT_HERE}), environ)


# --- Spark ------------------------------------------------------------------------------------------------------------


class LocalSpark:
    """Starts Spark in a temporary directory, and removes that at the end."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._closing = ExitStack()

    def deferred(self) -> DeferredSpark:
        """Return Spark that has not started."""
        local = is_local_master(self._config.spark.master)
        spark = DeferredSpark(lambda: self._start(lambda: spark.given_up), local=local)
        return spark

    def _start(self, given_up: Callable[[], bool]) -> SparkRuntime:
        from iscp.app.settings import spark_settings
        from iscp.spark.session import SparkRuntime

        work_dir = self._closing.enter_context(scratch_directory("iscp-run-"))
        return SparkRuntime.start(spark_settings(self._config, work_dir), given_up)

    def close(self) -> None:
        """Remove what Spark has left, once it has stopped."""
        self._closing.close()


# --- the engine -------------------------------------------------------------------------------------------------------


class LocalEngine:
    """All that jobs need to be run in this process. `close` it at the end; then it refuses whatever is wanted of it.

    All methods raise InvalidRequest in a fork of a process that has read tables.
    """

    def __init__(self, spark: SparkAccess | None = None, config: NodeConfig = DEFAULTS) -> None:
        """Make one on `spark`, which `close` stops in the way that it is to be stopped; None: on one of its own.

        Raises ConfigurationError.
        """
        self._closed = False
        try_datasets_as_user()
        enter_s3(config.storage.s3)  # before the JVM and other children: they inherit it
        own = LocalSpark(config) if spark is None else None
        self._closing = ExitStack()
        self._deferred: DeferredSpark | None = None
        if own is not None:
            self._closing.callback(own.close)
            self._deferred = spark = own.deferred()
        assert spark is not None
        self._spark, self._config = spark, config
        self._closing.callback(spark.stop)
        self._clock, failpoints = SystemClock(), EnvironmentFailpoints()
        tables = TableAccess(spark, self._clock, failpoints, config.spark.direct_bytes_max)
        self._source = source = tables.source()
        self._indexes = cache(lambda: index_services(config, self._clock, failpoints, awaited=True))
        self._closing.callback(self._end_maintenance)
        registry = ConsumerRegistry(config.consumers.allow, self._indexes)
        self._kinds = registry.kind
        self._catalog = catalog = DeltaCatalog.of(spark.root, SessionAnalysis(spark.root), s3=config.storage.s3.used)
        ports = IterationPorts(
            engine=tables.engine(),
            source=source,
            kinds=registry.kind,
            environment=tables.sinks(source, check_of_targets(spark, ())),
            clock=self._clock,
            failpoints=failpoints,
            epoch=lambda: 0,
            holds=HoldPlacer(tables.holds(source)),
        )
        check_trigger = TriggerRegistry(config.triggers.allow).check
        self._maker = JobMaker(catalog, registry.kind, check_trigger, self._clock)
        self._registrar = JobRegistrar(self._maker, registry.kind, ports, self._clock, newest_commit)
        self._ports, self._tables = ports, tables

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def jobs(self, wanted: Sequence[Wanted]) -> list[RequestedJob]:
        """Return the jobs with what they read and make.

        Raises InvalidRequest, with the places of all that are at fault.
        """
        self._require_usable()
        refusals, found = Refusals(), list[RequestedJob]()
        for each in wanted:
            with refusals.collect():
                found.append(self._requested(each))
        refusals.raise_all()
        return found

    def plan(
        self,
        wanted: Sequence[Wanted],
        jobs: Sequence[RequestedJob],
        selection: JobSelection,
        *,
        fail_fast: bool,
    ) -> RunPlan:
        """Return the plan of the jobs that are selected. Raises InvalidRequest for a circle, a target that two jobs
        have, and a pattern that fits no job.
        """
        requests = [each.request for each in wanted]
        chosen = selection.choose([NamedJob(each.job.name, tags_of(each.spec_json)) for each in requests])
        numbers = {number for number, taken in enumerate(chosen) if taken}
        return RunPlan([each.planned for each in jobs], numbers, fail_fast)

    def run(
        self,
        jobs: Sequence[RequestedJob],
        plan: RunPlan,
        orders: RunOrders,
        listener: RunListener,
        parallel: int,
    ) -> LocalRun:
        """Return a run of the plan, which `LocalRun.run` carries out."""
        self._require_usable()
        return LocalRun(self._registrar, self._units(), jobs, plan, orders, listener, parallel)

    def watch(
        self,
        jobs: Sequence[RequestedJob],
        plan: RunPlan,
        orders: RunOrders,
        listener: RunListener,
        page: str | None = None,
    ) -> LocalWatch:
        """Return a watch of the plan's jobs, which `LocalWatch.run` carries out, once.

        `page` is the HOST:PORT at which it is seen; its port is taken already. Raises ConfigurationError.
        """
        self._require_usable()
        from iscp.app.watch_page import compose_watch  # a run that ends needs none of it
        from iscp.standalone.local_watch import LocalWatch

        parts = compose_watch(self._config, self._spark, self._tables, self._ports, self._registrar, self._kinds)
        if page is None:
            return LocalWatch(parts, jobs, plan, orders, listener)
        from iscp.app.watch_page import PageTools, open_page

        chosen = {number: jobs[number] for number in plan.chosen}
        tools = PageTools(self._kinds, self._catalog, self.explain, self._indexes)
        opened = open_page(page, self._config, parts, chosen, tools, self._clock)
        return LocalWatch(parts, jobs, plan, orders, listener, opened)

    def forecast(self, jobs: Sequence[RequestedJob], plan: RunPlan, orders: RunOrders) -> list[JobForecast]:
        """Return what a run of the plan would do. Nothing is written."""
        self._require_usable()
        return forecast_run(self._registrar, self._source, jobs, plan, orders)

    def verify(self, request: RegisterRequest, *, repair: bool = False) -> VerifyReport:
        """Compare a job's target with its source, and with `repair` make it equal. Raises IscpError."""
        self._require_usable()
        row = self._registrar.register(request, RunOrders()).row
        if row.watermark.version < 0:
            raise InvalidRequest(
                f"{row.key.job_name!r} has not been built", about="job", remedy="Refresh it, then verify"
            )
        return self._units().verify(row, repair=repair)

    def explain(self, request: RegisterRequest) -> QueryExplanation:
        """Explain how a view's query is maintained. Raises InvalidRequest."""
        self._require_usable()
        return self._maker.explain(request.spec_json, request.job.account)

    def give_up_spark(self) -> None:
        """Have nothing start Spark from now on, and end a start that is under way: this is to be closed soon.

        From any thread, or a handler of a signal.
        """
        if self._deferred is not None:
            self._deferred.give_up()

    def close(self) -> None:
        """End the maintenance of indexes, and stop Spark, if it was started for this."""
        self._closed = True
        self._closing.close()

    def _units(self) -> UnitRunner:
        return UnitRunner(self._runner, self._source, self._clock, self._kinds)

    def _runner(self) -> Runner:
        from iscp.schedule.runner import Runner  # a run with nothing to do has no iteration

        return Runner(self._ports, self._config.bounds)

    def _end_maintenance(self) -> None:
        for end in self._indexes().closing if self._indexes.cache_info().currsize else ():
            end()

    def _require_usable(self) -> None:
        if self._closed:
            raise InvalidRequest("is closed", field="lake", remedy="Use it before, or make another by iscp.local()")
        refuse_fork("lake", Before.TABLES, Before.INDEXES)

    def _requested(self, wanted: Wanted) -> RequestedJob:
        try:
            planned = self._registrar.plan(wanted.request, wanted.place)
        except InvalidRequest as error:
            field = f"{wanted.place}.{error.field}".rstrip(".")
            raise InvalidRequest.from_error(error, field=field, code=error.code) from error
        return RequestedJob(wanted.request, planned, wanted.rebuild)
