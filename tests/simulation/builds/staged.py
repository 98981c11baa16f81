"""What is staged of builds under the targets of a simulated cluster, and the source that it is read from.

Ports StagedRanges, RangeBuilt and RangeReader: real iterations request builds by them, and the real
SnapshotRangeBuilder stages ranges. A range takes its time, may fail, and may land long after its process has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from iscp.model.build.build_task import NO_TERMS, BuildId, BuildTerms, depth
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import PlanOutdated, StorageError
from iscp.model.values.progress import UNKNOWN, SnapshotSize, TableSize
from iscp.model.values.watermark import Watermark
from iscp.ports.engine import NO_DEATHS
from iscp.ports.sink import BuildEnd, Manifest, StagedState
from iscp.ports.source import ChangesUnavailableError, SourceRange
from tests.simulation.builds.checks import size_of
from tests.simulation.builds.kept import SimulatedRetained
from tests.simulation.violation import expect
from tests.simulation.wrongs import HANGS_S

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

RANGE_S = 3.0
LANDS_LATE_S = 10.0
RANGE_BYTES = 1_000
CUTS_MAX = 4


@dataclass
class Marks:
    """What lies under a target of one build: the manifests of its `ranges`, each with the number of its attempt."""

    begun: bool = False
    end: BuildEnd | None = None
    ranges: dict[int, int] = field(default_factory=dict)


class Staging:
    """Of all targets. `ever`: the ranges that were staged, by job and version, also where they were removed since.

    A range whose build was removed meanwhile is among them: nobody is to put it together any more.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._marks: dict[str, dict[BuildId, Marks]] = {}
        self.ever: dict[tuple[str, int], set[int]] = {}
        self.oldest = dict.fromkeys(world.tables, 0)
        self.cuts = {table: world.aside.randint(0, CUTS_MAX) for table in world.tables} if world.trouble.builds else {}
        self.attempts = self.published = 0

    def marks(self, target: str, build: BuildId) -> Marks:
        return self._marks.setdefault(target, {}).setdefault(build, Marks())

    def land(self, target: str, build: BuildId, range_id: int) -> bool:
        """The first manifest of a range counts; False: the build was removed."""
        marks = self.marks(target, build)
        self.ever.setdefault((build.job_id, build.version), set()).add(range_id)
        if marks.begun:
            self.attempts += 1
            marks.ranges.setdefault(range_id, self.attempts)
        return marks.begun

    def remove(self, target: str, build: BuildId, *, but: bool) -> None:
        builds = self._marks.setdefault(target, {})
        for each in [each for each in builds if each.job_id <= build.job_id and not (but and each == build)]:
            del builds[each]

    def vacuum(self, table: str) -> None:
        """Nobody reads an earlier version of the table any more."""
        self.oldest[table] = self._world.sources[table]

    def check_published(self, row: JobRow, manifests: Sequence[Manifest]) -> None:
        """Every piece of the snapshot is in exactly one of them."""
        self.published += 1
        ranges = [int(manifest.schema_json) for manifest in manifests]
        deepest = max(map(depth, ranges), default=0)
        pieces = Counter(piece for range_id in ranges for piece in _pieces(range_id, deepest))
        once = len(pieces) == 1 << deepest and set(pieces.values()) == {1}
        expect(once, "{} publishes {}, which are not the whole, each piece of it once", row.key, ranges)


def _pieces(range_id: int, deepest: int) -> range:
    below = deepest - depth(range_id)
    return range(range_id << below, range_id + 1 << below)


