"""Deletions of all kinds of targets share these rules: whose a target has to be, what stays, and how it is said."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from iscp.adapters.delta.log.nested_tables import LOG, STAGED
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.dataset_names import VERSIONS, is_manifest
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.core.job.job_row import JobRow
from iscp.core.job.registration_id import deletion_id
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import Position

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
