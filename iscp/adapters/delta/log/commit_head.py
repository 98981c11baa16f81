"""Reads what a commit says of itself, from the beginning of its file alone: writers put that first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from iscp.adapters.delta.log.actions import text_of
from iscp.adapters.delta.log.commits import log_of
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.locations import commit_name
from iscp.core.values.trace_context import TRACE_KEY, trace_of

COMMIT_INFO_BYTES_MAX = 65_536
"""Bytes at the beginning of a commit's file where it has to say what it is."""

_COMMIT_INFO = b'{"commitInfo":'


def read_commit_info(log: str, version: int) -> Mapping[str, Any]:
    """Return the `commitInfo` of a commit; empty if it has none there, or is gone. Raises OSError."""
    try:
        head = files.read_head(f"{log}/{commit_name(version)}", COMMIT_INFO_BYTES_MAX)
    except FileNotFoundError:
        return {}
    line = next((line for line in head.splitlines() if line.startswith(_COMMIT_INFO)), b"")
    try:
        about = json.loads(line)["commitInfo"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def read_commit_trace(table_uri: str, version: int) -> str:
    """Return the context in the user metadata of a commit, a JSON object with TRACE_KEY; empty if there is none.

    Raises OSError.
    """
    text = text_of(read_commit_info(log_of(table_uri), version), "userMetadata")
    if TRACE_KEY not in text:
        return ""
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return trace_of(metadata.get(TRACE_KEY)) if isinstance(metadata, dict) else ""
