"""Plays random views: python -m tests.random_views --seed 17, or --seeds 1000 from --first on, each of them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from iscp.spark.session import SparkRuntime, SparkSettings
from tests import quick_spark
from tests.both_ways.keepers import BY_TURNS, Keeper
from tests.random_views.lake_check import LakeCheck
from tests.random_views.plan_check import PlanCheck
from tests.random_views.playing import COMMAND, play_seeds
from tests.random_views.query_tree import Mode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_views", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one alone, until it is as small as it gets")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="and then no further seed")
    parser.add_argument("--lakes", action="store_true", help="whole refreshes of Delta tables; else plans, in memory")
    parser.add_argument("--ties", action="store_true", help="queries that leave open which of several rows is taken")
    parser.add_argument("--sums", action="store_true", help="queries that decide by sums of doubles")
    parser.add_argument("--turns", action="store_true", help="with --lakes: a node and runs take turns")
    options = parser.parse_args()
    mode = Mode.TIES if options.ties else Mode.SUMS if options.sums else Mode.PLAIN
    if options.lakes and options.ties:
        parser.error("--ties goes with plans, as whole refreshes are compared with Spark's own answers")
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    until_s = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as work:
        runtime = SparkRuntime.start(SparkSettings(work_dir=Path(work), conf=quick_spark.QUICKER_CONF))
        try:
            lakes = LakeCheck(runtime, Path(work, "lakes"), BY_TURNS if options.turns else (Keeper.NODE,))
            trial = lakes.check if options.lakes else PlanCheck(runtime.new_session()).check
            going_on = (seed for seed in seeds if time.monotonic() < until_s)
            marks = [
                *["--lakes"] * options.lakes,
                *["--turns"] * options.turns,
                *[f"--{mode}"] * (mode is not Mode.PLAIN),
            ]
            command = " ".join([COMMAND, *marks])
            played = play_seeds(going_on, trial, command, mode)
        finally:
            runtime.stop()
    sys.stdout.write(f"{played.summary()}\n{dict(lakes.strategies) if options.lakes else ''}\n")
    return 1 if played.failed else 0


if __name__ == "__main__":
    sys.exit(main())
