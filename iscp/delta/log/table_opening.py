"""Delta tables, opened while others write to them: the checks that come before, and what is read and written of a log
as a whole.

The parts: damaged checkpoints, the guard of a log, opening, the columns' types, checkpoints of own logs, commits of
which no answer is believed, and the faults of targets.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from iscp.delta.log.actions import is_count
from iscp.delta.log.commits import APP_ID, Commit, commit_stamp, log_of, newest_version, read_commit, version_of
from iscp.model.values.errors import ErrorCode, PermanentError, StorageError
from iscp.model.values.untrusted_values import error_text
from iscp.storage import files
from iscp.storage.bounded_parquet import TooLargeError, open_parquet
from iscp.storage.delta_errors import (
    MESSAGE_LENGTH_MAX,
    CheckpointDamagedError,
    delta_faults,
    storage_faults,
)
from iscp.storage.regular_files import (
    REACH,
    OddFooterError,
    Reach,
    RefusedFileError,
    check_footer,
    lies_elsewhere,
    path_below,
    require_size,
)
from iscp.storage.s3_settings import table_options
from iscp.system.late_imports import pc

log = logging.getLogger(__name__)


def add_actions_of(table: DeltaTable, *, flatten: bool = False) -> pa.Table:
    """Return a row for each file of the table's version as delta-rs lists them, as `DeltaTable.get_add_actions` has it.

    They come by a stream: `pyarrow.table` loads pandas, to see whether it is given a frame of that.
    """
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=flatten)).read_all()


# --- damaged checkpoints ----------------------------------------------------------------------------------------------
# Where deltalake does not open a log by its checkpoints, it does not say which file is at fault, so that file is found
# here. Nothing of what a table is comes from here: a checkpoint's rows are read to see that they can be, and dropped.

HINT = "_last_checkpoint"
HINT_BYTES_MAX = 1024**2
"""Bytes of a log's hint which checkpoint is its newest; one that has more is not read."""

CHECKPOINT_GROUP_BYTES_MAX = 1024**3
"""Bytes of memory that a row group of a checkpoint may take here; one that takes more counts as damaged."""

VERSION_MAX = 2**63 - 1
"""The largest version that a log can have; a hint at a later one is none."""

CHECKED_MAX = 20
"""Commits and checkpoints of a log, the newest, among which is searched for one that deltalake cannot read; older ones
are left out."""


def hinted_version(log: str) -> int:
    """Return the version of the newest checkpoint by the own hint of the log in this directory; -1 if there is no hint,
    or it names no version. Raises OSError where that cannot be seen.
    """
    try:
        found = json.loads(files.read_head(f"{log}/{HINT}", HINT_BYTES_MAX)).get("version")
    except (FileNotFoundError, RefusedFileError, ValueError, AttributeError, RecursionError):
        return -1
    return found if is_count(found) and found <= VERSION_MAX else -1


def damage_of_checkpoints(uri: str) -> tuple[str, str] | None:
    """The newest of a log's checkpoints that is damaged, by its path, and what is wrong with it; None: none is."""
    try:
        names = [name for name in files.names(log_of(uri)) if version_of(name, checkpoints=True) is not None]
        for name in sorted(names, reverse=True)[:CHECKED_MAX]:
            if name.endswith(".parquet") and (damage := _damage(uri, name)):
                return f"{log_of(uri)}/{name}", damage
    except OSError:
        return None
    return None


def _damage(uri: str, name: str) -> str:
    """Return what is wrong with a checkpoint, by its footer and all of its rows, or an empty string if it is whole.

    No more than a row group is in memory at a time.
    """
    try:
        with open_parquet(log_of(uri), name, None) as file:
            for number in file.groups:
                file.read_groups([number], file.schema_arrow.names, CHECKPOINT_GROUP_BYTES_MAX)
    except TooLargeError:
        return f"a row group of it takes more than {CHECKPOINT_GROUP_BYTES_MAX // 1024**2} MiB of memory"
    except (pa.ArrowException, ValueError, OSError) as error:
        return str(error)
    return ""


# --- the guard of a log -----------------------------------------------------------------------------------------------
# What deltalake and Spark are about to open of a log is checked, as they open and parse it without a bound. All names
# in the directory are listed, by which no pipe, link or device is left in it. The files are checked that a reader of
# the version opens, from its last checkpoint on: their sizes, and the footers of checkpoints and the names of their
# sidecars. The result for a checkpoint is cached for as long as it is the same file.

