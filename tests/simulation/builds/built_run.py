"""An iteration of jobs whose first snapshot is built by ranges, as `iscp/engine/tail_apply.py` has it.

Whether there is a build, and what it is, the real functions say; the commit is the simulated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from iscp.engine.iteration_ports import JobRun, applied, awaiting_build
from iscp.engine.tail_apply import RunningBuild, find_build, remove_build, request_build
from iscp.model.build.build_task import NO_TERMS, tiling
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.values.watermark import NOTHING_APPLIED, Position
from iscp.ports.consumer import Consumed
from tests.simulation.builds.staged import iteration_ports
from tests.simulation.engine import Run
from tests.simulation.sources import Commit, Kind
from tests.simulation.violation import expect

_CHECKED: Any = SimpleNamespace(check=lambda: None)


class BuiltRun(Run):
    def _apply(self, row: JobRow, position: Position) -> None:
        if position.watermark.version > NOTHING_APPLIED:
            super()._apply(row, position)
            return
        ports: Any = iteration_ports(self._process)
        kind = ports.kinds(row.spec.consumer.kind)
        work = JobRun(row, kind, kind.open(row, ports.environment), position)
        run: Any = SimpleNamespace(ports=ports, uri=row.table_uri, guard=_CHECKED)
        build = find_build(run, work)
        if build is not None and build.state.goes_on:
            if self.is_whole(build):
                self._publish(work, build)
            else:
                self._settle(awaiting_build(row, position, build.request))
            return
        newest, to = self._world.sources[row.key.table_id], self.iteration.to_version
        to = newest if to is None or to < self._world.staging.oldest[row.key.table_id] else min(newest, to)
        if refused := self.guard():
            self._fail(refused)
        elif waits := request_build(run, work, ports.source.at(row.table_uri, to), lambda: NO_TERMS):
            self._settle(waits)
        else:
            super()._apply(row, position)

    def is_whole(self, build: RunningBuild) -> bool:
        return build.whole

    def chosen(self, build: RunningBuild) -> Sequence[int]:
        return tiling(build.state.ranges).chosen

    def _publish(self, work: JobRun, build: RunningBuild) -> None:
        row, sink = work.row, self._world.sink(work.row.key)
        manifests = build.ranges.manifests(self.chosen(build))
        expect(manifests is not None, "files of {} are gone", row.key)
        seq, version = work.position.seq + 1, build.request.version
        commit = Commit(seq, row.job_id, NOTHING_APPLIED, version, Kind.SNAPSHOT, self._process.node_id)

        def land() -> bool:
            content = sink.content
            if taken := sink.land(commit):
                expect(content == NOTHING_APPLIED, "{} is built into {}, which has rows", row.key, sink.name)
                self._world.staging.check_published(row, manifests or ())
            return taken

        def landed(taken: bool) -> None:
            if not taken:
                self.conflict(row)
                return
            remove_build(work)
            consumed = Consumed(sink.position(), 1, 100)
            self._settle(applied(row, consumed, DataType.SNAPSHOT, NOTHING_APPLIED, ""), self.committed)

        self._work(lambda: self.commit_by(row, sink.name, land, landed))
