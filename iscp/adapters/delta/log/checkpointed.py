"""Finds out which file is at fault where deltalake does not open a log by its checkpoints, as it does not say that.

Nothing of what a table is comes from here: a checkpoint's rows are read to see that they can be, and dropped.
"""

from __future__ import annotations

import json

import pyarrow as pa

from iscp.adapters.delta.log.actions import is_count
from iscp.adapters.delta.log.commits import log_of, version_of
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.bounded_parquet import TooLargeError, open_parquet
from iscp.adapters.delta.storage.regular_files import RefusedFileError

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
