"""Builds in the cluster without a guard of what is around their machines (see `tests/simulation/builds/mutants.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from iscp.adapters.etcd.values import Compare
from iscp.core.members import Leader
from iscp.runtime.iteration.apply.range_build import RunningBuild
from tests.simulation.builds.building import BuildWrites
from tests.simulation.builds.built_run import BuiltRun
from tests.simulation.etcd import Etcd


class WritesBlindly(BuildWrites):
    """Whatever another owner, or a write whose answer was lost, has written meanwhile."""

    def holds(self, etcd: Etcd, compare: Compare) -> bool:
        return True


class WritesAsAnybody(BuildWrites):
    """Once elected, always the owner; and nobody has to know what the others have written."""

    def leads(self, etcd: Etcd, leader: Leader) -> bool:
        return True

    def holds(self, etcd: Etcd, compare: Compare) -> bool:
        return True


class PublishesAll(BuiltRun):
    """What was staged of a range, and of what it was cut into."""

    def chosen(self, build: RunningBuild) -> Sequence[int]:
        return sorted(build.state.ranges)


class PublishesParts(BuiltRun):
    """Without waiting for the last of them."""

    def is_whole(self, build: RunningBuild) -> bool:
        return bool(build.state.ranges)
