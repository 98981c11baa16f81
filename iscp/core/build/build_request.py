"""The request of a job whose first snapshot is built by ranges: its status carries it until the job is built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from iscp.core.build.build_task import DEPTH_MAX
from iscp.core.values.progress import UNKNOWN, UNSIZED, SnapshotSize, count_or_unknown
from iscp.core.values.untrusted_values import exact_int, exact_name, shown

_DIGEST_BYTES = 8


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
