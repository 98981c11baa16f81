"""Finds Delta tables in whose directory a place lies, and those that lie in its own, at a bounded cost."""

from __future__ import annotations

import posixpath

from iscp.adapters.delta.log.commits import log_of
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.locations import on_s3, place

LOOKED_AT_MAX = 1_000
"""Names below a new target among which tables are searched; a table beyond them is not found."""

STAGED = "iscp-staged"
"""The prefix of directories in which rows wait for their commit: a writer that died leaves their log."""

_LOG = "_delta_log"


def table_around(uri: str) -> str:
    """Return a table above or below `uri`, which itself may be one; empty: none was found. Raises OSError,
    InvalidRequest.
    """
    path = place(uri)
    above, roots = posixpath.dirname(path), 3 if on_s3(path) else 1
    while above.count("/") >= roots and above != "/":
        if files.names(log_of(above)):
            return above
        above = posixpath.dirname(above)
    for name in files.names_below(path, LOOKED_AT_MAX):
        table, _, rest = name.partition(f"/{_LOG}")
        if rest[:1] in ("", "/") and table != name and not table.startswith(STAGED):
            return f"{path}/{table}"
    return ""
