"""Builds: the first snapshot of a table for a job, cut into tasks (after ScyllaDB's view building coordinator).

The module has the tasks and plans of builds, the terms that all ranges of a build agree on, the request of a job, the
pieces of a snapshot, and the choice of the staged ranges that make up the whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple
from zlib import crc32

from iscp.model.rows.key_ranges import WHOLE, children, depth_within, parent
from iscp.model.values.progress import UNKNOWN, UNSIZED, SnapshotSize, TableSize, count_or_unknown, total_size
from iscp.model.values.untrusted_values import (
    exact_float,
    exact_int,
    exact_name,
    shown,
)
from iscp.model.values.watermark import SourceMarks, parse_sources, sources_document

# --- tasks and plans --------------------------------------------------------------------------------------------------
# The pieces of a snapshot are its data files, and the parts of very large ones. A piece belongs to a range by the
# highest bits of the CRC32 of its name, so that a range is some pieces, read once. Ranges follow a binary tree
# (iscp.model.rows.key_ranges), of which 1 is all of the snapshot.

DEPTH_MAX = 16
"""How often a snapshot may be cut: into 65,536 ranges, at 256 MiB each 16 TiB."""

PRIORITY_MAX = 1_000
"""The most urgent that a table's build can be; one more is refused, and as much below 0."""

_BITS = 32


class TaskType(StrEnum):
    """The type of a task; only tasks of one type are worked on together; more types may come."""

    BUILD_RANGE = "build_range"
    PROCESS_STAGING = "process_staging"

    __hash__ = str.__hash__


class BuildTask(NamedTuple):
    """One job's part in one range of a snapshot, from when it was created until it is finished or deleted.

    An aborted task is never revived: what is still to be done is another task, with an id of its own. `node_id` is
    where it is to run.
    """

    task_id: str
    task_type: TaskType
    aborted: bool
    table_id: str
    job_id: str
    range_id: int
    node_id: str


class StagingTask(NamedTuple):
    """Retain the change rows of the table's commits (`after`, `until`], or delete all that are retained if that is
    empty.

    It is no job's: one copy serves all jobs of the table, and applies to none. What is to be done at another node is
    another task, with an id of its own.
    """

    task_id: str
    table_id: str
    table_uri: str
    after: int
    until: int
    node_id: str

    @property
    def removes(self) -> bool:
        return self.after == self.until


@dataclass(frozen=True, slots=True)
class RetainedSpan:
    """The commits (`since`, `until`] of a table, `bytes` large, of which the change rows are retained for certain.

    There may be more of them, as long as this is written: it is deleted when they are.
    """

    table_id: str
    table_uri: str
    since: int
    until: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The terms that a job's tasks share, the same as long as its build goes on: what is read, for which job.

    `spec_json` is the job's spec. A file of more than `piece_bytes` is cut into pieces of its row groups (0: none is).
    `depth` says how often the snapshot was cut at first. `size` is the snapshot's; plans that differ in it alone are
    the same, as nodes and owners of earlier versions leave it out. `pin` is that of its BuildTerms, empty if it has
    none.
    """

    job_id: str
    account: str
    table_id: str
    job_name: str
    table_uri: str
    version: int
    spec_json: str
    piece_bytes: int
    depth: int
    size: SnapshotSize = field(default=UNSIZED, compare=False)
    pin: str = ""

    @property
    def reading(self) -> tuple[int, int]:
        """Return what decides the rows of a range: plans of a table that agree in it may be read once for all of
        them.
        """
        return self.version, self.piece_bytes


@dataclass(frozen=True, slots=True)
class RangeBatch:
    """A range that is read once for several jobs; all plans are of one table and `reading`, each of another job."""

    range_id: int
    plans: tuple[BuildPlan, ...]


@dataclass(frozen=True, slots=True)
class StagingBatch:
    """A staging task with the table's builds that go on (`plans`), for which later commits have to be retained."""

    task: StagingTask
    plans: tuple[BuildPlan, ...]