CHECKPOINT_BYTES_MAX = 4 * 1024**3
"""Bytes of a checkpoint's file, of which a large table has hundreds; a log with a larger one is not opened."""

CHECKS_CACHED_MAX = 4_096
"""Checkpoints' files that are known to be in order; of more the longest unused are gone over again."""

DECODED_BYTES_MIN = 256 * 1024**2
"""Bytes of memory that a file of a checkpoint may always take once it is decoded."""

DECODED_TIMES_MAX = 64
"""Bytes of memory that a file of a checkpoint may take once it is decoded, for each of its own; a log with one that
takes more is not opened."""

SIDECARS_BYTES_MAX = 256 * 1024**2
"""Bytes of memory that what a row group of a checkpoint says of sidecars may take; a log with more is not opened."""

SIDECARS_MAX = 10_000
"""Files that a checkpoint of version 2 may name; a log with one that names more is not opened."""

_NAME = re.compile(
    r"(?P<version>\d{20})"
    r"(?:\.json|\.crc|\.\d{20}\.compacted\.json|(?P<checkpoint>\.checkpoint(?P<part>\.\d{10}\.\d{10})?\.(?:.+\.)?(?:parquet|json)))"
)
_NEWEST = "9" * 20
_SIDECARS = "_sidecars"
_SIDECAR_PATH = "sidecar.path"
_PLAIN_NAME = re.compile(r"[\w=.-]+\.parquet", re.ASCII)

Stamp = tuple[int, ...]


def guard_log(uri: str, version: int | None = None) -> None:
    """Raise StorageError with the name of a file of the log at `uri` that a reader of `version` may not open.

    The files from the checkpoint before `version` up to the log's end are checked, as Spark begins there; with None
    those from the newest checkpoint on. A missing file passes, as every reader reports it.
    """
    log = log_of(uri)
    with storage_faults(f"read the log {log}"):
        stamps = files.stamps(log)
        if HINT in stamps:
            require_size(f"{log}/{HINT}", _stamp(log, HINT, stamps)[-1], HINT_BYTES_MAX)
        for name, is_checkpoint in _opened(stamps, version):
            if not (stamp := _stamp(log, name, stamps)):
                continue
            require_size(f"{log}/{name}", stamp[-1], CHECKPOINT_BYTES_MAX if is_checkpoint else files.FILE_BYTES_MAX)
            if is_checkpoint:
                for sidecar in _check_checkpoint(uri, name, stamp):
                    if at := files.stamp(path := f"{log}/{_SIDECARS}/{sidecar}"):
                        require_size(path, at[-1], CHECKPOINT_BYTES_MAX)
                        _check_parquet(uri, f"{_SIDECARS}/{sidecar}", at)


def _opened(names: dict[str, Stamp], version: int | None) -> Iterator[tuple[str, bool]]:
    """Yield the files that are opened for a version, and whether each is of a checkpoint."""
    found = [each for each in map(_NAME.fullmatch, names) if each]
    whole = (each["version"] for each in found if each["checkpoint"] and not each["part"])
    last = _NEWEST if version is None else f"{version:020d}"
    first = max((each for each in whole if each <= last), default="")
    for each in found:
        if each["version"] >= first:
            yield each[0], bool(each["checkpoint"])


def _stamp(log: str, name: str, stamps: dict[str, Stamp]) -> Stamp:
    """Return the file's stamp, empty where it has gone meanwhile."""
    return stamps[name] or files.stamp(f"{log}/{name}")


@lru_cache(maxsize=CHECKS_CACHED_MAX)
def _check_checkpoint(uri: str, name: str, stamp: Stamp) -> tuple[str, ...]:
    """Return the names of the sidecars of a checkpoint, which is the same file as long as it has the same stamp."""
    path = f"{log_of(uri)}/{name}"
    if name.endswith(".parquet"):
        _check_parquet(uri, name, stamp)
        found = _sidecars_in(uri, name)
    else:
        found = _sidecars_named(path)
    if len(found) > SIDECARS_MAX:
        raise RefusedFileError(path, f"names more than {SIDECARS_MAX} sidecars")
    if not all(map(_PLAIN_NAME.fullmatch, found)):
        raise RefusedFileError(path, "names a sidecar that is no file of its directory")
    return tuple(found)


