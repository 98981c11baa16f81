"""Plays a random history of a source to its end, and says what was done where something is wrong."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

log = logging.getLogger(__name__)

LONG, LONG_FROM = int(os.environ.get("ISCP_HISTORIES", "20")), int(os.environ.get("ISCP_HISTORIES_FROM", "1000"))


class Played(Protocol):
    """A source and its jobs, whose choices follow from a seed. `told` is what was done."""

    draw: Random
    told: list[str]

    def step(self) -> None:
        """Do something to the source."""

    def run(self) -> None:
        """An iteration, that may be stopped anywhere."""

    def finish(self) -> None:
        """Iterate until all jobs are at the newest version."""

    def assert_right(self) -> None: ...


def play(history: Played, seed: int, steps: int, run_share: float) -> None:
    """Of the `steps` this share is followed by a run."""
    try:
        for _ in range(steps):
            history.step()
            if history.draw.random() < run_share:
                history.run()
        history.finish()
        history.assert_right()
    except BaseException as failure:
        failure.add_note("\n  ".join([f"seed {seed}:", *history.told]))
        raise


def play_many(play_seed: Callable[[Path, int], None], root: Path) -> None:
    """LONG histories, each in a directory of its own that is removed after it."""
    for seed in range(LONG_FROM, LONG_FROM + LONG):
        directory = root / str(seed)
        directory.mkdir()
        play_seed(directory, seed)
        log.info("seed %d passed", seed)
        shutil.rmtree(directory)


def stop() -> None:
    """At a failpoint."""
    raise RuntimeError("stopped")
