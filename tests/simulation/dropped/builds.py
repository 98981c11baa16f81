"""Builds in the cluster without a guard of what is around their machines (see `tests/simulation/builds/mutants.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from iscp.engine.tail_apply import RunningBuild
from tests.simulation.builds.built_run import BuiltRun


class PublishesAll(BuiltRun):
    """What was staged of a range, and of what it was cut into."""

    def chosen(self, build: RunningBuild) -> Sequence[int]:
        return sorted(build.state.ranges)


class PublishesParts(BuiltRun):
    """Without waiting for the last of them."""

    def is_whole(self, build: RunningBuild) -> bool:
        return bool(build.state.ranges)
