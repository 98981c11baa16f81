"""Runs seeds: `python -m tests.simulation --seeds 1000000` on all cores, or `--seed 4711 --trace` one of them."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count, islice
from multiprocessing import Pool
from random import Random

from tests.golden.test_dialogues import show
from tests.simulation.mutants import MUTANTS, convicting, convicts
from tests.simulation.simulation import simulate
from tests.simulation.trouble import Trouble, draw_building
from tests.simulation.violation import ViolationError
from tests.simulation.wrongs import draw_losses, draw_wrongs

CHUNK = 20
PROGRESS_S = 10.0
SEEDS_RECORDED = 2
COLLECTED_EVERY = 20
"""Runs, each of which leaves half a megabyte."""

_runs = count(1)


def command(seed: int, building: bool = False) -> str:
    """What replays a seed."""
    return f".venv/bin/python -m tests.simulation --seed {seed} --trace{' --builds' if building else ''}"


def drawn(seed: int, building: bool) -> Trouble | None:
    if not building:
        return None
    wrong = draw_wrongs(Random(f"{seed} building wrongs"), draw_building(seed))
    return draw_losses(Random(f"{seed} building losses"), wrong)


def failure(seed: int, building: bool = False) -> tuple[int, str]:
    """The seed, and what it violates; empty: nothing."""
    gc.disable()
    try:
        simulate(seed, trouble=drawn(seed, building))
    except ViolationError as violation:
        return seed, str(violation)
    except Exception as error:  # noqa: BLE001  (reported with its seed)
        return seed, f"{type(error).__name__}: {error}"
    finally:
        gc.enable()
        if next(_runs) % COLLECTED_EVERY == 0:
            gc.collect()  # all: by itself Python never comes to what runs leave
    return seed, ""


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _one(seed: int, trace: bool, building: bool) -> int:
    if trace:
        trouble = drawn(seed, building)
        simulate(seed, trace=lambda now_s, who, what: _say(f"{now_s:9.3f} {who:10} {show(what)}"), trouble=trouble)
    told = failure(seed, building)[1]
    _say(told or f"seed {seed}: nothing is wrong")
    return 1 if told else 0


def _results(seeds: Iterable[int], processes: int, building: bool) -> Iterator[tuple[int, str]]:
    play = partial(failure, building=building)
    if processes == 1:
        yield from map(play, seeds)
        return
    with Pool(processes) as pool:
        yield from pool.imap_unordered(play, seeds, CHUNK)


def _many(first: int, count: int, processes: int, building: bool) -> int:
    began_s = told_s = time.monotonic()
    failed = 0
    for done, (seed, what) in enumerate(_results(range(first, first + count), processes, building), start=1):
        if what:
            failed += 1
            _say(f"seed {seed}: {what}\n  {command(seed, building)}")
        now_s = time.monotonic()
        if now_s - told_s > PROGRESS_S or done == count:
            told_s = now_s
            _say(f"{done} of {count} seeds, {failed} failed, {done / (now_s - began_s):.0f} a second")
    return 1 if failed else 0


def _convicting(name: str) -> tuple[str, list[int]]:
    mutant = MUTANTS[name]
    good = [seed for seed in mutant.seeds if convicts(seed, mutant)]
    return name, good or list(islice(convicting(mutant), SEEDS_RECORDED))


def _mutants(processes: int) -> int:
    missing = 0
    with Pool(processes) as pool:
        for name, found in pool.imap_unordered(_convicting, MUTANTS):
            missing += not found
            _say(f"{name}: {tuple(found) or 'no seed finds it'}; recorded: {MUTANTS[name].seeds}")
    return 1 if missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--trace", action="store_true", help="tell all that happens in it")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--builds", action="store_true", help="in each of them first snapshots are built by ranges")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutants", action="store_true", help="say which seeds find each mutant, to be recorded")
    arguments = parser.parse_args()
    if arguments.mutants:
        return _mutants(arguments.processes)
    if arguments.seed is not None:
        return _one(arguments.seed, arguments.trace, arguments.builds)
    return _many(arguments.first, arguments.seeds, arguments.processes, arguments.builds)


if __name__ == "__main__":
    sys.exit(main())