class SimulatedRanges:
    """Port StagedRanges, of one build, in one process."""

    def __init__(self, process: Process, row: JobRow, build: BuildId) -> None:
        self._process = process
        self._staging = process.world.staging
        self._table = row.key.table_id
        self._target = row.spec.consumer.target
        self._build = build

    def state(self) -> StagedState:
        marks = self._staging.marks(self._target, self._build)
        return StagedState(marks.begun, marks.end, frozenset(marks.ranges))

    def begin(self, terms: BuildTerms = NO_TERMS) -> None:
        self._staging.remove(self._target, self._build, but=True)
        self._staging.marks(self._target, self._build).begun = True

    def terms(self) -> BuildTerms:
        return NO_TERMS

    def stage(self, range_id: int, rows: object) -> None:
        process, world = self._process, self._process.world
        process.threads.sleep(world.random.random() * RANGE_S)
        if self._build.version < self._staging.oldest[self._table]:
            raise ChangesUnavailableError(f"version {self._build.version} is gone")
        if world.happens(world.trouble.fail):
            raise StorageError("a file cannot be written")
        late_s = LANDS_LATE_S if world.happens(world.trouble.zombie) else 0.05

        def land(landed: Callable[[bool], None], _failed: Callable[[], None]) -> None:
            def land_now() -> None:
                counts = self._staging.land(self._target, self._build, range_id)
                process.after(0.0, lambda: landed(counts))

            process.after_in_spark(world.random.random() * late_s, land_now)

        if not process.threads.asked(land, StorageError("it is not known what was written")):
            raise PlanOutdated("the build was removed")

    def manifests(self, ranges: Sequence[int]) -> list[Manifest] | None:
        """In place of a schema each has its range."""
        there = self._staging.marks(self._target, self._build).ranges
        return [Manifest(1, 1, str(each)) for each in ranges] if {*ranges} <= there.keys() else None

    def end(self, why: BuildEnd) -> None:
        marks = self._staging.marks(self._target, self._build)
        if marks.begun:
            marks.end = why

    def remove(self) -> None:
        self._staging.remove(self._target, self._build, but=False)


class SimulatedConsumer:
    """Port RangeBuilt, of one job; its commits are those of `Run`."""

    def _not_here(self, *of: Any) -> Any:
        raise AssertionError("of a simulated job only ranges are built")

    position = claim = consume = takes_ranges = publish = _not_here
    range_built = by_ranges = property(lambda self: self)

    def __init__(self, process: Process, row: JobRow) -> None:
        self._process = process
        self._row = row

    def ranges(self, build: BuildId) -> SimulatedRanges:
        return SimulatedRanges(self._process, self._row, build)

    def wanted(self, rows: Any) -> Any:
        return rows


class SimulatedReader:
    """Port RangeReader: rows are nothing, as what matters is where they end up. A read may hang."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def rows(self, *where: object) -> Any:
        return where

    def size(self, session: object, uri: str, version: int, range_id: int, piece_bytes: int) -> TableSize:
        world = self._process.world
        if world.wrongs.happen(world.trouble.hanging_ranges):
            self._process.threads.sleep(HANGS_S)
        return size_of(range_id)

    @contextmanager
    def read_once(self, rows: Any) -> Iterator[Any]:
        yield rows


class SimulatedSource:
    """Of ChangeSource what builds need."""

    def __init__(self, world: World) -> None:
        self._world = world

    def at(self, uri: str, version: int) -> SourceRange:
        table = uri.removeprefix("/")
        if version < self._world.staging.oldest[table]:
            raise ChangesUnavailableError(f"version {version} is gone")
        return SourceRange(version, Watermark(version, self._world.committed_s(table, version)), table)

    def size(self, uri: str, version: int, piece_bytes: int) -> SnapshotSize:
        return SnapshotSize(UNKNOWN, RANGE_BYTES << self._world.staging.cuts[uri.removeprefix("/")], UNKNOWN)


@contextmanager
def _session() -> Iterator[None]:
    yield


def iteration_ports(process: Process) -> Any:
    """Of IterationPorts what builds need."""
    return SimpleNamespace(
        source=SimulatedSource(process.world),
        builds=SimpleNamespace(table_bytes_min=1, range_bytes=RANGE_BYTES),
        kinds=lambda name: SimpleNamespace(open=lambda row, environment: SimulatedConsumer(process, row)),
        open=lambda row: SimulatedConsumer(process, row),
        environment=None,
        context=lambda *of: None,
        engine=SimpleNamespace(session=_session, label=lambda label: None, cancel=lambda label: None),
        failpoints=SimpleNamespace(reach=lambda name: None),
        deaths=NO_DEATHS,
        retained=SimulatedRetained(process),
    )
