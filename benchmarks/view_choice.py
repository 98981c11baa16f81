"""Whether a refresh is computed in the cheaper way: `python -m benchmarks.view_choice [--json] [--rows N] …`.

Of each shape of query three views are kept over the same tables: one by changes, one by all rows, and one by whichever
the product chooses, with what it remembers of its own refreshes. Each commit changes another share of the rows, from
0.01 % to 50 %, in random order; then all three are refreshed, in an order that rotates. `right_choice` is the share of
refreshes in which the third took no longer than the view that goes the other way, or 10 % longer; `worst_factor` how
much longer it took, at worst. A refresh that was given up and computed in full was no right choice, and counts by what
it took in all. The first commit warms all three, and is not counted.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.progress import report_progress
from benchmarks.view import CASES, View, fact_rows, make_lake
from iscp.spark.session import SparkRuntime, SparkSettings

ROWS = 1_000_000
SHARES = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
NEAR = 1.1
"""Times that differ by less are alike."""

AIM, WORST_AIM = 0.9, 2.0
FULL = "full"
GIVEN_UP = "were given up"
"""The end of the reason of a refresh by changes that was."""


def change_share(uri: str, rows: int, share: float, number: int) -> None:
    """One commit that changes values of so many rows, spread over the table: nothing is at an end of its own."""
    ids = np.random.default_rng(30_000 + number).choice(rows, max(1, round(rows * share)), replace=False)
    changes: pa.Table = fact_rows(ids, 40_000 + number)
    table = DeltaTable(uri).merge(changes, "t.id = s.id", source_alias="s", target_alias="t")
    table.when_matched_update({name: f"s.{name}" for name in ("g", "x", "c")}).execute()


def measure(views: dict[str, View], uri: str, rows: int, shares: Sequence[float], first: int) -> list[dict[str, Any]]:
    """`views`: by their policies. `first`: the number of the first change."""
    for view in views.values():
        view.refresh()
    found = []
    for number, share in enumerate(shares):
        change_share(uri, rows, share, first + number)
        order = list(views)
        took: dict[str, float] = {}
        for policy in order[number % 3 :] + order[: number % 3]:
            took[policy], outcome = views[policy].bring_on()
            if policy == "auto":
                chosen, reason = outcome.strategy, outcome.strategy_reason
        other = took["incremental" if chosen == FULL else FULL]
        if given_up := reason.endswith(GIVEN_UP):
            other = min(took["incremental"], took[FULL])
        found.append(
            {
                "share": share,
                "chosen": chosen,
                "reason": reason,
                "incremental_s": round(took["incremental"], 3),
                "full_s": round(took[FULL], 3),
                "auto_s": round(took["auto"], 3),
                "given_up": given_up,
                "factor": round(took["auto"] / min(took["auto"], other), 3),
            }
        )
        report_progress("a change", round=number, **found[-1])
    return found[1:]


def is_right(refresh: dict[str, Any]) -> bool:
    return bool(refresh["factor"] <= NEAR and not refresh["given_up"])


def run(
    root: Path, rows: int, rounds: int, names: Sequence[str], changed: Sequence[float], seed: int
) -> dict[str, Any]:
    runtime = SparkRuntime.start(SparkSettings(work_dir=root / "spark"))
    draw, cases = random.Random(seed), {}
    try:
        for place, name in enumerate(names):
            uris = make_lake(root / f"lake-{name}", rows)
            views = {
                policy: View(runtime, root / f"{name}-{policy}", uris, CASES[name][0], policy=policy)
                for policy in ("incremental", FULL, "auto")
            }
            shares = [SHARES[1], *(share for _ in range(rounds) for share in draw.sample(changed, len(changed)))]
            cases[name] = measure(views, uris["fact"], rows, shares, 1_000 * place)
    finally:
        runtime.stop()
    refreshes = [each for found in cases.values() for each in found]
    right = round(sum(map(is_right, refreshes)) / len(refreshes), 3)
    worst = max(each["factor"] for each in refreshes)
    return {
        "rows": rows,
        "refreshes": len(refreshes),
        "right_choice": right,
        "worst_factor": worst,
        "given_up": sum(each["given_up"] for each in refreshes),
        "right_by_case": {name: sum(map(is_right, found)) / len(found) for name, found in cases.items()},
        "cases": cases,
        "aims": [
            {"aim": f"right_choice >= {AIM}", "measured": right, "met": right >= AIM},
            {"aim": f"worst_factor <= {WORST_AIM}", "measured": worst, "met": worst <= WORST_AIM},
        ],
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--rows", default=ROWS, show_default=True, help="Rows of the fact table.")
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1), help="How often each share is changed.")
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), help="Only these; by default all.")
@click.option("--share", "shares", multiple=True, type=click.FloatRange(0, 1), default=SHARES, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the order in which shares are changed.")
def main(as_json: bool, rows: int, rounds: int, names: tuple[str, ...], shares: tuple[float, ...], seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="iscp-view-choice-") as root:
        found = run(Path(root), rows, rounds, names or tuple(CASES), shares, seed)
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"right_choice: {found['right_choice']} of {found['refreshes']}, worst_factor: {found['worst_factor']}")
    for name, refreshes in found["cases"].items():
        for each in refreshes:
            click.echo(
                f"{name} {each['share']:.2%}: {each['chosen']}, {each['incremental_s']} s by changes,"
                f" {each['full_s']} s in full ({each['reason']})"
            )


if __name__ == "__main__":
    main()
