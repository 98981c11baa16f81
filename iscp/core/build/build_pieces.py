"""The pieces of a snapshot: its data files, and the parts of very large ones; and into how many ranges it is cut.

Every node comes to the same pieces from the same files, since a piece that two of them named in different ways would be
read twice, or never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from iscp.core.build.build_task import DEPTH_MAX, depth, piece_range
from iscp.core.values.progress import TableSize, total_size


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