@lru_cache(maxsize=CHECKS_CACHED_MAX)
def _check_parquet(uri: str, name: str, stamp: Stamp) -> None:
    """Check the footer of a file of the log, and what it takes once it is decoded: all at once, by deltalake."""
    path = f"{log_of(uri)}/{name}"
    try:
        check_footer(partial(files.read_part, path), stamp[-1])
    except OddFooterError as error:
        raise RefusedFileError(path, f"is not opened: {error}") from error
    room = max(DECODED_BYTES_MIN, DECODED_TIMES_MAX * stamp[-1])
    try:
        with open_parquet(log_of(uri), name, None) as file:
            taken = 0
            for number in file.groups:
                taken += file.decoded_bytes_max([number], file.schema_arrow.names, room - taken)
                if taken > room:
                    raise RefusedFileError(path, f"takes more than {room // 1024**2} MiB of memory once it is decoded")
    except FileNotFoundError:
        return
    except RefusedFileError:
        raise
    except (pa.ArrowException, OSError):
        return  # whoever opens it reports that


def _sidecars_in(uri: str, name: str) -> set[str]:
    """Return the names of a checkpoint's sidecars; none for a file that is not Parquet, as whoever opens it reports
    that.
    """
    path = f"{log_of(uri)}/{name}"
    try:
        with open_parquet(log_of(uri), name, None) as file:
            if "sidecar" not in file.schema_arrow.names:
                return set()
            found: set[str] = set()
            for number in file.groups:
                rows = file.read_groups([number], ["sidecar"], SIDECARS_BYTES_MAX, [_SIDECAR_PATH])
                paths = pc.struct_field(rows["sidecar"].combine_chunks(), "path").unique()
                found.update(each for each in paths.to_pylist() if each is not None)
                if len(found) > SIDECARS_MAX:
                    break
            return found
    except TooLargeError:
        why = f"names sidecars by more than {SIDECARS_BYTES_MAX} bytes in a row group"
        raise RefusedFileError(path, why) from None
    except (pa.ArrowException, ValueError):
        return set()