def piece_range(name: str, depth: int) -> int:
    """Return the range, of those that are cut `depth` times, that a piece belongs to."""
    return (1 << depth) + (crc32(name.encode()) >> (_BITS - depth))


def depth(range_id: int) -> int:
    """Return how often the whole was cut to get the range; raise ValueError for what is no range."""
    return depth_within(range_id, DEPTH_MAX)


def covers(range_id: int, other: int) -> bool:
    """Return whether all of `other` is in the range: it is the same, or was cut from it."""
    below = depth(other) - depth(range_id)
    return below >= 0 and other >> below == range_id


# --- terms ------------------------------------------------------------------------------------------------------------
# All ranges of a build agree on its terms, besides the version of their own table. The terms are written once, where
# the build's ranges are staged, before any of them is: whoever builds a range, at whichever node and however late,
# reads the same terms, and a build with other terms is another build.

_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class BuildTerms:
    """The terms of a build. `sources` are the versions of all tables that ranges read, their own among them. `as_of_s`
    is the instant that they are computed for, in Unix seconds (0: they do not depend on the time).

    `way` says how rows are computed, as the consumer calls it. With `passing` what is staged is not the target's own,
    and goes with the build.
    """

    sources: SourceMarks = field(default_factory=dict)
    as_of_s: float = 0.0
    way: str = ""
    passing: bool = False

    @property
    def pin(self) -> str:
        """Return what distinguishes builds of one version with other terms; empty if there are none.

        The instant does not count: a build that begins again reads something else, or it would fail again.
        """
        if not self.sources:
            return ""
        what = json.dumps([sources_document(self.sources), self.way], sort_keys=True)
        return hashlib.blake2b(what.encode(), digest_size=_DIGEST_BYTES).hexdigest()

    def document(self) -> dict[str, Any]:
        """Return the terms as JSON for `parse_terms`."""
        found: dict[str, Any] = {"sources": sources_document(self.sources)} if self.sources else {}
        return found | {name: value for name in ("as_of_s", "way", "passing") if (value := getattr(self, name))}


NO_TERMS = BuildTerms()


def parse_terms(document: object) -> BuildTerms:
    """Read `BuildTerms.document`, which may have other fields besides; raise ValueError if it is no such document."""
    if not isinstance(document, Mapping):
        raise ValueError(f"the terms are {shown(document)}, which does not map names to values")
    return BuildTerms(
        parse_sources(document.get("sources", {})),
        exact_float(document.get("as_of_s", 0.0), "as_of_s"),
        exact_name(document.get("way", ""), "way"),
        document.get("passing", False) is True,
    )


