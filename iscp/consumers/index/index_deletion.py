"""Deletes an index that a job maintains: its rows, its segments, its versions, and nothing else in its directory.

A commit comes first that takes all away, at the next seq, and says whose the deletion is. It is one that whatever is
based on a version before it cannot pass (`fences`), and its version stays, with a row that has the head and nothing
else: some kilobytes, by which a writer that has slept for however long still fails. Each try makes such a commit of its
own, so that no state between two steps is special. A later registration of the place goes on from what is left.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from itertools import islice

from iscp.adapters.delta.sink.deletion_parts import (
    FILES_AT_ONCE,
    dataset_within,
    refused_deletion,
    require_kept_by,
    shown_files,
)
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.conditional_writes import SCRATCH_PREFIX
from iscp.adapters.delta.storage.dataset_names import (
    BUILDS,
    DATA,
    DELETIONS,
    INDICES,
    TRANSACTIONS,
    VERSION_HINT,
    VERSIONS,
    manifest_name,
)
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.core.job.registration_id import deletion_id
from iscp.core.job.watermark_record import WatermarkRecord, position_of, record_key
from iscp.core.values.errors import Conflict
from iscp.core.values.watermark import NOTHING_APPLIED, Position, Watermark
from iscp.index.lance.index_columns import dataset_schema
from iscp.index.lance.index_head import IndexHead
from iscp.index.lance.index_store import IndexStore, OpenIndex
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.segments import segments_of, statistics_name
from iscp.index.lance.word_counts import FOLDER
from iscp.ports.sink import Deleted, DeletionOrder

_REFS = "_refs"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TRIED = r"(?:\.[0-9a-f]{32}\.tmp)?"  # what iscp was about to write when it died
_PART = r"(?:#\d+)?"  # the same of Lance
_OWN_FILE = re.compile(
    rf"{DATA}/[01]{{24}}[0-9a-f]{{26}}\.lance{_PART}"
    rf"|{DELETIONS}/\d+-\d+-\d+\.(?:arrow|bin){_PART}"
    rf"|{INDICES}/{_UUID}/(?:[\w.-]+/)*[\w.#-]+"
    rf"|{FOLDER}/\.?(?:(?:words|keys)-[0-9a-f]{{32}}|segment-{_UUID})\.arrow{_TRIED}"
    rf"|{BUILDS}/[^/]+/[^/]+/\.?[^/]+\.json{_TRIED}"
    rf"|{re.escape(SCRATCH_PREFIX)}[^/]+/file"
)
_OWN_VERSION = re.compile(
    rf"{VERSIONS}/(?:\d{{20}}\.manifest{_PART}|\.tmp_[\w.-]+)|{TRANSACTIONS}/\d+-{_UUID}\.txn{_PART}"
)
_OWN_FOLDER = re.compile(rf"{DELETIONS}|(?:{INDICES}|{BUILDS})(?:/.*)?")


class IndexDeletion:
    """Deletes the index of `store`, as `order` says."""

    def __init__(self, store: IndexStore, order: DeletionOrder) -> None:
        self._store = store
        self._order = order
        self._root = store.root
        self._record = record_key(order.row.key, order.row.spec.consumer.target)

    def run(self) -> Deleted:
        """Delete the index as `Sink.delete` describes it; raises Conflict too if another writer was first."""
        if not self._store.exists():
            return Deleted(self._order.row.seq)
        with self._store.writing:  # so that the maintenance of this process loses no work against it
            base = self._store.open()
            there = position_of(base.head.records.get(self._record))
            self._require_own(base, there)
            named = _named(base)
            rest = self._begin(base, there.seq + 1)
            self._store.failpoints.reach("deletion.began")
            self._delete_rows(rest, named)
            self._store.failpoints.reach("deletion.rows_gone")
            left = self._delete_versions(rest)
            self._store.failpoints.reach("deletion.over")
        return Deleted(there.seq + 1, shown_files(self._root, left))

    def _require_own(self, base: OpenIndex, there: Position) -> None:
        """Raise PermanentError unless the index is the registration's alone."""
        require_kept_by(self._order.row, self._root, there)
        with lance_faults(f"read {self._root}"):
            rows = base.dataset.count_rows() - 1  # without the head
        if rows != base.head.rows:
            raise refused_deletion(
                f"others have written to {self._root}, which has {rows} rows, and {base.head.rows} by its head, so "
                "that nothing was deleted"
            )
        if within := dataset_within(self._root, own_versions=True):
            raise refused_deletion(f"{within} lies within {self._root}, so that nothing was deleted")
        with storage_faults(f"list {self._root}/{_REFS}"):
            if any(files.names_below(f"{self._root}/{_REFS}", 1)):
                raise refused_deletion(f"{self._root} has tags or branches of others, so that nothing was deleted")

    def _begin(self, base: OpenIndex, seq: int) -> _Rest:
        """Commit that the index is deleted, and return what stays of it. Raises Conflict."""
        record = WatermarkRecord(
            seq=seq,
            watermark=Watermark(),
            job_id=deletion_id(self._order.row.job_id),
            source_id=position_of(base.head.records.get(self._record)).source_id,
            from_version=NOTHING_APPLIED,
            epoch=self._order.epoch,
            attempt=uuid.uuid4().hex[:12],
        )
        commit = self._store.begin(base)
        commit.replace_all(dataset_schema((), 0, 0), IndexHead("", ()), fences=True)
        commit.apply(NOTHING_APPLIED, 0.0)
        commit.put(self._record, record.to_json())
        self._order.guard.check()
        return _Rest(self._root, self._store.open(commit.commit("delete the index").version))

    def _delete_rows(self, rest: _Rest, named: frozenset[str]) -> None:
        """Delete the files of rows and segments: those that the last version named, older ones of known names, and what
        says that ranges of the registration's builds are staged.

        Another file that is not older than the commit is nobody's that is known.
        """
        marks = f"{BUILDS}/{self._order.row.job_id}/"
        with storage_faults(f"delete what {self._root} holds"):
            since_s = rest.since_s()
            gone = (
                path
                for path, at_s in files.files_below(self._root)
                if not rest.has(path)
                and (
                    path in named
                    or "/".join(path.split("/", 2)[:2]) in named
                    or ((at_s < since_s or path.startswith(marks)) and _OWN_FILE.fullmatch(path))
                )
            )
            self._delete(rest, gone)
            for folder in files.folders_below(self._root):
                if _OWN_FOLDER.fullmatch(folder):
                    files.remove_folder(f"{self._root}/{folder}")

    def _delete_versions(self, rest: _Rest) -> list[str]:
        """Delete all versions before the last, the oldest first, and return what else is there."""
        own: list[str] = []
        foreign: list[str] = []
        with storage_faults(f"delete the versions of {self._root}"):
            for path, _ in files.files_below(self._root):
                if not rest.has(path):
                    (own if _OWN_VERSION.fullmatch(path) else foreign).append(path)
            # Names of manifests count down.
            self._delete(rest, sorted(own, reverse=True))
        return foreign

    def _delete(self, rest: _Rest, paths: Iterable[str]) -> None:
        waiting = iter(paths)
        while batch := list(islice(waiting, FILES_AT_ONCE)):
            self._order.guard.check()
            rest.require_newest()
            files.remove_all([f"{self._root}/{path}" for path in batch])