def _sidecars_named(path: str) -> set[str]:
    try:
        content = files.read(path)[0]
        # A name may be written by escapes.
        lines = [json.loads(line) for line in content.splitlines() if b'"sidecar"' in line or b"\\u" in line]
        return {str(line["sidecar"]["path"]) for line in lines if line.get("sidecar")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RefusedFileError(path, "is not JSON of a checkpoint") from error


# --- opening ----------------------------------------------------------------------------------------------------------

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


# --- columns for people -----------------------------------------------------------------------------------------------


def read_column_types(uri: str) -> Mapping[str, str]:
    """Return the type of each column by its name, in order; that of nested ones is `struct`, `array` or `map`.

    The types are for people: events and pages, nothing that decides about rows. Return none if the table is not there,
    or cannot be read.
    """
    try:
        with delta_faults(f"open {uri}"):
            fields = json.loads(open_delta(uri).schema().to_json())["fields"]
        return {str(each["name"]): _named(each["type"]) for each in fields}
    except Exception as error:  # noqa: BLE001  (whoever shows columns shows none)
        log.info("columns.not_read", extra={"table": uri, "error": error_text(error)})
        return {}


def _named(kind: object) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else str(kind)


# --- checkpoints of own logs ------------------------------------------------------------------------------------------
# Checkpoints of the logs that are written here are made after those who wait for a commit were notified. Delta makes
# one within every tenth commit, which then ends seconds after it can be read. So a table that is made here leaves it to
# others only after many commits: they are to find a short log as well, should they go on with the table.

COMMITS = 10
"""Commits from one checkpoint of a target's log to the next."""

COMMITS_OF_OTHERS = 100
"""The same for whoever else writes to a target, and for Spark when it writes on our behalf."""

PROPERTIES = {"delta.checkpointInterval": str(COMMITS_OF_OTHERS)}
"""The properties of a target."""


class Checkpoints:
    """Makes checkpoints of one table's log, after each `every`th version, if that is a commit of one's own; only while
    the table has the properties `only_with`.
    """

    def __init__(self, uri: str, every: int, only_with: Mapping[str, str] = MappingProxyType({})) -> None:
        self._uri = uri
        self._every = every
        self._only_with = only_with
        self._due = False

    def note_commit(self, version: int) -> None:
        """Note that one's own commit became that version."""
        self._due |= version > 0 and version % self._every == 0

    def make(self) -> None:
        """Make a checkpoint of the newest version and clean the log, if one is due.

        Raises nothing: that it fails does no harm but to those who open the table.
        """
        if not self._due:
            return
        self._due = False  # also if it fails: tried again when the next one is due, not after every commit
        try:
            table = open_delta(self._uri)
            if self._only_with.items() <= table.metadata().configuration.items():
                make_checkpoint(self._uri, table)
                table.cleanup_metadata()
        except Exception as error:  # noqa: BLE001  (what was committed is not to look as if it were not)
            log.warning("checkpoint.failed", extra={"table": self._uri, "reason": str(error)})


# --- commits of which no answer is believed ---------------------------------------------------------------------------
# Commits go to exactly the next version, and what counts is what the log shows. A writer puts a commit behind the last
# version that it knows, never rebased. The answer may be lost, and another writer may have been first: so the writer
# searches for its own commit, by the id in it. Old commit files are cleaned away, and a writer that slept so long finds
# a version free that was taken once: its put-if-absent succeeds, far behind the log's end. So a commit counts only if
# the log goes on from it.


def commits_after(uri: str, version: int) -> Iterator[Commit]:
    """Yield the commits behind `version`, up to the first that is not there. Raises StorageError."""
    while (commit := read_commit(uri, version := version + 1)) is not None:
        yield commit


def counts(uri: str, version: int) -> bool:
    """Return whether a commit that is there belongs to the log, and does not lie where the log was cleaned away.

    Raises StorageError, TableNotFound.
    """
    if commit_stamp(uri, version + 1) is None:
        return newest_version(uri) <= version
    # Cleaning takes the oldest: the last version it took has a successor, but nothing before it.
    return version == 0 or commit_stamp(uri, version - 1) is not None


# --- faults of targets ------------------------------------------------------------------------------------------------
# A table may have something by which a commit of iscp would not do what it seems to do.

_RETENTION = "delta.setTransactionRetentionDuration"
_REFUSED = {
    "delta.enableRowTracking": "tracks rows",
    "delta.enableInCommitTimestamps": "keeps times in its commits",
}
"""Deltalake does not commit to such a table."""


def target_fault(table: DeltaTable) -> tuple[str, str]:
    """Return why `table` cannot be a target, and the remedy; both are empty if it can.

    Snapshots are published as files under the columns' own names and without partitions: elsewhere their values would
    be read as nulls.
    """
    metadata = table.metadata()
    configuration = metadata.configuration
    if (expiry := expiry_fault(table))[0]:
        return expiry
    if metadata.partition_columns:
        return f"is partitioned by {', '.join(metadata.partition_columns)}", "Choose a new path"
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        return "maps its columns to other names", "Choose a new path"
    for name, fault in _REFUSED.items():
        if configuration.get(name, "false").lower() == "true":
            return fault, "Choose a new path"
    return "", ""


def expiry_fault(table: DeltaTable) -> tuple[str, str]:
    """Return why even an existing target is unfit for any commit, and the remedy; both are empty if it is fit."""
    if _RETENTION in table.metadata().configuration:
        return "expires transaction ids, which would let an old commit land again", f"Unset {_RETENTION} on it"
    return "", ""


def refuse_fault(fault: str, remedy: str) -> None:
    """Raises PermanentError where there is one."""
    if fault:
        raise PermanentError(
            f"the target {fault}",
            about="spec.iteration.consumer.target",
            remedy=remedy,
            code=ErrorCode.TARGET_UNUSABLE,
        )


def refuse_unusable(uri: str) -> None:
    """Raises PermanentError where the table at `uri`, as it is now, has a `target_fault`; StorageError."""
    with delta_faults(f"open {uri}"):
        fault = target_fault(open_delta(uri))
    refuse_fault(*fault)


def refuse_somebody_elses(uri: str, version: int) -> None:
    """Refuse a table with others' rows that appeared here since the registration, which takes no such table either."""
    with delta_faults(f"open {uri}"):
        table = open_delta(uri, version=version)
        theirs = table.transaction_version(APP_ID) is None and bool(table.file_uris())
    if theirs:
        remedy = "Move it away and resume the job, or register the job with another target"
        refuse_fault("is a table with rows that iscp did not write", remedy)
