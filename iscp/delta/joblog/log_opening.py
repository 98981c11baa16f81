"""The Delta tables beside each other at `log.uri`, as they are opened or made: of which format they are, to which
cluster they belong, and whether the job log's own Delta log is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, assert_never

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from iscp.delta.joblog.log_schema import (
    FORMAT,
    FORMAT_PROPERTY,
    HISTORY_COLUMNS_SINCE,
    HISTORY_SCHEMA,
    LOG_SCHEMA,
)
from iscp.delta.log.commits import COMMIT_ID, log_of, version_of
from iscp.delta.log.table_opening import drop_false_hint, open_delta
from iscp.model.values.errors import ConfigurationError, IscpError, JobLogDamaged, StorageError
from iscp.storage import files
from iscp.storage.delta_errors import FOREIGN_ERRORS, delta_faults, storage_error
from iscp.storage.locations import checkpoint_name, commit_name, local_path
from iscp.storage.s3_settings import table_options

# --- the format -------------------------------------------------------------------------------------------------------
# Nodes of two releases share a log while a cluster is upgraded, and the earlier ones may have to take over again. So a
# table of the format before this one is written as it is, until a person raises the format (`iscp log upgrade`).

FORMAT_BEFORE = FORMAT - 1
"""The least that is written; a table of an earlier format is raised to FORMAT as soon as it is written to."""

RAISES_MAX = 20
"""Attempts of `iscp log upgrade` at a table, each after the owner's commit was in the way; then it fails."""

LOG_TABLE = "iscp_log"
HISTORY_TABLE = "iscp_history"


def format_of(table: DeltaTable) -> int:
    return int(table.metadata().configuration.get(FORMAT_PROPERTY, 0))


def written_format(uri: str) -> int:
    """Return the format that a new table beside the one at `uri` gets, so that its readers can read the new one too."""
    try:
        return max(min(format_of(open_delta(uri)), FORMAT), FORMAT_BEFORE)
    except TableNotFoundError:
        return FORMAT
    except FOREIGN_ERRORS as error:
        raise storage_error(error, f"cannot open {uri}") from error


def history_schema(format_: int) -> pa.Schema:
    return pa.schema([field for field in HISTORY_SCHEMA if HISTORY_COLUMNS_SINCE.get(field.name, 1) <= format_])


def keep_up(table: DeltaTable, schema: pa.Schema) -> None:
    """Give a table of an iscp before the last one what it lacks; from then on only this format's may claim it."""
    if format_of(table) < FORMAT_BEFORE:
        raise_format(table, schema)


def raise_format(table: DeltaTable, schema: pa.Schema) -> None:
    there = {field.name for field in table.schema().fields}
    lacking = pa.schema([field for field in schema if field.name not in there])
    if lacking:
        table.alter.add_columns(Schema.from_arrow(lacking).fields)
    if format_of(table) < FORMAT:
        table.alter.set_table_properties({FORMAT_PROPERTY: str(FORMAT)}, raise_if_not_exists=False)


def upgrade_job_log(uri: str) -> int:
    """Raise the tables of the log at `uri` to FORMAT, while an owner may write them; the format that it was of.

    Raises ConfigurationError where there is no log or a later iscp has written it, StorageError.
    """
    base = uri.rstrip("/")
    before = _raise(f"{base}/{LOG_TABLE}", LOG_SCHEMA)
    if before is None:
        raise ConfigurationError(f"there is no job log at {uri}", remedy="Name the cluster's own configuration")
    _raise(f"{base}/{HISTORY_TABLE}", HISTORY_SCHEMA)
    return before


def _raise(uri: str, schema: pa.Schema) -> int | None:
    """Raise the table's format, and return the format before; None: there is no table."""
    cause: BaseException | None = None
    for _ in range(RAISES_MAX):
        try:
            table = open_delta(uri)
            refuse_later(table, uri)
            before = format_of(table)
            raise_format(table, schema)
            return before
        except TableNotFoundError:
            return None
        except FOREIGN_ERRORS as error:
            cause = error
    raise storage_error(cause or OSError(), f"cannot raise the format of {uri}") from cause


def refuse_later(table: DeltaTable, uri: str) -> None:
    """Raise ConfigurationError if a later iscp has written it."""
    if (written := format_of(table)) > FORMAT:
        raise ConfigurationError(
            f"{uri} is of format {written}, this iscp knows {FORMAT}", remedy="Install a newer iscp"
        )


