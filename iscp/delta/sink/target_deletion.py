"""Deletes a table that a job maintains: its rows, its files, its log, and nothing else that lies in its directory."""

from __future__ import annotations

import json
import posixpath
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from iscp.delta.log.commits import commit_file, log_of, newest_version, read_actions, read_commit
from iscp.delta.log.readable_files import LOG, STAGED
from iscp.delta.sink.sink_position import PositionReader
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import deletion_id
from iscp.model.values.errors import ErrorCode, PermanentError, TableNotFound
from iscp.model.values.watermark import NOTHING_APPLIED, Position, Watermark
from iscp.ports.sink import CommitTag, Deleted, DeletionOrder
from iscp.ports.system import Failpoints
from iscp.storage import files
from iscp.storage.delta_errors import storage_faults
from iscp.storage.files import SCRATCH_PREFIX
from iscp.storage.locations import BUILDS, VERSIONS, commit_name, is_manifest, place
from iscp.storage.regular_files import is_below, path_below

# --- rules for all kinds of targets -----------------------------------------------------------------------------------
# They say whose a target has to be, what stays, and how a deletion reports that.

FILES_AT_ONCE = 1_000
"""Files that are deleted between two checks of whether this may go on: as many as one request to S3 takes."""

LEFT_SHOWN_MAX = 3
"""Files of others in a target's directory that are named; of more their number is."""

_REMEDY = "Unregister the job without its target, and delete by hand what is yours"


def require_kept_by(row: JobRow, uri: str, there: Position) -> None:
    """Raise PermanentError unless a target's last commit is the registration's, or the one that began its deletion."""
    if there.job_id not in (row.job_id, deletion_id(row.job_id)):
        kept = f"was kept last by the registration {there.job_id}" if there.job_id else "was never the job's"
        raise refused_deletion(f"{uri} {kept}, so that nothing was deleted")


def dataset_within(place: str, *, own_versions: bool = False) -> str:
    """Return a table, or an index, in a target's directory; empty: there is none.

    The target's own log is none. `own_versions`: nor are manifests that lie where those of an index do.
    """
    with storage_faults(f"list {place}"):
        for path, _ in files.files_below(place):
            folder, name = posixpath.split(path)
            top, log = posixpath.split(folder)
            is_table = log == LOG and (top or own_versions) and not top.startswith(STAGED)
            is_index = log == VERSIONS and is_manifest(name) and (top or not own_versions)
            if is_table or is_index:
                return f"{place}/{top}".rstrip("/")
    return ""


def shown_files(top: str, foreign: Sequence[str]) -> tuple[str, ...]:
    """Return the places of the first of some files, and how many more there are."""
    shown = tuple(f"{top}/{path}" for path in sorted(foreign)[:LEFT_SHOWN_MAX])
    more = len(foreign) - len(shown)
    return (*shown, f"and {more} more files in {top}") if more else shown


def refused_deletion(message: str) -> PermanentError:
    """Return the error of a target that is not to be deleted."""
    return PermanentError(message, remedy=_REMEDY, code=ErrorCode.TARGET_UNUSABLE)


# --- Delta tables -----------------------------------------------------------------------------------------------------

KIND = "deletion"
"""The kind of the commit by which a deletion begins."""

_WITHIN = rf"(?:{STAGED}-[^/]+/(?:[^/]+/)?)?"  # rows that wait for their commit, of a snapshot or of a range
_OWN_FILE = re.compile(
    rf"{_WITHIN}(?:_change_data/)?\.?(?:part|cdc)-[^/]+\.parquet(?:\.crc)?"
    rf"|{_WITHIN}(?:[0-9A-Za-z]+/)?\.?deletion_vector_[0-9a-f-]{{36}}\.bin(?:\.crc)?"
    rf"|{STAGED}-[^/]+/(?:[^/]+/)?{LOG}/[^/]+"
    rf"|{BUILDS}/[^/]+/[^/]+/[^/]+\.json"
    rf"|\.?_iscp-[^/]+\.json(?:\.[0-9a-f]+\.tmp)?"
    rf"|{re.escape(SCRATCH_PREFIX)}[^/]+/file"
)
_OWN_LOG_FILE = re.compile(
    rf"{LOG}/(?:\.?(?P<version>\d{{20}})\.[\w.-]+|\.?_last_checkpoint[\w.-]*|_commit_[\w-]+\.json\.tmp"
    rf"|_sidecars/[\w.-]+)"
)
_OWN_FOLDER = re.compile(rf"(?:{STAGED}-[^/]+|{BUILDS}|_change_data|{LOG}/_sidecars)(?:/.*)?")


