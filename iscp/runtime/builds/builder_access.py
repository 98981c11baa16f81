"""What users see of the builder of the owner's term, and have it do, from any thread (protocol TermBuilds)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iscp.coordination.builds.build_view import known_builds
from iscp.coordination.builds.builder_events import MergeRange, Prioritize, SplitRange
from iscp.core.api_builds import BuildStage
from iscp.core.build_progress import JobBuild, KnownBuilds, share_done
from iscp.ports.system import Clock
from iscp.runtime.builds.builder_loop import BuilderLoop


class BuilderAccess:
    """Rates are measured from the first time on that somebody here wanted to know of a build."""

    def __init__(self, loop: BuilderLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        # By job and version, since when (Unix time) and from which share on; replaced whole.
        self._since: dict[tuple[str, int], tuple[float, float]] = {}

    def known(self) -> KnownBuilds:
        return self._measure(self._loop.query(known_builds))

    def split(self, table_id: str, ranges: Sequence[int]) -> None:
        for each in ranges:
            self._loop.request(SplitRange(table_id, each))

    def merge(self, table_id: str, ranges: Sequence[int]) -> None:
        for each in ranges:
            self._loop.request(MergeRange(table_id, each))

    def prioritize(self, table_id: str, priority: int) -> None:
        self._loop.request(Prioritize(table_id, priority))

    def _measure(self, found: KnownBuilds) -> KnownBuilds:
        since = {}
        for build in found.jobs:
            if build.stage is BuildStage.BUILDING:
                job = build.plan.job_id, build.plan.version
                since[job] = self._since.get(job) or (self._clock.now_s(), share_done(build.tasks))
        self._since = since
        return replace(found, jobs=tuple(self._measured(each) for each in found.jobs))

    def _measured(self, build: JobBuild) -> JobBuild:
        at_s, share = self._since.get((build.plan.job_id, build.plan.version), (0.0, 0.0))
        return replace(build, began_at_s=at_s, share_then=share)
