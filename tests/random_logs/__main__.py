"""Plays random Delta logs: python -m tests.random_logs --seed 17, or --seeds 1000 from --first on, each of them."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from iscp.spark.session import SparkRuntime, SparkSettings
from tests import quick_spark
from tests.both_ways.keepers import BY_TURNS, Keeper
from tests.random_logs.log_check import LogCheck
from tests.random_logs.odd_playing import play_odd
from tests.random_logs.playing import COMMAND, SHRINKS_MAX, play_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_logs", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one alone, until it is as small as it gets")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="and then no further seed")
    parser.add_argument("--shrinks", type=int, default=SHRINKS_MAX, help="cases that are tried to make one smaller")
    parser.add_argument("--turns", action="store_true", help="a node and runs take turns at the followers")
    parser.add_argument("--odd", action="store_true", help="what is odd in a table's files alone, without Spark")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # refused and lost changes are what cases are made of
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    until_s = time.monotonic() + 60 * options.minutes
    odd = play_odd(list(seeds), options.minutes)
    sys.stdout.write(f"{odd.summary()}\n")
    if options.odd:
        return 1 if odd.failed else 0
    with tempfile.TemporaryDirectory() as work:
        runtime = SparkRuntime.start(SparkSettings(work_dir=Path(work), conf=quick_spark.QUICKER_CONF))
        try:
            check = LogCheck(runtime, Path(work, "logs"), BY_TURNS if options.turns else (Keeper.NODE,))
            going_on = (seed for seed in seeds if time.monotonic() < until_s)
            command = f"{COMMAND} --turns" if options.turns else COMMAND
            played = play_seeds(going_on, check.check, options.shrinks, command=command)
        finally:
            runtime.stop()
    said = [f"  {number} × {what}" for of in (check.ways, check.refused) for what, number in of.most_common()]
    sys.stdout.write("\n".join([played.summary(), *said, ""]))
    return 1 if played.failed or odd.failed else 0


if __name__ == "__main__":
    sys.exit(main())