def _named(base: OpenIndex) -> frozenset[str]:
    """Return the files that a version names; of a segment, its directory."""
    fragments = [each.metadata for each in base.dataset.get_fragments()]
    segments = [each.uuid for each in segments_of(base.dataset)]
    paths = {f"{DATA}/{file.path}" for each in fragments for file in each.files}
    paths |= {each.deletion_file.path(each.id) for each in fragments if each.deletion_file is not None}
    paths |= {f"{FOLDER}/{name}" for name in (*base.head.count_files, *map(statistics_name, segments))}
    return frozenset(paths | {f"{INDICES}/{each}" for each in segments})


class _Rest:
    """The version that stays of an index says that it is deleted."""

    def __init__(self, root: str, at: OpenIndex) -> None:
        self._versions = f"{root}/{VERSIONS}"
        self._version = at.version
        self._manifest = manifest_name(at.version)
        fragments = [each.metadata for each in at.dataset.get_fragments()]
        named = {f"{DATA}/{file.path}" for each in fragments for file in each.files}
        self._paths = frozenset({*named, f"{VERSIONS}/{self._manifest}", f"{VERSIONS}/{VERSION_HINT}"})

    def has(self, path: str) -> bool:
        """Return whether a file stays: those of versions after it too, which somebody is about to have made."""
        if path in self._paths or path.startswith(f"{TRANSACTIONS}/{self._version - 1}-"):
            return True
        folder, _, name = path.partition("/")
        return folder == VERSIONS and name < self._manifest

    def since_s(self) -> float:
        """Return when the version was committed (Unix seconds)."""
        if not (found := files.stamp(f"{self._versions}/{self._manifest}")):
            raise Conflict(f"{self._versions} has lost the version {self._version}")
        return found[1] / 1e9

    def require_newest(self) -> None:
        """Raise Conflict if somebody has committed since."""
        if files.exists(f"{self._versions}/{manifest_name(self._version + 1)}"):
            raise Conflict(f"{self._versions} has a version after {self._version}")