# --- opening ----------------------------------------------------------------------------------------------------------

CLUSTER_PROPERTY = "iscp.cluster"
"""Two clusters on one log would take the term from each other for ever."""


def open_or_create(uri: str, schema: pa.Schema, properties: Mapping[str, str], cluster: str = "") -> DeltaTable:
    """Return the table at `uri`, made if it is not there; of several that make it at once all get the same.

    The directory above it must be there: a disk that is not mounted is not a first start. Raises StorageError,
    ConfigurationError if a newer iscp has written it, or if it belongs to another `cluster` than this one.
    """
    path = local_path(uri)
    if path is not None and not path.parent.is_dir():
        raise StorageError(f"there is no directory {path.parent}", remedy="Mount or create it")
    try:
        try:
            drop_false_hint(uri)
            table = open_delta(uri)
        except TableNotFoundError:
            try:
                table = DeltaTable.create(
                    uri,
                    schema,
                    mode="error",
                    configuration={**properties, **({CLUSTER_PROPERTY: cluster} if cluster else {})},
                    storage_options=table_options(uri),
                    raise_if_key_not_exists=False,
                )
            except DeltaError:  # somebody else was first, or it shows at once what is wrong
                table = open_delta(uri)
    except FOREIGN_ERRORS as error:
        raise storage_error(error, f"cannot open {uri}") from error
    refuse_later(table, uri)
    _refuse_other(table, uri, cluster)
    return table


def refuse_others_table(uri: str, cluster: str) -> None:
    """Raise ConfigurationError if there is a table at `uri` that belongs to another cluster."""
    try:
        _refuse_other(open_delta(uri), uri, cluster)
    except FOREIGN_ERRORS:
        return  # whoever opens it reports what is wrong


def _refuse_other(table: DeltaTable, uri: str, cluster: str) -> None:
    owned = table.metadata().configuration.get(CLUSTER_PROPERTY, "")
    if cluster and owned and owned != cluster:
        raise ConfigurationError(
            f"the job log at {uri} belongs to the cluster {owned!r}, not to {cluster!r}",
            about="cluster",
            remedy=f"Set `cluster` to {owned}, or `log.uri` to another place",
        )


# --- damage -----------------------------------------------------------------------------------------------------------
# The job log's own Delta log is checked file by file for being whole: damage is named, and never read past. A reader of
# Delta may take an empty commit for one without actions, or end before a gap: requests that were acknowledged would be
# forgotten without a word. So an owner checks before it claims: one listing, and the commits since the last checkpoint,
# which are few.

USED = "iscp_log.used"
"""The file beside the log that says that there was one."""

COMMIT_TABLE, COMMIT_VERSION, COMMIT_ACTIONS = "iscp.table", "iscp.version", "iscp.actions"
"""In what a commit of the job log says of itself (not those of earlier versions of iscp, nor the history's): the table,
the version, and how many files it adds and transactions it sets, so that one that is cut at a line's end shows.
"""

HARMLESS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "FSCK"})
"""Operations that tidy a table without changing its rows: an operator may run them beside the owner."""

_UNFINISHED = re.compile(r"#\d+$")
"""How deltalake's writer of local files names what it has not linked to its name yet."""
_NOT_OURS = "was not written by iscp, and removes rows"
_RESTORE = "Restore it from a backup of the job log"


class Kind(Enum):
    """TORN: nothing is wrong but the last commit, and nobody was answered for it. LOST: nothing is wrong but that the
    log ends too early, as its last commits, which were answered for, are missing or cannot be read. FOREIGN: nothing
    is wrong but that somebody else has removed rows by the last commit. REMOVED: the same, by a commit that others of
    ours follow. HOLE: all else."""

    TORN = "torn"
    LOST = "lost"
    FOREIGN = "foreign"
    REMOVED = "removed"
    HOLE = "hole"


