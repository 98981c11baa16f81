"""The pieces of a snapshot: its data files, and the parts of very large ones; and into how many ranges it is cut.

Every node comes to the same pieces from the same files, since a piece that two of them named in different ways would be
read twice, or never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from iscp.core.build_task import DEPTH_MAX, depth, piece_range


@dataclass(frozen=True, slots=True)
class PieceOfFile:
    """The part `number` (from 0) of the `parts` of a file; its row groups are cut as `group_span` says."""

    path: str
    number: int
    parts: int


@dataclass
class RangeFiles:
    """What a range has of a snapshot: files as they are, and some parts of others, by their paths."""

    whole: list[str] = field(default_factory=list)
    parts: dict[str, list[PieceOfFile]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.whole and not self.parts


def piece_name(path: str, vector_id: str, piece: PieceOfFile) -> str:
    """What decides which range it is in. `vector_id`: of the deletion vector of the file (empty: it has none)."""
    name = f"{path} {vector_id}" if vector_id else path
    return name if piece.parts == 1 else f"{name}#{piece.number}"


def parts_of(path: str, size: int, piece_bytes: int) -> list[PieceOfFile]:
    """The file's pieces, by its size alone; one that has fewer row groups than pieces has pieces without rows."""
    parts = max(1, -(-size // piece_bytes)) if piece_bytes else 1
    return [PieceOfFile(path, number, parts) for number in range(parts)]


def group_span(groups: int, piece: PieceOfFile) -> tuple[int, int]:
    """The first of a file's row groups that is in the piece, and the first behind it."""
    return groups * piece.number // piece.parts, groups * (piece.number + 1) // piece.parts


def files_in_range(files: Iterable[tuple[str, int, str]], piece_bytes: int, range_id: int) -> RangeFiles:
    """`files`: of each its path, its bytes and the id of its deletion vector."""
    cuts, found = depth(range_id), RangeFiles()
    for path, size, vector_id in files:
        pieces = parts_of(path, size, piece_bytes)
        inside = [each for each in pieces if piece_range(piece_name(path, vector_id, each), cuts) == range_id]
        if len(inside) == len(pieces):
            found.whole.append(path)
        elif inside:
            found.parts[path] = inside
    return found


def row_spans(group_rows: list[int], pieces: Iterable[PieceOfFile]) -> list[tuple[int, int]]:
    """Which rows of a file its `pieces` have, by their places in it, with neighbours in one span."""
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
    """How often a snapshot is cut so that a range has no more than `range_bytes` on average, or DEPTH_MAX."""
    return next((cuts for cuts in range(DEPTH_MAX) if total_bytes <= range_bytes << cuts), DEPTH_MAX)
