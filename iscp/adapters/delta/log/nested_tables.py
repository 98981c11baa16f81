"""Finds Delta tables and indexes in whose directory a place lies, and those in its own, at a bounded cost."""

from __future__ import annotations

import posixpath

from iscp.adapters.delta.log.commits import log_of
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.dataset_names import VERSIONS, is_manifest
from iscp.adapters.delta.storage.locations import on_s3, place
from iscp.core.job.target_state import TargetLog

LOOKED_AT_MAX = 1_000
"""Names below a new target among which tables and indexes are searched; one beyond them is not found."""

STAGED = "iscp-staged"
"""The prefix of directories in which rows wait for their commit: a writer that died leaves their log."""

LOG = "_delta_log"
"""The directory of a table in which its log lies."""


def logs_at(uri: str) -> frozenset[TargetLog]:
    """Return the kinds of logs that lie at `uri` itself. Raises OSError, InvalidRequest."""
    path = place(uri)
    table = {TargetLog.DELTA} if files.names(log_of(path)) else set()
    return frozenset(table | {TargetLog.LANCE} if _is_index(path) else table)


def table_around(uri: str) -> str:
    """Return a table or index above or below `uri`, which itself may be one; empty: none was found. Raises OSError,
    InvalidRequest.
    """
    path = place(uri)
    above, roots = posixpath.dirname(path), 3 if on_s3(path) else 1
    while above.count("/") >= roots and above != "/":
        if files.names(log_of(above)) or _is_index(above):
            return above
        above = posixpath.dirname(above)
    tried = {""}
    for name in files.names_below(path, LOOKED_AT_MAX):
        table, _, rest = name.partition(f"/{LOG}")
        if rest[:1] in ("", "/") and table != name and not table.startswith(STAGED):
            return f"{path}/{table}"
        index = name.partition(f"/{VERSIONS}")[0]
        if index != name and index not in tried:
            tried.add(index)
            if _is_index(f"{path}/{index}"):
                return f"{path}/{index}"
    return ""


def _is_index(path: str) -> bool:
    """Return whether a Lance dataset is there, as indexes are."""
    return any(is_manifest(name) for name in files.names(f"{path}/{VERSIONS}"))
