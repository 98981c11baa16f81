"""`python -m benchmarks.propagation [--json]`; `--table FILE` makes tables of what it printed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.propagation.child_driver import DuckdbDriver, SparkDriver, StreamingDriver
from benchmarks.propagation.contest import Contest, MakeDriver, figures_of
from benchmarks.propagation.history import History, Step
from benchmarks.propagation.iscp_driver import IscpDriver
from benchmarks.propagation.machine import describe_machine
from benchmarks.propagation.medallion import FEW, Kind, chosen
from benchmarks.propagation.table import place_into, render

DRIVERS = ("iscp", "streaming", "spark", "duckdb")
_FILE = click.Path(exists=True, path_type=Path)
STEPS = [step.value for step in Step if step is not Step.FIRST]


def makers(names: tuple[str, ...], nodes: int, batch_interval_s: float) -> Mapping[str, MakeDriver]:
    """Return how to make each driver."""
    known: Mapping[str, MakeDriver] = {
        "iscp": partial(IscpDriver, nodes=nodes),
        "streaming": partial(StreamingDriver, options={"interval_s": batch_interval_s}),
        "spark": SparkDriver,
        "duckdb": DuckdbDriver,
    }
    return {name: known[name] for name in names}


def measure(names: tuple[str, ...], steps: tuple[str, ...], few: bool, idle_s: float, **size: Any) -> dict[str, Any]:
    """Play all steps; the figures, with the machine and the size of what was played."""
    derived = chosen(FEW if few else ())
    machine, at = describe_machine(), datetime.now(UTC)
    history = History.draw(size["days"], size["trips"], size["rounds"], size["seed"])
    with tempfile.TemporaryDirectory(prefix="iscp-propagation-") as folder:
        made = makers(names, size["nodes"], size["batch_interval_s"])
        contest = Contest(Path(folder), history, derived, made, idle_s)
        figures = figures_of(contest.run([Step(step) for step in steps]))
    drivers = {name: {**each, "steps": figures[name]} for name, each in contest.describe_drivers().items()}
    return {
        "benchmark": "propagation",
        "at": f"{at:%Y-%m-%d}",
        "machine": machine,
        "size": {**size, "idle_s": idle_s},
        "views": sum(each.kind is Kind.VIEW for each in derived),
        "derived": len(derived),
        "drivers": drivers,
    }


@click.command()
@click.option("--driver", "names", multiple=True, type=click.Choice(DRIVERS), help="Only this; by default all.")
@click.option("--step", "steps", multiple=True, type=click.Choice(STEPS), help="Only this; by default all.")
@click.option("--few", is_flag=True, help="Few derived tables instead of all.")
@click.option("--days", type=click.IntRange(1, 300), default=14, show_default=True, help="Of flights, at first.")
@click.option("--trips", type=click.IntRange(1_000), default=20_000, show_default=True, help="At first.")
@click.option("--rounds", type=click.IntRange(1, 60), default=3, show_default=True, help="Of each step.")
@click.option("--seed", type=click.IntRange(0), default=43, show_default=True, help="Of trips and changes.")
@click.option("--nodes", type=click.IntRange(1), default=2, show_default=True, help="Of iscp.")
@click.option("--batch-interval-s", type=click.FloatRange(0), default=1.0, show_default=True, help="Of streaming.")
@click.option("--idle-s", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Without any change.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--table", "made", multiple=True, type=_FILE, help="Measure nothing: a run's JSON.")
@click.option("--into", type=_FILE, help="The document that gets the tables.")
def main(
    names: tuple[str, ...],
    steps: tuple[str, ...],
    as_json: bool,
    made: tuple[Path, ...],
    into: Path | None,
    **size: Any,
) -> None:
    """Measure how changes propagate, or make tables of what was measured."""
    if not made:
        runs = [measure(names or DRIVERS, steps or tuple(STEPS), **size)]
        click.echo(json.dumps(runs[0]) if as_json else render(runs[0]))
    else:
        runs = [json.loads(each.read_text()) for each in made]
    if into is not None:
        place_into(into, runs)
    elif made:
        click.echo("\n".join(map(render, runs)))


if __name__ == "__main__":
    main()
