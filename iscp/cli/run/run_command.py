"""`iscp run`: the jobs of files brought up to date in this process, once or for as long as it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from iscp.cli.node.node_commands import config_option
from iscp.cli.shell.arguments import TARGET, ListenType, WholeNumber, account_option, anywhere_output
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.program_end import answer_first_signal, end_at_once
from iscp.cli.shell.root_group import ExitStatus, show_error
from iscp.cli.shell.terminal import say
from iscp.cli.view.view_options import TABLE_OPTION
from iscp.model.run.run_plan import PARALLEL_DEFAULT, PARALLEL_MAX
from iscp.model.values.errors import IscpError

if TYPE_CHECKING:
    from iscp.app.local_engine import LocalEngine
    from iscp.model.run.run_plan import RunPlan, RunResult
    from iscp.standalone.local_run import LocalRun, RequestedJob, RunOrders
    from iscp.standalone.local_watch import LocalWatch

PAGE_ANYWHERE = "127.0.0.1:0"
"""The address of the page where only `--page` is given: any free port, which other machines do not reach."""

STOP_S = 20.0
"""Seconds that what is at work when a watch is ended may take to end by itself; then it ends before its next commit."""


@click.command(name="run")
@click.argument("paths", nargs=-1, required=True, type=click.Path(allow_dash=True), metavar="FILE...")
@TABLE_OPTION
@click.option("--target-root", type=TARGET, metavar="DIR", help="Views and indexes that say no target are kept in DIR.")
@click.option("--select", multiple=True, metavar="P", help="Only jobs named so, as in 'sales.*' or 'tag:nightly'.")
@click.option("--exclude", multiple=True, metavar="P", help="No jobs named so.")
@click.option(
    "--parallel",
    type=WholeNumber(1, PARALLEL_MAX),
    default=PARALLEL_DEFAULT,
    show_default=True,
    metavar="N",
    help="How many tables' jobs are run at once.",
)
@click.option("--full-refresh", is_flag=True, help="Build targets again, whatever they hold.")
@click.option("--take-over", is_flag=True, help="Take targets from the cluster that keeps them.")
@click.option("--fail-fast", is_flag=True, help="Begin no job after the first that fails.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and why, and do nothing.")
@click.option("--watch", is_flag=True, help="Stay, and follow the tables until Ctrl-C or SIGTERM.")
@click.option(
    "--page",
    type=ListenType(),
    is_flag=False,
    flag_value=PAGE_ANYWHERE,
    metavar="[HOST:PORT]",
    help="With --watch, serve a page for browsers; by default on this machine alone, at a free port.",
)
@config_option("A TOML file, as of a node, with Spark's settings, S3's and the like.", exists=True)
@account_option
@anywhere_output
def run(invocation: Invocation, /, paths: tuple[str, ...], **options: Any) -> None:
    """Bring the targets of jobs up to date, once, and end.

    FILE is what `iscp-admin apply` takes: YAML or JSON of jobs, or SQL with CREATE MATERIALIZED VIEW and CREATE …
    INDEX; or a Spark pipeline, or a manifest or project of dbt; or a directory. No cluster is needed: each target says
    how far it has come. A job comes after those whose targets it reads; where one fails, those that read it are
    skipped.

    Exit status 0; 1 if a job failed, or the files are wrong, and then nothing was begun; 6 if none failed, but rows of
    one are left out of its target; 130 after Ctrl-C: what is committed by then stays, and the next run goes on from
    there.
    """
    with end_at_once():
        from iscp.cli.run.run_output import process_of_a_run

    try:
        with process_of_a_run():
            status = _run(invocation, paths, **options)
    except IscpError as error:  # of the files, or of what was given besides: nothing was begun
        show_error(error, invocation.output)
        status = ExitStatus.FAILED
    sys.exit(status)


def _run(
    invocation: Invocation,
    paths: tuple[str, ...],
    *,
    tables: Mapping[str, str],
    target_root: str | None,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    parallel: int,
    full_refresh: bool,
    take_over: bool,
    fail_fast: bool,
    dry_run: bool,
    watch: bool,
    page: str | None,
    file: Path | None,
    account: str,
) -> int:
    with end_at_once():
        from iscp.app.local_engine import LocalEngine, local_settings
        from iscp.cli.run.run_output import show_forecasts
        from iscp.cli.view.definition_files import read_definitions
        from iscp.model.run.run_plan import JobSelection
        from iscp.standalone.local_run import RunOrders
        from iscp.system.late_imports import do_without_pandas

    if watch and (dry_run or fail_fast):
        raise click.UsageError("--watch goes with neither --dry-run nor --fail-fast")
    if page is not None and not watch:
        raise click.UsageError("--page goes with --watch alone: a run that ends has nothing to show")
    answer_first_signal(lambda number: sys.exit(128 + number))  # no job was begun: what was opened is closed
    quiet = invocation.output == "json"
    wanted = read_definitions(paths, quiet=quiet).jobs([], tables, target_root or "", account)
    orders = RunOrders(full_refresh, take_over)
    config = local_settings(file, following=watch)
    if not config.allows_foreign_code:  # which may use pandas
        do_without_pandas()
    with LocalEngine(config=config) as engine:
        jobs = engine.jobs(wanted)
        plan = engine.plan(wanted, jobs, JobSelection(select, exclude), fail_fast=fail_fast)
        if watch:
            return _watch(engine, jobs, plan, orders, page, quiet=quiet)
        if not dry_run:
            return _carry_out(engine, jobs, plan, orders, parallel, quiet=quiet)
        forecasts = engine.forecast(jobs, plan, orders)
        show_forecasts(forecasts, invocation.output)
        return ExitStatus.FAILED if any(each.action in ("refused", "skipped") for each in forecasts) else 0


def _carry_out(
    engine: LocalEngine, jobs: list[RequestedJob], plan: RunPlan, orders: RunOrders, parallel: int, *, quiet: bool
) -> int:
    from iscp.cli.run.run_output import RunLines, RunObjects, show_summary

    began_s = time.monotonic()
    listener = RunObjects() if quiet else RunLines(jobs, plan.chosen)
    run = engine.run(jobs, plan, orders, listener, parallel)
    come = _stop_by_signal(engine, run)
    results = run.run()
    if not quiet:
        show_summary(results, time.monotonic() - began_s)
    if come:
        return 128 + come[0]
    return _status_of(results)


def _status_of(results: Sequence[RunResult]) -> int:
    """Return the status of a run that nobody has ended: what failed, or else what is left out, is heard by cron."""
    if not all(each.ok for each in results):
        return ExitStatus.FAILED
    return ExitStatus.DEAD_LETTERS if any(each.dead_letters for each in results) else 0


def _watch(
    engine: LocalEngine, jobs: list[RequestedJob], plan: RunPlan, orders: RunOrders, page: str | None, *, quiet: bool
) -> int:
    from iscp.cli.run.run_output import RunObjects, WatchLines

    watch = engine.watch(jobs, plan, orders, RunObjects() if quiet else WatchLines(jobs, plan.chosen), page)
    _stop_by_signal(engine, watch)
    if not quiet:
        say(f"watching {len(plan.chosen)} jobs; Ctrl-C ends it")
    if watch.page is not None:
        say(f"  page    http://{watch.page.address}/", err=quiet)
        sys.stdout.flush()
    return 0 if watch.run(STOP_S) else ExitStatus.FAILED


def _stop_by_signal(engine: LocalEngine, run: LocalRun | LocalWatch) -> list[int]:
    """Have the first signal end the run in order, and a start of Spark that it may be waiting for; return those that
    have come.
    """

    def stop(number: int) -> None:
        run.stop()
        engine.give_up_spark()

    return answer_first_signal(stop)
