"""How even the ring is, and how much moves when a node goes: `python -m benchmarks.ring [--json]`."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from uuid import UUID

import click

from benchmarks.progress import report_progress
from iscp.model.values.ids import ShardId
from iscp.model.values.ring import VNODES, Placement, Ring

AIM_IMBALANCE = 1.10
AIM_MOVED = 1.1
NODES = (20, 100)
SHARDS = 500_000
"""So many that chance adds less than a hundredth: what is measured is the ring."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`imbalance`: the most loaded node's shards over the mean. `moved_over_ideal`: of all nodes' leaves the worst,
    against the mean of a node's shards; `moved_without_need`: shards that moved between nodes that stayed.
    """

    nodes: int
    imbalance: float
    moved_over_ideal: float
    moved_without_need: int


def measure(nodes: int, shards: list[ShardId]) -> Measured:
    names = [f"iscp-{n}" for n in range(nodes)]
    whole = Ring(names)
    home = [whole.preferred(shard) for shard in shards]
    loads = Counter(home)
    worst, needless = 0, 0
    for gone in (names[0], names[-1], max(loads, key=loads.__getitem__)):
        rest = Ring([name for name in names if name != gone])
        moved = [before for shard, before in zip(shards, home, strict=True) if rest.preferred(shard) != before]
        worst = max(worst, len(moved))
        needless += sum(before != gone for before in moved)
    ideal = len(shards) / nodes
    return Measured(nodes, round(max(loads.values()) / ideal, 4), round(worst / ideal, 4), needless)


def computed_without_change() -> int:
    """Rings built by a refresh of the same members."""
    nodes = [f"iscp-{n}" for n in range(20)]
    return int(Placement(frozenset(nodes)).ring is not Placement(frozenset(nodes)).ring)


@click.command()
@click.option("--shards", "count", type=click.IntRange(min=1), default=SHARDS, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(count: int, as_json: bool) -> None:
    """Measure the ring."""
    shards = [ShardId(str(UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128))) for n in range(count)]
    cases = []
    for nodes in NODES:
        cases.append(measure(nodes, shards))
        report_progress("a ring", **asdict(cases[-1]))
    imbalance = max(case.imbalance for case in cases)
    moved = max(case.moved_over_ideal for case in cases)
    computed, needless = computed_without_change(), sum(case.moved_without_need for case in cases)
    result = {
        "benchmark": "ring",
        "cpus": os.cpu_count(),
        "vnodes": VNODES,
        "shards": count,
        "imbalance": imbalance,
        "moved_over_ideal": moved,
        "moved_without_need": needless,
        "rings_built_without_change": computed,
        "cases": [asdict(case) for case in cases],
        "aims": [
            {"aim": f"imbalance <= {AIM_IMBALANCE}", "measured": imbalance, "met": imbalance <= AIM_IMBALANCE},
            {"aim": f"moved_over_ideal <= {AIM_MOVED}", "measured": moved, "met": moved <= AIM_MOVED},
            {"aim": "rings_built_without_change = 0", "measured": computed, "met": computed == 0},
        ],
    }
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
