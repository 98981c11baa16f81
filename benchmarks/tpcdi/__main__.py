"""Run the benchmark, and print its figures."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks.tpcdi.contest import BATCHES, Contest, Turn
from benchmarks.tpcdi.source_rows import SourceRows
from benchmarks.tpcdi.warehouse import VIEWS

SLOWER = 1.2
FULL = "full"


def figures_of(turns: Mapping[str, Mapping[str, Turn]]) -> dict[str, Any]:
    """The figures of the batches after the first load."""
    found: dict[str, Any] = {}
    batches = {name: {view: _view(view, each) for view in each["iscp"].views} for name, each in turns.items()}
    for name in batches:
        ours, spark, ducks = (turns[name][engine] for engine in ("iscp", "spark", "duckdb"))
        found |= {
            f"{name}_cpu_ratio_spark": round(ours.cpu_s / spark.cpu_s, 3),
            f"{name}_clock_ratio_spark": round(ours.clock_s / spark.clock_s, 3),
            f"{name}_cpu_ratio_duckdb": round(ours.cpu_s / ducks.cpu_s, 3),
            f"{name}_ratio_duckdb": round(ours.clock_s / ducks.clock_s, 3),
            name: {engine: _times(turn) for engine, turn in turns[name].items()} | {"views_below": len(spark.views)},
        }
    known = [(f"{name} {view}", each) for name, views in batches.items() for view, each in views.items()]
    slower = {name: each["ratio"] for name, each in known if each["ratio"] > SLOWER}
    return {
        **found,
        "views_refreshed": len(known),
        "views_by_changes": sum(each["strategy"] != FULL for _, each in known),
        "views_by_spark": sum(bool(each["spark"]) for _, each in known),
        "view_median_ratio": round(statistics.median(each["ratio"] for _, each in known), 3),
        "slower_views": len(slower),
        "slower": slower,
        "refreshes": batches,
    }


def _times(turn: Turn) -> dict[str, float]:
    return {"clock_s": round(turn.clock_s, 2), "cpu_s": round(turn.cpu_s, 2)}


def _view(name: str, turns: Mapping[str, Turn]) -> dict[str, Any]:
    """What iscp did to a view, and the seconds of a recomputation."""
    ours = turns["iscp"].views[name]
    spark_s, duckdb_s = (turns[engine].views[name]["seconds"] for engine in ("spark", "duckdb"))
    return {
        **{field: ours[field] for field in ("strategy", "reason", "rows_read", "rows", "spark")},
        "seconds": round(ours["seconds"], 3),
        "spark_s": round(spark_s, 3),
        "duckdb_s": round(duckdb_s, 3),
        "ratio": round(ours["seconds"] / spark_s, 3),
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--trades", default=20_000, show_default=True, type=click.IntRange(100), help="Trades of the first load.")
@click.option("--share", default=0.01, show_default=True, type=click.FloatRange(0.0001, 0.5), help="Of a batch.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of all rows.")
def main(as_json: bool, trades: int, share: float, seed: int) -> None:
    """Measure batches of a warehouse."""
    rows = SourceRows(trades, share, seed)
    with tempfile.TemporaryDirectory(prefix="iscp-tpcdi-") as root:
        contest = Contest(Path(root), rows)
        turns = contest.run()
    if contest.wrong:
        raise click.ClickException(f"views with other rows than a recomputation has, and how many: {contest.wrong}")
    found = {"benchmark": "tpcdi", "trades": trades, "share": share, "views": len(VIEWS), **figures_of(turns)}
    if as_json:
        click.echo(json.dumps(found))
        return
    for name in (f"batch{number}" for number in BATCHES):
        click.echo(f"{name}: {found[name]}")
        for view, each in found["refreshes"][name].items():
            click.echo(
                f"  {view}: {each['strategy']}, {each['seconds']} s, {each['ratio']} of Spark's ({each['reason']})"
            )
    click.echo("\n".join(f"{name}: {value}" for name, value in found.items() if not isinstance(value, dict)))


if __name__ == "__main__":
    main()
