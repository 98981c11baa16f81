"""Go through a plan as a run does, and find out what it would do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from iscp.core.job.job_row import JobRow
from iscp.core.job.several_tables import tables_of
from iscp.core.run.run_forecast import BY_ALL_ROWS, Forecast, JobForecast, forecast_action
from iscp.core.run.run_plan import RunPlan
from iscp.core.values.errors import TableNotFound
from iscp.ports.source import ChangeSource, SourceRange
from iscp.runtime.local.job_registrar import JobRegistrar, RegisteredJob, RunOrders
from iscp.runtime.local.local_run import RequestedJob
from iscp.runtime.local.unit_runner import fault_words

_WRITES = (Forecast.CREATE, Forecast.UPDATE, Forecast.REBUILD, Forecast.TAKE_OVER)


def forecast_run(
    registrar: JobRegistrar, source: ChangeSource, jobs: Sequence[RequestedJob], plan: RunPlan, orders: RunOrders
) -> list[JobForecast]:
    """Return what a run would do to each chosen job, in the order of the files. Nothing is written."""
    found: dict[int, JobForecast] = {}
    written: dict[str, str] = {}
    while not plan.over:
        for number in (number for unit in plan.begin() for number in unit):
            job = jobs[number]
            upstream = [written[uri] for uri in job.planned.reads if uri in written]
            each = _forecast(registrar, source, job, orders, upstream)
            if each.action in BY_ALL_ROWS and registrar.built_by_spark(job.request):
                each = replace(each, spark=f"all rows are computed ({each.why})")
            found[number] = each
            if each.action in _WRITES:
                written[job.planned.target] = job.planned.name
            for skipped in plan.end(number, failed=each.action is Forecast.REFUSED):
                found[skipped] = _of(jobs[skipped], Forecast.SKIPPED, plan.skipped[skipped])
    return [found[number] for number in sorted(found)]


def _forecast(
    registrar: JobRegistrar, source: ChangeSource, job: RequestedJob, orders: RunOrders, upstream: Sequence[str]
) -> JobForecast:
    try:
        registered = registrar.register(job.request, orders, rebuild=job.rebuild)
        newest = {uri: source.newest(uri) for uri in _tables(registered.row)}
    except TableNotFound as error:
        if upstream:  # it is the target of a job that would be created
            return _of(job, Forecast.CREATE, f"once {', '.join(repr(each) for each in upstream)} is there")
        return _of(job, Forecast.REFUSED, fault_words(error))
    except Exception as error:  # noqa: BLE001  (one job's fault is its own)
        return _of(job, Forecast.REFUSED, fault_words(error))
    versions = _versions(registered, newest)
    action, why = forecast_action(
        registered.standing,
        versions,
        full=registered.full,
        void=registered.position.void,
        upstream=upstream,
        replaced=_replaced(registered, newest),
    )
    return _of(job, action, why, versions)


def _tables(row: JobRow) -> Iterable[str]:
    return dict.fromkeys((row.table_uri, *tables_of(row).values()))


def _versions(job: RegisteredJob, newest: Mapping[str, SourceRange]) -> dict[str, tuple[int, int]]:
    """Return for each table the version that the target is at, and the newest."""
    marks = {uri: mark.watermark.version for uri, mark in job.position.sources.items()}
    marks[job.row.table_uri] = job.applied
    return {uri: (marks.get(uri, -1), now.to.version) for uri, now in newest.items()}


def _replaced(job: RegisteredJob, newest: Mapping[str, SourceRange]) -> list[str]:
    """Return the tables that have another id than those whose rows the target has."""
    ids = {uri: mark.table_id for uri, mark in job.position.sources.items()}
    ids[job.row.table_uri] = job.position.source_id
    return [uri for uri, now in newest.items() if ids.get(uri) and ids[uri] != now.table_id]


def _of(
    job: RequestedJob, action: Forecast, why: str, versions: Mapping[str, tuple[int, int]] | None = None
) -> JobForecast:
    planned = job.planned
    return JobForecast(planned.name, planned.account, planned.reads[0], planned.target, action, why, versions or {})
