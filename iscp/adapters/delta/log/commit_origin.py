"""Reads from a commit of a table what the table's rows are made of, as iscp writes it into each commit of a target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from iscp.adapters.delta.log.commits import Commit, read_commit
from iscp.adapters.delta.storage.action_paths import REACH, Reach
from iscp.core.values.errors import PermanentError, StorageError
from iscp.core.values.exact_watermarks import exact_watermark, parse_sources
from iscp.core.values.untrusted_values import exact_name
from iscp.core.values.watermark import SourceMark, SourceMarks, Watermark
from iscp.ports.source import CommitOrigin

TABLE_KEY = "table"
"""The name under which a commit has the URI of the one table that its target follows; of several, `sources` has it."""


def read_origin(uri: str, version: int) -> CommitOrigin | None:
    """Return the origin of one commit; None: it is not in the log. Raises StorageError."""
    commit = read_commit(uri, version)
    return None if commit is None else origin_of(uri, commit)


def origin_of(uri: str, commit: Commit, reach: Reach = REACH) -> CommitOrigin:
    """Return what a commit of the table at `uri` says; one that is not iscp's, or cannot be read, says nothing of
    sources.

    Whoever may write to the table may have named any place as one: a place is followed as those of files are.
    """
    changes = commit.changes_data or commit.metadata_id is not None
    if commit.seq is None:
        return CommitOrigin(changes_data=changes)
    try:
        sources = _sources_of(json.loads(commit.user_metadata))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sources = {}
    beyond = frozenset(each for each in sources if each and not _is_followed(uri, each, reach))
    return CommitOrigin(sources, beyond, changes)


def _is_followed(uri: str, source: str, reach: Reach) -> bool:
    try:
        reach.follow(uri, source)
    except (StorageError, PermanentError):
        return False
    return "%" not in source  # which names another place once it is decoded


def _sources_of(tag: Mapping[str, Any]) -> SourceMarks:
    if sources := parse_sources(tag.get("sources", {})):
        return sources
    at = exact_watermark(Watermark(tag["to"], tag["at"], tag.get("step", 0), tag.get("steps", 0)))
    if at.version < 0:  # a claim, under which the rows stay what they were
        return {}
    return {exact_name(tag.get(TABLE_KEY, ""), TABLE_KEY): SourceMark(exact_name(tag["source_id"], "source_id"), at)}
