"""What a job requests whose first snapshot is built by ranges: its status carries it until the job is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iscp.core.build_task import DEPTH_MAX
from iscp.core.untrusted_values import exact_int, shown


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """`version` of the source is to be built, cut `depth` times; `piece_bytes` as in BuildPlan."""

    version: int
    piece_bytes: int
    depth: int

    def document(self) -> dict[str, int]:
        """As the job log has it, in JSON."""
        return {"version": self.version, "piece_bytes": self.piece_bytes, "depth": self.depth}


def parse_build(document: object) -> BuildRequest:
    """Of `BuildRequest.document`; raises ValueError."""
    if not isinstance(document, Mapping):
        raise ValueError(f"build is {shown(document)}, which does not map names to numbers")
    return BuildRequest(
        exact_int(document.get("version"), "build.version"),
        exact_int(document.get("piece_bytes"), "build.piece_bytes"),
        exact_int(document.get("depth"), "build.depth", 0, DEPTH_MAX),
    )


def exact_build(found: object, name: str = "build") -> BuildRequest | None:
    """As it may be kept. Raises ValueError."""
    if found is None:
        return None
    if not isinstance(found, BuildRequest):
        raise ValueError(f"{name} is {shown(found)}, which is no BuildRequest")
    return parse_build(found.document())
