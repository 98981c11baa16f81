"""`--sort-by`: jobs in the order of a field that `-o json` shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from iscp.cli.shell import render
from iscp.cli.shell.completion import beginning
from iscp.cli.shell.json_path import Step, parse_path, values_at
from iscp.core.api.api_views import JobView
from iscp.core.job.job_row import JobStatus


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """An order by the value at `path` in a job's row, the greatest first if `descending`."""

    path: tuple[Step, ...]
    descending: bool


class SortType(click.ParamType):  # type: ignore[type-arg]
    name = "field"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Order:
        if isinstance(value, Order):
            return value
        try:
            return Order(parse_path(value.removeprefix("-")), value.startswith("-"))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [each.name for each in dataclasses.fields(JobView)]
        names += [f"status.{each.name}" for each in dataclasses.fields(JobStatus)]
        return beginning(incomplete, names)


def sorted_jobs(jobs: Sequence[JobView], order: Order) -> list[JobView]:
    """Return the jobs in order; those without a value there come last. Raises click.UsageError if no job has one."""
    keyed = [(job, _value(job, order)) for job in jobs]
    known = [(job, value) for job, value in keyed if value is not None]
    if jobs and not known:
        raise click.UsageError("--sort-by: no job has such a field; see `iscp-admin job list -o json`")
    # Numbers before texts, if a field of specs holds both.
    known.sort(key=lambda each: (isinstance(each[1], str), each[1]), reverse=order.descending)
    return [job for job, _ in known] + [job for job, value in keyed if value is None]


def _value(job: JobView, order: Order) -> float | str | None:
    try:
        found = values_at(render.job_row(job), order.path)
    except LookupError:
        return None
    value = found[0] if len(found) == 1 else None
    return value if isinstance(value, (int, float, str)) else None
