"""How many of TPC's queries are kept by what changed: `python -m benchmarks.view_share [--json]`.

Of the 22 queries of TPC-H and the 99 of TPC-DS each is planned as a view, over tables without rows.
`incremental_share` is the part of those that are accepted and have no operator that reads all of its input again where
that changes, or the value of a subquery in it, but for what is above a kept input (ADR 30). A condition on such a value
may look through one table.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.progress import report_progress
from iscp.model.query_plan import reads_all_again
from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime, SparkSettings
from iscp.views.analysis.query_analysis import analyze_query
from iscp.views.catalyst.plan_tree import stored_input
from tests.fakes.tpc import QUERIES, Tpc
from tests.quick_spark import QUICKER_CONF

AIM = 0.9


def plan(runtime: SparkRuntime, tpc: Tpc, number: int) -> str:
    """Empty: it is incremental; else why it is not."""
    session = runtime.new_session()
    sql, tables = tpc.query(number)
    schemas = {name: session.createDataFrame(tpc.rows(name).slice(0, 1)).schema.json() for name in tables}
    try:
        root = analyze_query(session, sql, schemas).root
    except InvalidRequest as error:
        return f"refused: {error.message}"
    kept = stored_input(root)
    whole = {operator.kind.value for _, operator in (kept or root).operator.walk() if reads_all_again(operator)}
    return f"as a whole: {', '.join(sorted(whole))}" if whole else ""


def run(runtime: SparkRuntime, suites: Sequence[str]) -> dict[str, Any]:
    made = {suite: Tpc(suite) for suite in suites}
    reasons: dict[str, str] = {}
    for suite in suites:
        for number in QUERIES[suite]:
            reasons[f"{suite} {number}"] = plan(runtime, made[suite], number)
        incremental = sum(not reason for reason in reasons.values())
        report_progress(suite, queries=len(reasons), incremental=incremental)
    share = round(sum(not reason for reason in reasons.values()) / len(reasons), 3)
    return {
        "queries": len(reasons),
        "accepted": sum(not reason.startswith("refused") for reason in reasons.values()),
        "incremental_share": share,
        "others": {name: reason for name, reason in reasons.items() if reason},
        "aims": [{"aim": f"incremental_share >= {AIM}", "measured": share, "met": share >= AIM}],
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--suite", "suites", multiple=True, type=click.Choice(list(QUERIES)), help="Only this; by default both.")
def main(as_json: bool, suites: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="iscp-view-share-") as root:
        runtime = SparkRuntime.start(SparkSettings(work_dir=Path(root), conf=QUICKER_CONF))
        try:
            found = run(runtime, suites or tuple(QUERIES))
        finally:
            runtime.stop()
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"{found['accepted']} of {found['queries']} are accepted, {found['incremental_share']} are incremental")
    for name, reason in found["others"].items():
        click.echo(f"{name}: {reason}")


if __name__ == "__main__":
    main()