class TargetDeletion:
    """Deletes the table at `uri`. `empty` commits, with a tag, that it has no rows any more.

    That commit comes first, at the next seq. Whatever is on its way for the table fails at it, and it says whose the
    deletion is: as long as it is the newest commit, what lies in the directory is what the deletion has yet to delete,
    and whoever repeats the deletion goes on there. The commit's file goes last, so that a directory without it is a
    deletion that is over, or somebody else's.
    """

    def __init__(self, uri: str, failpoints: Failpoints, empty: Callable[[CommitTag], Position]) -> None:
        self._uri = uri
        self._place = place(uri)
        self._failpoints = failpoints
        self._empty = empty

    def run(self, order: DeletionOrder, delete_beside: Callable[[], tuple[str, ...]]) -> Deleted:
        """Delete the table as `Sink.delete` describes it; `delete_beside` does what comes before the log goes, and
        returns what it has left.
        """
        try:
            newest = newest_version(self._uri)
        except TableNotFound:
            return Deleted(order.row.seq, delete_beside())
        if files.is_link(log_of(self._uri)):
            raise refused_deletion(f"the log of {self._uri} is a link, so that nothing was deleted")
        seq = self._seq_of_deletion(order.row, newest)
        if seq is None:
            began = self._begin(order)
            seq, newest = began.seq, began.base_version
        self._failpoints.reach("deletion.began")
        self._delete_rows(order, newest)
        self._failpoints.reach("deletion.rows_gone")
        left = delete_beside()
        self._failpoints.reach("deletion.beside_gone")
        foreign = self._delete_log(order, newest)
        return Deleted(seq, (*shown_files(self._place, foreign), *left))

    def _seq_of_deletion(self, row: JobRow, newest: int) -> int | None:
        """Return the seq of the newest commit if this registration's deletion has begun by it."""
        commit = read_commit(self._uri, newest)
        try:
            tag = json.loads(commit.user_metadata) if commit is not None and commit.seq is not None else {}
            ours = (tag.get("kind"), tag.get("job_id")) == (KIND, deletion_id(row.job_id))
        except (ValueError, AttributeError):
            ours = False
        return commit.seq if ours and commit is not None else None

    def _begin(self, order: DeletionOrder) -> Position:
        """Commit that the table has no rows. Raises PermanentError where it is not to be deleted, Conflict where
        another writer was first.
        """
        there = PositionReader(self._uri).read(order.row)
        require_kept_by(order.row, self._uri, there)
        if there.void:
            raise refused_deletion(f"others have written to {self._uri}, so that nothing was deleted: {there.void}")
        if within := dataset_within(self._place):
            raise refused_deletion(f"{within} lies within {self._uri}, so that nothing was deleted")
        return self._empty(_tag_of(order, there))

    def _delete_rows(self, order: DeletionOrder, newest: int) -> None:
        """Delete the files of rows, those too that the commit has removed, by their names in the log.

        A file that is younger than the commit is nobody's that is known.
        """
        named = self._names_in(newest)
        with storage_faults(f"delete what {self._place} holds"):
            since_s = files.read(commit_file(self._uri, newest))[1]
            gone = (
                path
                for path, at_s in files.files_below(self._place)
                if path in named or (at_s <= since_s and _OWN_FILE.fullmatch(path))
            )
            self._delete(order, newest, gone)
            for folder in files.folders_below(self._place):
                if _OWN_FOLDER.fullmatch(folder):
                    files.remove_folder(f"{self._place}/{folder}")

    def _names_in(self, version: int) -> frozenset[str]:
        """Return the paths of the files that a commit has removed, whoever wrote them."""
        removed = (action["remove"]["path"] for action in read_actions(self._uri, version) or () if "remove" in action)
        return frozenset(path_below(path) for path in removed if is_below(path))

    def _delete_log(self, order: DeletionOrder, newest: int) -> list[str]:
        """Delete the log, the oldest first and the commit of the deletion last, and return what else is there."""
        last = f"{LOG}/{commit_name(newest)}"
        own: dict[str, str] = {}
        foreign: list[str] = []
        with storage_faults(f"delete the log of {self._uri}"):
            for path, _ in files.files_below(self._place):
                found = _OWN_LOG_FILE.fullmatch(path)
                if found is None:
                    foreign.append(path)
                elif path != last:
                    own[path] = found["version"] or ""
            self._delete(order, newest, sorted(own, key=lambda path: (own[path], path)))
            self._failpoints.reach("deletion.log_gone")
            self._require_newest(order, newest)
            files.remove(f"{self._place}/{last}")
            self._failpoints.reach("deletion.over")
            for folder in (f"{LOG}/_sidecars", LOG, ""):
                files.remove_folder(f"{self._place}/{folder}".rstrip("/"))
        return foreign

    def _delete(self, order: DeletionOrder, newest: int, paths: Iterable[str]) -> None:
        waiting = iter(paths)
        while batch := list(islice(waiting, FILES_AT_ONCE)):
            self._require_newest(order, newest)
            files.remove_all([f"{self._place}/{path}" for path in batch])

    def _require_newest(self, order: DeletionOrder, newest: int) -> None:
        order.guard.check()
        if files.exists(commit_file(self._uri, newest + 1)):
            raise refused_deletion(f"others have written to {self._uri} while it was deleted: the rest stays")


def delete_beside(order: DeletionOrder, deletions: Iterable[TargetDeletion]) -> Iterator[str]:
    """Delete the tables beside a target that are of the same registration, and yield why others stay."""
    # What the job log knows of the target says nothing of them.
    own = replace(order, row=order.row._replace(seq=0, watermark=Watermark()))
    for each in deletions:
        try:
            yield from each.run(own, lambda: ()).left
        except PermanentError as error:
            yield error.message


def _tag_of(order: DeletionOrder, there: Position) -> CommitTag:
    return CommitTag(
        seq=there.seq + 1,
        job_id=deletion_id(order.row.job_id),
        source_id=there.source_id,
        from_version=NOTHING_APPLIED,
        watermark=Watermark(),
        epoch=order.epoch,
        base_version=there.base_version,
        attempt=uuid.uuid4().hex[:12],
        kind=KIND,
    )