# --- requests ---------------------------------------------------------------------------------------------------------
# A job whose first snapshot is built by ranges carries the request in its status until the job is built.


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Build `version` of the source, cut `depth` times; `piece_bytes`, `size` and `pin` are those of BuildPlan."""

    version: int
    piece_bytes: int
    depth: int
    size: SnapshotSize = UNSIZED
    pin: str = ""

    @property
    def reading(self) -> tuple[int, str]:
        """Return what decides which rows are read: builds of a job that agree in it come out the same."""
        return self.version, self.pin

    def document(self) -> dict[str, Any]:
        """Return the request as JSON of the job log."""
        found = {"version": self.version, "piece_bytes": self.piece_bytes, "depth": self.depth, **asdict(self.size)}
        return found | ({"pin": self.pin} if self.pin else {})


def parse_build(document: object) -> BuildRequest:
    """Read the result of `BuildRequest.document`; raise ValueError if it is no such document."""
    if not isinstance(document, Mapping):
        raise ValueError(f"build is {shown(document)}, which does not map names to numbers")
    return BuildRequest(
        exact_int(document.get("version"), "build.version"),
        exact_int(document.get("piece_bytes"), "build.piece_bytes"),
        exact_int(document.get("depth"), "build.depth", 0, DEPTH_MAX),
        parse_size(document, "build."),
        exact_name(document.get("pin", ""), "build.pin"),
    )


def parse_size(document: Mapping[str, object], prefix: str = "") -> SnapshotSize:
    """Return the size of a snapshot, UNKNOWN where earlier versions do not say it.

    Raises ValueError, with `prefix` before names.
    """
    names = ("rows", "bytes", "pieces")
    return SnapshotSize(*(count_or_unknown(document.get(name, UNKNOWN), f"{prefix}{name}") for name in names))


def exact_build(found: object, name: str = "build") -> BuildRequest | None:
    """Return a request that may be stored, checked field by field. Raises ValueError."""
    if found is None:
        return None
    if not isinstance(found, BuildRequest):
        raise ValueError(f"{name} is {shown(found)}, which is no BuildRequest")
    return parse_build(found.document())


@dataclass(frozen=True, slots=True)
class BuildId:
    """The identity that the ranges of one build share; `digest` differs wherever they could not be put together."""

    job_id: str
    version: int
    digest: str


def build_id(job_id: str, spec_json: str, request: BuildRequest, source_id: str, source_at_s: float) -> BuildId:
    """Return the id of a build. `source_id` and `source_at_s` are those of the table at the request's version, and when
    that was committed: a table that was dropped and made again at this place, and has come to the same version, is
    another build.
    """
    consumer = json.loads(spec_json).get("iteration", {}).get("consumer")
    what = [request.version, request.piece_bytes, source_id, source_at_s, consumer]
    what += [request.pin] if request.pin else []
    digest = hashlib.blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return BuildId(job_id, request.version, digest)


# --- pieces of a snapshot ---------------------------------------------------------------------------------------------
# Every node comes to the same pieces from the same files: a piece that two nodes named in different ways would be read
# twice, or never.


class SnapshotFile(NamedTuple):
    """A data file with its deletion vector, whose id is `vector_id` (empty: it has none); `size` leaves out the rows
    that this deletes. One path may be there with several vectors, as a file of its own with each.
    """

    path: str
    size: TableSize
    vector_id: str = ""


@dataclass(frozen=True, slots=True)
class PieceOfFile:
    """The part `number` (from 0) of the `parts` of a file; its row groups are cut as `group_span` says."""

    path: str
    number: int
    parts: int


@dataclass
class RangeFiles:
    """The files of a snapshot that are in a range: some as they are, and parts of others.

    `sizes` are theirs: every part of a file counts as much as any other, so that all ranges together are the whole.
    """

    whole: list[SnapshotFile] = field(default_factory=list)
    parts: dict[SnapshotFile, list[PieceOfFile]] = field(default_factory=dict)
    sizes: list[TableSize] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.whole and not self.parts

    @property
    def size(self) -> TableSize:
        return total_size(self.sizes)


def piece_name(file: SnapshotFile, piece: PieceOfFile) -> str:
    """Return the name of a piece, which decides in which range it is."""
    name = f"{file.path} {file.vector_id}" if file.vector_id else file.path
    return name if piece.parts == 1 else f"{name}#{piece.number}"


def parts_of(path: str, size: int, piece_bytes: int) -> list[PieceOfFile]:
    """Return the file's pieces by its size alone; if it has fewer row groups than pieces, some pieces have no rows."""
    parts = _parts(size, piece_bytes)
    return [PieceOfFile(path, number, parts) for number in range(parts)]


def count_pieces(sizes: Iterable[int], piece_bytes: int) -> int:
    """Return how many pieces files of so many bytes have."""
    return sum(_parts(size, piece_bytes) for size in sizes)


