"""Give users access to the builder of the owner's term, from any thread (protocol TermBuilds)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from iscp.coordination.builds.build_view import known_builds
from iscp.coordination.builds.builder_events import MergeRange, Prioritize, SplitRange
from iscp.core.build.build_progress import KnownBuilds
from iscp.ports.system import Clock
from iscp.runtime.builds.builder_loop import BuilderLoop


class BuilderAccess:
    """Access to the builder. `clock` is the loop's."""

    def __init__(self, loop: BuilderLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock

    def known(self) -> KnownBuilds:
        clock_at_s = self._clock.now_s() - self._clock.monotonic_s()
        return self._loop.query(partial(known_builds, clock_at_s=clock_at_s))

    def split(self, table_id: str, ranges: Sequence[int]) -> None:
        for each in ranges:
            self._loop.request(SplitRange(table_id, each))

    def merge(self, table_id: str, ranges: Sequence[int]) -> None:
        for each in ranges:
            self._loop.request(MergeRange(table_id, each))

    def prioritize(self, table_id: str, priority: int) -> None:
        self._loop.request(Prioritize(table_id, priority))
