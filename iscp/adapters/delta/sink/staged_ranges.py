"""Stages the ranges of a build under their target (port StagedRanges), whatever the target is.

What says that rows count, a manifest for each range, lies in a folder that neither readers nor VACUUM open. How the
rows themselves are staged is the target's matter (RowStager). Those of a Delta table lie in folders like those of other
staged tables, one for each attempt: once published they are the target's files, and those of attempts that did not
count VACUUM takes. So a build may take as long as VACUUM retains files that are in no commit, a week if nobody has
changed that; one whose files are gone is noticed before it is published.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from iscp.adapters.delta.log.nested_tables import STAGED
from iscp.adapters.delta.sink.staging import stage_in, staged_adds
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.dataset_names import BUILD_BEGUN, BUILDS
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.locations import S3, place
from iscp.core.build.build_request import BuildId
from iscp.core.build.build_terms import NO_TERMS, BuildTerms, parse_terms
from iscp.core.values.errors import PlanOutdated
from iscp.ports.rows import Rows
from iscp.ports.sink import BuildEnd, Manifest, StagedState
from iscp.ports.system import Failpoints

MANIFESTS_AT_ONCE = 16
"""Manifests that are read side by side, as a store may take long to answer; others wait."""

FILES_LISTED_MAX = 1_000_000
"""Files of a build that are seen where its target is listed; with more of them it is taken for one that lost some."""

_FORMAT = 1
_NO_ROWS = Manifest(0, 0)
_SUMS = ("format", "rows", "bytes", "schema")


class RowStager(Protocol):
    """Writes the rows of ranges under a target, where no reader sees them."""

    def stage(self, rows: Rows, folder: str) -> Manifest:
        """Write rows, into this folder below the target if they are files of their own."""

    def are_there(self, manifests: Sequence[Manifest], folder: str) -> bool:
        """Return whether all files that manifests name are there still."""


class DeltaRowStager:
    """Stages rows as the files of a Delta table (port RowStager)."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def stage(self, rows: Rows, folder: str) -> Manifest:
        return stage_in(rows, self._uri, folder)

    def are_there(self, manifests: Sequence[Manifest], folder: str) -> bool:
        there = {*files.names_below(f"{place(self._uri)}/{folder}", FILES_LISTED_MAX)}
        named = (str(add["path"]) for manifest in manifests for add in staged_adds(manifest))
        return all(path.removeprefix(f"{folder}/") in there for path in named)


class FileStagedRanges:
    """Stages the ranges of one build and one target (port StagedRanges).

    `stager` writes rows (None: as those of a Delta table). `passing`: the rows of all of its builds are deleted with
    them, whatever their terms say.
    """

    def __init__(
        self,
        uri: str,
        build: BuildId,
        failpoints: Failpoints,
        stager: RowStager | None = None,
        *,
        passing: bool = False,
    ) -> None:
        self._uri = uri
        self._build = build
        self._failpoints = failpoints
        self._stager = stager or DeltaRowStager(uri)
        self._passing = passing
        self._name = f"{build.version}-{build.digest}"
        self._all = f"{place(uri)}/{BUILDS}"
        self._marks = f"{self._all}/{build.job_id}/{self._name}"
        self._rows = _rows_folder(build.job_id, build.digest)

    def state(self) -> StagedState:
        with storage_faults(f"list {self._marks}"):
            names = {*files.names(self._marks)}
        end = next((each for each in BuildEnd if f"{each.value}.json" in names), None)
        ranges = (name.removesuffix(".json") for name in names)
        return StagedState(BUILD_BEGUN in names, end, frozenset(int(each) for each in ranges if each.isdecimal()))

    def begin(self, terms: BuildTerms = NO_TERMS) -> None:
        self._remove(but=self._name)
        self._mark(BUILD_BEGUN, {"version": self._build.version, **terms.document()}, first=True)

    def terms(self) -> BuildTerms | None:
        return self._read_terms(self._marks)

    def end(self, why: BuildEnd) -> None:
        with suppress(PlanOutdated):  # it is removed already
            self._mark(f"{why.value}.json", {})

    def stage(self, range_id: int, rows: Rows | None) -> None:
        folder = f"{self._rows}/{range_id}-{uuid.uuid4().hex[:12]}"
        staged = _NO_ROWS if rows is None else self._stager.stage(rows, folder)
        self._failpoints.reach("range.staged")
        document = {
            "rows": staged.rows,
            "bytes": staged.bytes,
            "schema": staged.schema_json,
            **staged.files,
        }
        self._mark(f"{range_id}.json", document)
        self._failpoints.reach("range.counted")

    def manifests(self, ranges: Sequence[int]) -> list[Manifest] | None:
        with ThreadPoolExecutor(MANIFESTS_AT_ONCE, "iscp-manifests") as pool:
            found = list(pool.map(self._read, ranges))
        whole = [manifest for manifest in found if manifest is not None]
        if len(whole) < len(found):
            return None
        some = [manifest for manifest in whole if manifest.files]
        with storage_faults(f"list {self._rows}"):
            return some if self._stager.are_there(some, self._rows) else None

    def remove(self) -> None:
        self._remove(but="")

    def _read(self, range_id: int) -> Manifest | None:
        path = f"{self._marks}/{range_id}.json"
        try:
            with storage_faults(f"read {path}"):
                found = json.loads(files.read(path)[0])
            files_found = {name: value for name, value in found.items() if name not in _SUMS}
            return Manifest(found["rows"], found["bytes"], found["schema"], files_found if found["rows"] else {})
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _read_terms(self, marks: str) -> BuildTerms | None:
        path = f"{marks}/{BUILD_BEGUN}"
        try:
            with storage_faults(f"read {path}"):
                return parse_terms(json.loads(files.read(path)[0]))
        except (FileNotFoundError, ValueError):
            return None

    def _mark(self, name: str, document: dict[str, object], *, first: bool = False) -> None:
        """Put a file if none of its name is there. Raises PlanOutdated where the build was removed."""
        path = f"{self._marks}/{name}"
        gone = f"the build of {self._uri} at version {self._build.version} was removed"
        try:
            with storage_faults(f"write {path}"):
                if not first and not files.exists(f"{self._marks}/{BUILD_BEGUN}"):
                    raise PlanOutdated(gone)
                if first and not path.startswith(S3):
                    os.makedirs(self._marks, exist_ok=True)
                files.create(path, json.dumps({"format": _FORMAT, **document}).encode())
        except FileNotFoundError as error:
            raise PlanOutdated(gone) from error

    def _remove(self, but: str) -> None:
        """Remove what this job, and earlier ones of the target, have left, except the build `but`."""
        with storage_faults(f"clear {self._all}"):
            for job_id, name in sorted({*self._builds()}):
                if job_id < self._build.job_id or (job_id == self._build.job_id and name != but):
                    terms = self._read_terms(f"{self._all}/{job_id}/{name}")
                    with suppress(FileNotFoundError):
                        files.remove_tree(f"{self._all}/{job_id}/{name}")
                    if self._passing or (terms is not None and terms.passing):
                        with suppress(FileNotFoundError):
                            files.remove_tree(f"{place(self._uri)}/{_rows_folder(job_id, name.partition('-')[2])}")

    def _builds(self) -> Iterator[tuple[str, str]]:
        for path in files.names_below(self._all, FILES_LISTED_MAX):
            job_id, _, rest = path.partition("/")
            if rest:
                yield job_id, rest.partition("/")[0]


def _rows_folder(job_id: str, digest: str) -> str:
    """Return the folder of a build's rows, below the target."""
    return f"{STAGED}-{job_id}-{digest}"
