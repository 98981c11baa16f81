"""Checks what deltalake and Spark are about to open of a log, which they open and parse without a bound.

All names in the directory are listed, by which no pipe, link or device is left in it. Those files are checked that a
reader of the version opens, from its last checkpoint on: their sizes, and the footers of checkpoints and the names of
their sidecars. The result for a checkpoint is cached for as long as it is the same file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache, partial

import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.log.checkpointed import HINT, HINT_BYTES_MAX
from iscp.adapters.delta.log.commits import log_of
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.bounded_parquet import TooLargeError, open_parquet
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.parquet_footer import OddFooterError, check_footer
from iscp.adapters.delta.storage.regular_files import RefusedFileError, require_size

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
