"""Refreshes of TPC-DS's queries as views against Spark's own recomputation: `python -m benchmarks.view_tpcds [--json]`.

Of each query a view is built over Delta tables at `--scale`. Then 0.1 % of the rows of every table of facts change
(updates, deletes and inserts, spread over all rows), and by turns the view is refreshed and Spark overwrites a table
with the query's rows, as CREATE OR REPLACE TABLE … AS SELECT does, in the same JVM; `--rounds` times, of which the
first warms both. A first refresh goes by changes, as nothing is known of the view; later ones are chosen by cost. A
query's ratio is what its refreshes took in the middle over what its recomputations did, without the first of each;
`tpcds_median_ratio` is that of the query in the middle, `tpcds_median_ratio_incremental` that of the last refreshes by
changes.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from pyspark.errors import PySparkException

from benchmarks.progress import report_progress
from benchmarks.tpcds_lake import TpcdsLake
from benchmarks.view import View
from iscp.consumers.view.view_kind import ViewKind
from iscp.spark.session import SparkRuntime, SparkSettings
from tests.fakes.tpc import QUERIES, Tpc

AIM = 0.05
SLOWER_AIM = 1.2
SHARE = 0.001
ROUNDS = 3
TOGETHER = 33
"""Views that follow the same commits: fewer than a node remembers plans of, and commits take as long as views do."""


@dataclass
class Followed:
    """One query, as a view and recomputed."""

    view: View
    strategies: list[str] = field(default_factory=list)
    refresh_s: list[float] = field(default_factory=list)
    recompute_s: list[float] = field(default_factory=list)
    parts_s: list[dict[str, float]] = field(default_factory=list)
    error: str = ""

    def follow(self, *, first: bool) -> None:
        """`first`: the view, before the recomputation."""
        if not first:
            self.recompute_s.append(self.view.recompute())
        took_s, outcome = self.view.bring_on()
        self.refresh_s.append(took_s)
        self.strategies.append(outcome.strategy)
        self.parts_s.append(dict(outcome.parts_s))
        if first:
            self.recompute_s.append(self.view.recompute())

    def last(self) -> dict[str, Any]:
        """What the last step was measured to take."""
        if self.error or not self.refresh_s:
            return {"error": self.error} if self.error else {}
        return {"refresh_s": round(self.refresh_s[-1], 3), "recompute_s": round(self.recompute_s[-1], 3)}

    def figures(self) -> dict[str, Any]:
        if self.error or not self.refresh_s:
            return {"error": self.error or "no time was left"}
        by_changes = [place for place, each in enumerate(self.strategies) if each != "full"]
        ratios = [ours / theirs for ours, theirs in zip(self.refresh_s, self.recompute_s, strict=True)]
        return {
            "ratio": round(_warm(self.refresh_s) / _warm(self.recompute_s), 3),
            "ratio_incremental": round(ratios[by_changes[-1]], 3) if by_changes else None,
            "refresh_s": [round(each, 3) for each in self.refresh_s],
            "recompute_s": [round(each, 3) for each in self.recompute_s],
            "strategies": self.strategies,
            "parts_s": self.parts_s[-1],
        }


def _warm(times_s: Sequence[float]) -> float:
    return statistics.median(times_s[1:] or times_s)


def measure(
    runtime: SparkRuntime, root: Path, scale: float, numbers: Sequence[int], rounds: int, ends_at_s: float
) -> dict[int, Followed]:
    """`ends_at_s`: by the monotonic clock; nothing is begun after it."""
    tpc = Tpc("tpcds", scale)
    lake, kind, found, commits = TpcdsLake(root / "lake", tpc), ViewKind(), {}, 0
    for place in range(0, len(numbers), TOGETHER):
        together = numbers[place : place + TOGETHER]
        for number in together:
            sql, names = tpc.query(number)
            found[number] = Followed(View(runtime, root / f"q{number}", lake.uris, sql, names, kind=kind))
            attempt(number, found[number], "build", ends_at_s)
        for turn in range(rounds):
            lake.change_facts(SHARE, commits)
            commits += 1
            for number in together:
                attempt(number, found[number], "first" if (turn + number) % 2 else "second", ends_at_s)
    return found


def attempt(number: int, followed: Followed, what: str, ends_at_s: float) -> None:
    """A query that fails is a figure of its own, and ends no other one."""
    if followed.error or time.monotonic() > ends_at_s:
        return
    try:
        if what == "build":
            followed.view.refresh()
        else:
            followed.follow(first=what == "first")
    except (RuntimeError, PySparkException) as error:
        followed.error = f"{what}: {str(error)[:300]}"
    report_progress(f"query {number}", step=what, **followed.last())


def run(root: Path, scale: float, numbers: Sequence[int], rounds: int, minutes: float) -> dict[str, Any]:
    ends_at_s = time.monotonic() + 60 * minutes
    runtime = SparkRuntime.start(SparkSettings(work_dir=root / "spark"))
    try:
        found = measure(runtime, root, scale, numbers, rounds, ends_at_s)
    finally:
        runtime.stop()
    queries = {str(number): each.figures() for number, each in found.items()}
    known = [each for each in queries.values() if "ratio" in each]
    chosen = [each["ratio"] for each in known]
    by_changes = [each["ratio_incremental"] for each in known if each["ratio_incremental"] is not None]
    median = round(statistics.median(chosen), 3) if chosen else None
    return {
        "scale": scale,
        "changed_share": SHARE,
        "tpcds_median_ratio": median,
        "tpcds_median_ratio_incremental": round(statistics.median(by_changes), 3) if by_changes else None,
        "measured": len(known),
        "failed": sorted(number for number, each in queries.items() if "ratio" not in each),
        "slower_than_full": sum(each > 1 for each in chosen),
        "far_slower_than_full": (far_slower := sum(each > SLOWER_AIM for each in chosen)),
        "queries": queries,
        "aims": [
            {
                "aim": f"tpcds_median_ratio <= {AIM}",
                "measured": median,
                "met": median is not None and median <= AIM and len(known) == len(numbers),
            },
            {
                "aim": f"none above {SLOWER_AIM} of a recomputation",
                "measured": far_slower,
                "met": not far_slower and len(known) == len(numbers),
            },
        ],
    }


def _numbers(_context: click.Context, _option: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        found = tuple(int(each) for each in value.split(",") if each)
    except ValueError as error:
        raise click.BadParameter("write numbers with commas between them, as 1,5,17") from error
    if unknown := sorted(set(found) - set(QUERIES["tpcds"])):
        raise click.BadParameter(f"there is no query {unknown[0]}: they are 1 to 99")
    return found or tuple(QUERIES["tpcds"])


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--scale", default=1.0, show_default=True, help="TPC-DS's scale factor.")
@click.option("--queries", "numbers", default="", callback=_numbers, help="Only these, as 1,5,17; by default all 99.")
@click.option("--rounds", default=ROUNDS, show_default=True, type=click.IntRange(1), help="Changes of each query.")
@click.option("--minutes", default=40.0, show_default=True, help="Nothing more is begun after so many.")
def main(as_json: bool, scale: float, numbers: tuple[int, ...], rounds: int, minutes: float) -> None:
    with tempfile.TemporaryDirectory(prefix="iscp-view-tpcds-") as root:
        found = run(Path(root), scale, numbers, rounds, minutes)
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(
        f"tpcds_median_ratio: {found['tpcds_median_ratio']}, {found['tpcds_median_ratio_incremental']} by changes"
        f" ({found['measured']} measured, {len(found['failed'])} not)"
    )
    for number, each in found["queries"].items():
        click.echo(f"{number}: {each.get('ratio', each.get('error'))} {each.get('strategies', '')}")


if __name__ == "__main__":
    main()
