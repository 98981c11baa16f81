"""Whether the job log's own Delta log is whole, file by file: what is damaged is named, and never read past.

A reader of Delta may take an empty commit for one without actions, or end before a gap: requests that were acknowledged
would be forgotten without a word. So an owner looks before it claims: one listing, and the commits since the last
checkpoint, which are few.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from iscp.adapters.delta import storage
from iscp.adapters.delta.commits import log_of
from iscp.core.errors import JobLogDamaged

USED = "iscp_log.used"
"""The file beside the log that says that there was one."""

_RESTORE = "Restore it from a backup of the job log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


@dataclass(frozen=True, slots=True)
class Damage:
    """`torn`: it is the last commit that cannot be read, and nothing else is wrong."""

    path: str
    why: str
    torn: bool = False

    def error(self) -> JobLogDamaged:
        if self.torn:
            return JobLogDamaged(
                f"{self.path}, the job log's last commit, {self.why}: requests that were under way may be lost",
                remedy=f"{_RESTORE}, or put it aside with `iscp log repair`: nobody was answered for a commit that "
                "tore while it was written",
            )
        lost = "registrations and changes of jobs that it holds would be lost"
        return JobLogDamaged(f"{self.path}, a file of the job log, {self.why}: {lost}", remedy=_RESTORE)


def is_there(uri: str) -> bool:
    """Raises OSError."""
    return bool(storage.names(log_of(uri)))


def find_damage(uri: str) -> Damage | None:
    """The first thing that is wrong with the log of the table at `uri`. Raises OSError where it cannot be looked at."""
    log = log_of(uri)
    names = storage.names(log)
    commits = sorted(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name)))
    checkpoint = max((int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))), default=-1)
    newest = max([checkpoint, *commits], default=-1)
    if newest < 0:
        return Damage(log, "holds no commit")
    since = [version for version in commits if version > checkpoint]
    for version in range(checkpoint + 1, newest + 1):
        if version not in since:
            return Damage(f"{log}/{version:020d}.json", "is missing")
    faults = [(version, why) for version in since if (why := _fault(f"{log}/{version:020d}.json"))]
    if checkpoint >= 0 and (why := _checkpoint_fault(f"{log}/{checkpoint:020d}.checkpoint.parquet")):
        return Damage(f"{log}/{checkpoint:020d}.checkpoint.parquet", why)
    if not faults:
        return None
    version, why = faults[0]
    return Damage(f"{log}/{version:020d}.json", why, torn=len(faults) == 1 and version == newest and version > 0)


def _fault(path: str) -> str:
    try:
        lines = [line for line in storage.read(path)[0].splitlines() if line.strip()]
        whole = bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except FileNotFoundError:
        return ""  # cleaned away meanwhile, behind a later checkpoint
    except ValueError:
        whole = False
    return "" if whole else "is not a whole commit"


def _checkpoint_fault(path: str) -> str:
    try:
        pq.read_table(pa.BufferReader(storage.read(path)[0]), columns=["txn"])
    except FileNotFoundError:
        return ""
    except pa.ArrowException as error:
        return f"cannot be read ({error})"
    return ""


def put_aside(uri: str) -> str:
    """Rename the torn last commit, so that the log ends before it; its new name. Raises JobLogDamaged, OSError.

    Nobody may own the log meanwhile.
    """
    damage = find_damage(uri)
    if damage is None or not damage.torn:
        raise damage.error() if damage else JobLogDamaged(f"nothing is wrong with the job log at {uri}")
    aside = f"{damage.path}.torn"
    storage.rename(damage.path, aside)
    return aside