@dataclass(frozen=True, slots=True)
class Damage:
    """`whole_to`: the last version up to which nothing is wrong."""

    path: str
    why: str
    kind: Kind = Kind.HOLE
    whole_to: int = -1

    def error(self) -> JobLogDamaged:
        match self.kind:
            case Kind.TORN:
                part, lost = "the job log's last commit,", "requests that were under way may be lost"
                remedy = (
                    f"{_RESTORE}, or rename it with `iscp log repair`: nobody was answered for a commit that tore "
                    "while it was written"
                )
            case Kind.LOST:
                part = "the job log's last commit, which was acknowledged,"
                lost = "the registrations and changes of jobs that it holds would be lost"
                remedy = (
                    f"{_RESTORE}, or accept the loss with `iscp log repair`: the log then ends at version "
                    f"{self.whole_to}, and requests after it have to be made again"
                )
            case Kind.FOREIGN:
                part, lost = "the job log's last commit,", "the registrations of jobs in these rows would be lost"
                remedy = "Rename it with `iscp log repair`, before its rows' files are deleted; or restore a backup"
            case Kind.REMOVED:
                part, lost = "a commit of the job log,", "the registrations of jobs in these rows are lost"
                remedy = (
                    f"{_RESTORE}, or accept the loss with `iscp log repair`: it writes a checkpoint, and what is "
                    "before that is not read any more"
                )
            case Kind.HOLE:
                part, remedy = "a file of the job log,", _RESTORE
                lost = "registrations and changes of jobs that it holds would be lost"
            case _:
                assert_never(self.kind)
        return JobLogDamaged(f"{self.path}, {part} {self.why}: {lost}", remedy=remedy)


@dataclass(frozen=True, slots=True)
class Repaired:
    """The log ends at `version` now; `renamed`: what the file behind it is called now (empty: there was none)."""

    version: int
    renamed: str = ""


def is_there(uri: str) -> bool:
    """Return whether the log has any file but unfinished ones, as a first commit that is being written, or was cut off.

    Raises OSError.
    """
    return not all(_UNFINISHED.search(name) for name in files.names(log_of(uri)))


def find_damage(uri: str, reached: int = -1, *, history: bool = False, below: int | None = None) -> Damage | None:
    """The first thing that is wrong with the log of the table at `uri`, which has come to version `reached` at least.

    `history`: of the history's, whose commits say nothing of themselves. `below`: as if it ended before that version.
    Raises OSError where it cannot be read.
    """
    log = log_of(uri)
    names = [name for name in files.names(log) if below is None or (version_of(name, checkpoints=True) or 0) < below]
    commits = sorted(version for name in names if (version := version_of(name)) is not None)
    checkpoint = max((version for name in names if (version := _checkpoint_of(name)) is not None), default=-1)
    newest = max([checkpoint, *commits], default=-1)
    if newest < 0:
        return Damage(log, "holds no commit")
    since = [version for version in commits if version > checkpoint]
    for version in range(checkpoint + 1, newest + 1):
        if version not in since:
            return Damage(_commit(log, version), "is missing")
    table_id = ""
    if checkpoint >= 0:
        table_id, why = _read_checkpoint(uri, checkpoint)
        if why:
            return Damage(f"{log}/{checkpoint_name(checkpoint)}", why)
    faults = []
    if checkpoint in commits and _read_commit(_commit(log, checkpoint), checkpoint, table_id)[1] == _NOT_OURS:
        faults.append((checkpoint, _NOT_OURS))  # any other fault is made up for by the checkpoint
    for version in since:
        named_id, why = _read_commit(_commit(log, version), version, table_id)
        table_id = table_id or named_id
        if why:
            faults.append((version, why))
    if history:
        faults = [(version, why) for version, why in faults if why != _NOT_OURS]
    if faults:
        return _judge(log, faults, newest, reached)
    if newest < reached:
        why = f"is missing, and so are those up to version {reached}" if newest + 1 < reached else "is missing"
        return Damage(_commit(log, newest + 1), why, Kind.LOST, newest)
    return None


def _judge(log: str, faults: list[tuple[int, str]], newest: int, reached: int) -> Damage:
    """Return the damage of a log with these commits that are wrong, of which there is at least one."""
    if all(why == _NOT_OURS for _, why in faults):
        if faults[-1][0] == newest:
            return Damage(_commit(log, newest), _NOT_OURS, Kind.FOREIGN, newest - 1)
        return Damage(_commit(log, faults[0][0]), _NOT_OURS, Kind.REMOVED, newest)
    version, why = faults[0]
    kind = Kind.HOLE
    if len(faults) == 1 and version == newest and version > 0:
        kind = Kind.LOST if reached >= version else Kind.TORN
    return Damage(_commit(log, version), why, kind, version - 1)