def _parts(size: int, piece_bytes: int) -> int:
    return max(1, -(-size // piece_bytes)) if piece_bytes else 1


def group_span(groups: int, piece: PieceOfFile) -> tuple[int, int]:
    """Return the first of a file's row groups that is in the piece, and the first behind it."""
    return groups * piece.number // piece.parts, groups * (piece.number + 1) // piece.parts


def files_in_range(files: Iterable[SnapshotFile], piece_bytes: int, range_id: int) -> RangeFiles:
    cuts, found = depth(range_id), RangeFiles()
    for file in files:
        pieces = parts_of(file.path, file.size.bytes, piece_bytes)
        inside = [each for each in pieces if piece_range(piece_name(file, each), cuts) == range_id]
        if len(inside) == len(pieces):
            found.whole.append(file)
            found.sizes.append(file.size)
        elif inside:
            found.parts[file] = inside
            found.sizes += (_size_of(file.size, each) for each in inside)
    return found


def _size_of(size: TableSize, piece: PieceOfFile) -> TableSize:
    def share(whole: int) -> int:
        before, behind = (whole * number // piece.parts for number in (piece.number, piece.number + 1))
        return behind - before if whole >= 0 else whole

    return TableSize(share(size.rows), share(size.bytes))


def row_spans(group_rows: list[int], pieces: Iterable[PieceOfFile]) -> list[tuple[int, int]]:
    """Return the rows of a file that its `pieces` have as spans of places in it; neighbours share a span."""
    starts = [0]
    for rows in group_rows:
        starts.append(starts[-1] + rows)
    spans: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=lambda each: each.number):
        first, last = (starts[group] for group in group_span(len(group_rows), piece))
        if spans and spans[-1][1] == first:
            spans[-1] = spans[-1][0], last
        elif last > first:
            spans.append((first, last))
    return spans


def depth_for(total_bytes: int, range_bytes: int) -> int:
    """Return how often to cut a snapshot so that a range has no more than `range_bytes` on average; at most
    DEPTH_MAX.
    """
    return next((cuts for cuts in range(DEPTH_MAX) if total_bytes <= range_bytes << cuts), DEPTH_MAX)


# --- the choice of staged ranges --------------------------------------------------------------------------------------
# The chosen ranges make up the whole snapshot, each piece once. A range may be there beside its halves, or one half
# beside the whole: splits, merges and results that come late leave any of them behind. All of them were read of one
# version, so that either way gives the same rows.


@dataclass(frozen=True, slots=True)
class Tiling:
    """Ranges that are `chosen`, and the largest ranges of which nothing is there (`lacking`).

    Both together tile the whole: no two of them have a piece in common, and every piece is in one of them.
    """

    chosen: tuple[int, ...]
    lacking: tuple[int, ...]

    @property
    def whole(self) -> bool:
        return not self.lacking


def tiling(there: Collection[int]) -> Tiling:
    """Choose from the ranges that are `there`; the largest win over what they were cut into."""
    cut = _above(there)
    chosen: list[int] = []
    lacking: list[int] = []
    waiting = [WHOLE]
    while waiting:
        range_id = waiting.pop()
        if range_id in there:
            chosen.append(range_id)
        elif range_id in cut:
            waiting += reversed(children(range_id))
        else:
            lacking.append(range_id)
    return Tiling(tuple(chosen), tuple(lacking))


def is_staged(range_id: int, there: Collection[int]) -> bool:
    """Return whether nothing of the range is left to be built: it is there itself, or what it was cut from, or all its
    parts.
    """
    found = tiling(there)
    return not any(covers(range_id, each) or covers(each, range_id) for each in found.lacking)


def _above(there: Collection[int]) -> set[int]:
    """Return all ranges that one of these was cut from."""
    found: set[int] = set()
    for each in there:
        while each > WHOLE and (each := parent(each)) not in found:
            found.add(each)
    return found


# --- limits of retained commits ---------------------------------------------------------------------------------------

RETAINED_BYTES_MAX = 64 * 1024**3
"""Bytes of change rows that are retained of a table while it is built, where `build.kept_bytes_max` is not given; what
lands then is left to the tail, which may have to compare.
"""
