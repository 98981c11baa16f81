"""Delta tables, opened while others write to them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from iscp.adapters.delta.log.add_actions import add_actions_of
from iscp.adapters.delta.log.checkpointed import HINT, damage_of_checkpoints, hinted_version
from iscp.adapters.delta.log.commits import log_of, newest_version
from iscp.adapters.delta.log.log_guard import guard_log
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.action_paths import REACH, Reach, lies_elsewhere, path_below
from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.adapters.delta.storage.delta_errors import MESSAGE_LENGTH_MAX, CheckpointDamagedError
from iscp.core.values.errors import StorageError

log = logging.getLogger(__name__)

LISTINGS_MAX = 8
"""Listings of a table's log before a commit that is missing between two others counts as missing."""

_OF_PARQUET = "Parquet"
"""In what deltalake says of a checkpoint that it cannot read."""

_NOT_PLAINLY_BELOW = r"(?:^|/)\.{0,2}(?:/|$)|[%:]"
"""Matches paths that have to be followed part by part."""

_NO_CHECKPOINT = "_last_checkpoint hint"
"""In what it says where it does not find the one that is named there."""

_GAPS = ("found gap", "DELTA_VERSIONS_NOT_CONTIGUOUS")
"""The texts by which deltalake and Spark report a gap."""

R = TypeVar("R")


def open_delta(uri: str, version: int | None = None) -> DeltaTable:
    """Open the table as of `version`, or of the newest.

    Raises what deltalake raises, ConfigurationError, and StorageError or PermanentError where a file of the log may not
    be opened, or one of the table's files lies where its readers may not read.
    """
    guard_log(uri, version)
    table = _open(uri, version)
    require_own_files(uri, table)
    return table


def require_own_files(uri: str, table: DeltaTable, reach: Reach = REACH) -> None:
    """Raise StorageError or PermanentError where a file of the table has a path that its readers may not follow.

    Whether there is a file at that path is not checked.
    """
    paths = add_actions_of(table)["path"].cast(pa.string())
    for path in paths.filter(pc.match_substring_regex(paths, _NOT_PLAINLY_BELOW)).to_pylist():
        if lies_elsewhere(path):
            reach.follow(uri, path)
        else:
            path_below(path)


def _open(uri: str, version: int | None) -> DeltaTable:
    try:
        return list_again(partial(DeltaTable, uri, version=version, storage_options=table_options(uri)))
    except DeltaError as error:
        if _NO_CHECKPOINT in str(error):
            return _open_before_hint(uri, version, error)
        if _OF_PARQUET in str(error) and (damage := damage_of_checkpoints(uri)):
            raise CheckpointDamagedError(*damage) from error
        raise


def _open_before_hint(uri: str, version: int | None, error: DeltaError) -> DeltaTable:
    """Open a table whose `_last_checkpoint` names a checkpoint that is not there, from an earlier version on.

    Delta's protocol has it as a hint, which other readers do without; deltalake follows it, but for earlier versions.
    It may name a version that never was, as where a table was set back by a copy. Raises CheckpointDamagedError where
    that fails too.
    """
    before = min(hinted_version(log_of(uri)) - 1, newest_version(uri))
    try:
        if before < 0:
            raise error
        table = list_again(partial(DeltaTable, uri, version=before, storage_options=table_options(uri)))
        list_again(table.update_incremental if version is None else partial(table.load_as_version, version))
    except DeltaError:
        named = f"{log_of(uri)}/{HINT}"
        raise CheckpointDamagedError(named, "it names a checkpoint that is not there") from error
    return table


def drop_false_hint(uri: str) -> None:
    """Remove the hint of a table that is written here where it names a checkpoint that is not there.

    deltalake's commits make checkpoints, which fail by it when the commit is done: as if it were not. Raises what
    deltalake raises, TableNotFoundError too, and StorageError.
    """
    if hinted_version(log_of(uri)) < 0:
        return
    guard_log(uri)
    try:
        list_again(partial(DeltaTable, uri, storage_options=table_options(uri)))
    except DeltaError as error:
        if _NO_CHECKPOINT not in str(error):
            raise
        _remove_hint(uri)


def make_checkpoint(uri: str, table: DeltaTable) -> None:
    """Make a checkpoint of an open table that is written here, which its hint names then. Raises what deltalake
    raises.
    """
    if hinted_version(log_of(uri)) > table.version():
        _remove_hint(uri)  # deltalake would leave it
    try:
        table.create_checkpoint()
    except DeltaError as error:
        if _NO_CHECKPOINT not in str(error):
            raise
        _remove_hint(uri)
        table.create_checkpoint()


def _remove_hint(uri: str) -> None:
    log.warning("hint.removed", extra={"table": uri})
    files.remove(f"{log_of(uri)}/{HINT}")


def bring_up(table: DeltaTable) -> None:
    """Take in what was committed since, and read here before it. Raises what deltalake raises."""
    list_again(table.update_incremental)


class LogGapError(StorageError):
    """A listing of a log lacks a commit that was there, as neither engine says by itself where it reads changes."""


def list_again(read: Callable[[], R]) -> R:
    """Return the result of `read`, which lists a log, and repeat it where it finds a gap.

    A directory that is listed while others write to it may show a commit and not the one before it, so that deltalake
    finds a gap where there is none: half of all listings where 500 commits a second came to 6,000. Spark lists as well.
    """
    for _ in range(LISTINGS_MAX - 1):
        try:
            return read()
        except Exception as error:
            text = str(error)
            if not isinstance(error, LogGapError) and not any(mark in text for mark in _GAPS):
                raise
            log.info("listing.doubted", extra={"reason": text[:MESSAGE_LENGTH_MAX]})
    return read()
