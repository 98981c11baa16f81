"""Retains the change rows of commits beside the job log (port RetainedCommits).

`<log>/iscp_kept/<table>/<version>/` has the rows of one commit, as files like those of a staged table, in a folder for
each attempt, and `manifest.json`, which is put last and if there is none: without it nothing counts, and with it the
files that it names, each of its size. The manifest bears a digest of itself, and what was known of the commit when it
was read, so that neither the table's log nor its files are needed any more.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE, STAMPS
from iscp.adapters.delta.sink.staging import stage_in, staged_adds, staged_rows
from iscp.adapters.delta.source.change_set import DeltaChangeSet, RowsAfter
from iscp.adapters.delta.source.change_source import DeltaChangeSource
from iscp.adapters.delta.spark.spark_errors import reading_changes
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.locations import S3, place
from iscp.adapters.system.late_imports import F, T
from iscp.core.job.iteration import Bounds
from iscp.core.job.usage import UsagePart
from iscp.core.sql.sql_names import quoted
from iscp.core.values.progress import TableSize
from iscp.core.values.watermark import Watermark
from iscp.ports.range_builder import TablePlace
from iscp.ports.rows import Rows
from iscp.ports.sink import Manifest
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.ports.system import Failpoints, Guard
from iscp.ports.work_timer import charged_as

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

FOLDER = "iscp_kept"
_FORMAT = 1
_DIGEST_BYTES = 16
_WHOLE = Bounds(sys.maxsize, sys.maxsize, 1)
"""A commit is retained as one, however large it is."""
_MARKS = (CHANGE_TYPE, *STAMPS)
_TUPLES = ("collated", "retyped", "lost")
_OF_READING = frozenset({"more", "step", "steps", "origin"})


@dataclass(frozen=True, slots=True)
class _RetainedCommit:
    """One commit. `readable`: its changes can be handed to consumers; otherwise they have to compare anyway.

    `columns` are the table's as of it, whose rows have them as `c0`, `c1` and so on; it has none if it has no rows.
    """

    span: SourceRange
    readable: bool
    columns: tuple[str, ...]
    rows: Manifest

    @property
    def size(self) -> TableSize:
        return TableSize(self.rows.rows, self.rows.bytes)

    def document(self) -> dict[str, Any]:
        rows = {name: getattr(self.rows, name) for name in ("schema_json", "rows", "bytes")}
        span = {name: value for name, value in asdict(self.span).items() if name not in _OF_READING}
        if not self.span.lost:
            del span["lost"]  # the release before does not know it, and what it does not know it takes for damaged
        said = {"format": _FORMAT, "span": span, "readable": self.readable, "columns": self.columns, **rows}
        said["add_actions"] = staged_adds(self.rows)
        return {**said, "digest": _digest(said)}

    @classmethod
    def parse(cls, document: dict[str, Any]) -> _RetainedCommit:
        """Parse a manifest. Raises ValueError, KeyError, TypeError."""
        if document.pop("digest") != _digest(document) or document["format"] != _FORMAT:
            raise ValueError("it is damaged, or of another version")
        span = {**document["span"], "to": Watermark(**document["span"]["to"])}
        span.update({name: tuple(span.get(name, ())) for name in _TUPLES})
        span["updates"] = {int(version): rows for version, rows in span["updates"].items()}
        adds = {"adds": tuple(document["add_actions"])}
        rows = Manifest(document["rows"], document["bytes"], document["schema_json"], adds)
        return cls(SourceRange(**span), document["readable"], tuple(document["columns"]), rows)


def _digest(said: dict[str, Any]) -> str:
    content = json.dumps(said, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


class DeltaRetainedCommits:
    """Retains commits below the directory, or the prefix of an object store, of the job log."""

    def __init__(self, uri: str, source: DeltaChangeSource, failpoints: Failpoints, cached_bytes_max: int) -> None:
        """Changes of up to `cached_bytes_max` bytes are read into memory; Spark reads larger ones."""
        self._root = f"{uri.rstrip('/')}/{FOLDER}"
        self._source = source
        self._failpoints = failpoints
        self._cached_bytes_max = cached_bytes_max

    def retain(self, session: SparkSession, table: TablePlace, version: int, guard: Guard) -> TableSize:
        known = self._find(table, version)
        try:
            span = self._resolve_one(table.uri, version)
        except ChangesUnavailableError:
            if known is None:
                raise
            return known.size
        if known is not None and known.span == span:
            return known.size
        folder = self._folder(table, version)
        with storage_faults(f"clear {folder}"), suppress(FileNotFoundError):
            files.remove_tree(place(folder))  # of another commit of this version, or damaged
        commit = self._stage(session, table.uri, span, f"{_name(table)}/{version}")
        self._failpoints.reach("keep.staged")
        guard.check()
        path = f"{place(folder)}/manifest.json"
        with storage_faults(f"write {path}"):
            if not path.startswith(S3):
                os.makedirs(place(folder), exist_ok=True)
            files.create(path, json.dumps(commit.document()).encode())
        self._failpoints.reach("keep.counted")
        return commit.size

    def remove(self, table: TablePlace) -> None:
        path = f"{place(self._root)}/{_name(table)}"
        with storage_faults(f"clear {path}"), suppress(FileNotFoundError):
            files.remove_tree(path)

    @charged_as(UsagePart.READ)
    def resolve(
        self, table: TablePlace, from_version: int, to_version: int | None, bounds: Bounds
    ) -> SourceRange | None:
        taken: list[_RetainedCommit] = []
        last = from_version + bounds.versions_max
        for version in range(from_version + 1, 1 + (last if to_version is None else min(last, to_version))):
            commit = self._find(table, version)
            if commit is None or not commit.readable or (taken and not _goes_on(taken, commit, bounds)):
                break
            taken.append(commit)
        return _joined([commit.span for commit in taken]) if taken else None

    @charged_as(UsagePart.READ)
    def columns(self, table: TablePlace, span: SourceRange) -> tuple[str, ...]:
        return next((commit.columns for commit in reversed(self._all(table, span)) if commit.columns), ())

    @charged_as(UsagePart.READ)
    def read(
        self, session: SparkSession, table: TablePlace, span: SourceRange, columns: Sequence[str], readers: int
    ) -> DeltaChangeSet:
        found = [commit for commit in self._all(table, span) if commit.columns]
        with reading_changes(f"read what is kept of {table.uri}"):
            rows = self._open(session, [commit.rows for commit in found])
            names = {name: f"c{number}" for number, name in enumerate(found[-1].columns)}
            wanted = [F.col(names[name]).alias(name) for name in columns]
            frame = rows.select(*wanted, *[F.col(f"m{number}").alias(name) for number, name in enumerate(_MARKS)])
            after = RowsAfter(partial(self._source.snapshot, session, table.uri, span.last_version))
            small = self._cached_bytes_max >= sum(commit.rows.bytes for commit in found)
            return DeltaChangeSet.read_by_spark(frame, span, after, small, readers)

    def _open(self, session: SparkSession, manifests: Sequence[Manifest]) -> DataFrame:
        if any(map(staged_adds, manifests)):
            return staged_rows(session, self._root, manifests)
        return session.createDataFrame([], T.StructType.fromJson(json.loads(manifests[0].schema_json)))

    def _resolve_one(self, uri: str, version: int) -> SourceRange:
        span = self._source.resolve(uri, Watermark(version - 1, 0.0), version, _WHOLE)
        if span.to.version != version:
            raise ChangesUnavailableError(f"version {version} is not in the log")
        return span

    def _stage(self, session: SparkSession, uri: str, span: SourceRange, folder: str) -> _RetainedCommit:
        nothing = Manifest(0, 0)
        if not span.changes_data:
            return _RetainedCommit(span, True, (), nothing)
        if not (span.cdf_on or span.inserts_only):
            return _RetainedCommit(span, False, (), nothing)
        columns = self._source.columns(uri, span.to.version)
        read = self._source.read_cdf if span.cdf_on else self._source.read_appends
        changes = read(session, uri, span, columns, 1)
        try:
            return _RetainedCommit(
                span, True, columns, self._write(changes, columns, f"{folder}/{uuid.uuid4().hex[:12]}")
            )
        finally:
            changes.release()

    def _write(self, changes: DeltaChangeSet, columns: Sequence[str], folder: str) -> Manifest:
        """Write the rows under names that every format takes."""
        names = [(f"c{number}", name) for number, name in enumerate(columns)]
        names += [(f"m{number}", name) for number, name in enumerate(_MARKS)]
        table = changes.table
        renamed = Rows(
            lambda: changes.every().select(*[F.col(quoted(name)).alias(short) for short, name in names]),
            lambda: None if table is None else pa.table({short: table[name] for short, name in names}),
        )
        with reading_changes("keep changes"):
            return stage_in(renamed, self._root, folder)

    def _all(self, table: TablePlace, span: SourceRange) -> list[_RetainedCommit]:
        found = [self._find(table, version) for version in range(span.from_version + 1, span.to.version + 1)]
        whole = [commit for commit in found if commit is not None]
        if len(whole) < len(found) or not any(commit.columns for commit in whole):
            raise ChangesUnavailableError("what was kept is gone")
        return whole

    def _find(self, table: TablePlace, version: int) -> _RetainedCommit | None:
        """Return what is retained of a commit, or None if not all of it is there."""
        path = f"{place(self._folder(table, version))}/manifest.json"
        try:
            with storage_faults(f"read {path}"):
                content, _ = files.read(path)
            commit = _RetainedCommit.parse(json.loads(content))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("kept.unreadable", extra={"path": path, "error": str(error)})
            return None
        with storage_faults(f"list the files of {path}"):
            for add in staged_adds(commit.rows):
                if files.stamp(f"{place(self._root)}/{add['path']}")[-1:] != (add["size"],):
                    log.warning("kept.incomplete", extra={"path": path, "file": add["path"]})
                    return None
        return commit

    def _folder(self, table: TablePlace, version: int) -> str:
        return f"{self._root}/{_name(table)}/{version}"


def _name(table: TablePlace) -> str:
    """Return the name of the table's folder, which has a digest of its URI, as copies of a table share its id."""
    return f"{quote(table.table_id, safe='')}-{hashlib.blake2b(table.uri.encode(), digest_size=8).hexdigest()}"


def _goes_on(taken: Sequence[_RetainedCommit], commit: _RetainedCommit, bounds: Bounds) -> bool:
    """Return whether one iteration takes this commit together with those that it takes already.

    A commit that changes the columns needs an iteration of its own, and all have to stay within `bounds`.
    """
    spans = [each.span for each in (*taken, commit)]
    size = sum(span.bytes for span in spans)
    rows = sum(each.rows.rows for each in (*taken, commit))
    same = not any(span.reshapes for span in spans) and spans[-1].table_id == spans[0].table_id
    return same and spans[-1].cdf_on == spans[0].cdf_on and size <= bounds.bytes_max and rows <= bounds.rows_max


def _joined(spans: Sequence[SourceRange]) -> SourceRange:
    return replace(
        spans[0],
        to=spans[-1].to,
        more=True,
        bytes=sum(span.bytes for span in spans),
        changes_data=any(span.changes_data for span in spans),
        inserts_only=all(span.inserts_only or not span.changes_data for span in spans),
        updates={version: rows for span in spans for version, rows in span.updates.items()},
    )