def _commit(log: str, version: int) -> str:
    return f"{log}/{commit_name(version)}"


def _checkpoint_of(name: str) -> int | None:
    """Return the version of a checkpoint of one file, the only kind that deltalake writes, which alone writes this
    log.
    """
    whole = name.endswith(".checkpoint.parquet")
    return version_of(name, checkpoints=True) if whole else None


def _read_commit(path: str, version: int, table_id: str) -> tuple[str, str]:
    """Return the id of the table in a commit, as far as it has one, and the fault of the commit; each empty: there is
    none.

    `table_id`: that of the log (empty: not known yet).
    """
    try:
        actions = [json.loads(line) for line in files.read(path)[0].splitlines() if line.strip()]
    except FileNotFoundError:
        return "", ""  # cleaned away meanwhile, behind a later checkpoint
    except ValueError:
        actions = []
    if not actions or not all(isinstance(action, dict) for action in actions):
        return "", "is not a whole commit"
    about, metadata = (_body(actions, kind) for kind in ("commitInfo", "metaData"))
    named_id = str(metadata.get("id") or about.get(COMMIT_TABLE) or "")
    if named_id and table_id and named_id != table_id:
        return named_id, f"is a commit of another table ({named_id})"
    if about.get(COMMIT_VERSION, str(version)) != str(version):
        return named_id, f"is the commit of version {about[COMMIT_VERSION]}"
    if about.get(COMMIT_ACTIONS, number := str(sum("add" in each or "txn" in each for each in actions))) != number:
        return named_id, "is not a whole commit"
    removed = any("remove" in action for action in actions)
    if removed and COMMIT_ID not in about and about.get("operation") not in HARMLESS:
        return named_id, _NOT_OURS
    return named_id, ""


def _body(actions: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = next((action[kind] for action in actions if kind in action), None)
    return found if isinstance(found, dict) else {}


def _read_checkpoint(uri: str, version: int) -> tuple[str, str]:
    """Return the table's id and an empty string, or an empty string and the fault, as `_read_commit`.

    The reader is deltalake, which does without a checkpoint that is empty.
    """
    try:
        if not files.read_head(f"{log_of(uri)}/{checkpoint_name(version)}", 1):
            return "", "is empty"
    except FileNotFoundError:
        return "", ""
    try:
        with delta_faults(f"open {uri}"):
            return str(open_delta(uri, version).metadata().id), ""
    except IscpError as error:
        return "", f"cannot be read ({error.message})"


def repair(uri: str, reached: int) -> Repaired | None:
    """End the log before its last commit if that is torn, lost or a removal by somebody else; begin it after one that
    others follow. A file that is there is renamed, never deleted.

    None: nothing is wrong with it. Whoever says how far the log has `reached` has to be set after it. Nobody may own
    the log meanwhile. Raises JobLogDamaged, OSError.
    """
    damage = find_damage(uri, reached)
    if damage is None:
        return None
    if damage.kind is Kind.HOLE:
        raise damage.error()
    if damage.kind is Kind.REMOVED:
        with delta_faults(f"write a checkpoint of {uri}"):
            open_delta(uri).create_checkpoint()
        return Repaired(damage.whole_to)
    if not files.exists(damage.path):
        return Repaired(damage.whole_to)
    if damage.kind is Kind.FOREIGN:
        _set_checkpoint_aside(uri, damage.whole_to + 1)
    renamed = f"{damage.path}.torn"
    files.rename(damage.path, renamed)
    return Repaired(damage.whole_to, renamed)


def _set_checkpoint_aside(uri: str, version: int) -> None:
    """Set the checkpoint of `version` aside, if there is one; raises JobLogDamaged where the log is not whole without
    it.
    """
    path = f"{log_of(uri)}/{checkpoint_name(version)}"
    if not files.exists(path):
        return
    if (damage := find_damage(uri, version - 1, below=version)) is not None:
        raise replace(damage, kind=Kind.HOLE).error()
    for each in (f"{log_of(uri)}/_last_checkpoint", path):  # a hint at a file that is not there would be a fault
        if files.exists(each):
            files.rename(each, f"{each}.aside")
