"""The position of a Delta sink, read from its log (after the design's "Position of a Delta sink"); and a target's
columns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from iscp.delta.log.commits import APP_ID, TABLE_KEY, Commit, commit_stamp, log_of, newest_version, read_commit
from iscp.delta.log.table_opening import commits_after, counts, open_delta
from iscp.delta.rows.net_changes import UnlikeSchemaError, alike, arrow_schema, unified
from iscp.model.job.job_row import JobRow
from iscp.model.job.source_holds import REPAIR_MARK
from iscp.model.values.errors import Conflict, StorageError, TableNotFound
from iscp.model.values.ids import TRACE_KEY
from iscp.model.values.untrusted_values import exact_float
from iscp.model.values.watermark import (
    NO_TOTALS,
    DeadLetters,
    Position,
    Watermark,
    parse_sources,
    parse_totals,
    sources_document,
    totals_document,
)
from iscp.ports.engine import count_work
from iscp.ports.sink import CommitTag
from iscp.storage import files
from iscp.storage.delta_errors import delta_faults
from iscp.storage.files import require_place
from iscp.storage.locations import place
from iscp.system.late_imports import T

# --- columns of a target ----------------------------------------------------------------------------------------------


class Columns:
    """The columns of one table, as far as they decide which rows go into it: names and types.

    `schema_json` here and elsewhere as Delta and Spark write it.
    """

    def __init__(self, schema_json: str) -> None:
        self._plain = plain(json.loads(schema_json))
        self._types = _types(self._plain)

    @cached_property
    def schema(self) -> T.StructType:
        return T.StructType.fromJson(self._plain)

    @cached_property
    def _arrow(self) -> pa.Schema:
        return arrow_schema(self.schema)

    @cached_property
    def _kinds(self) -> dict[str, pa.DataType]:
        return {field.name.lower(): field.type for field in self._arrow}

    def match(self, schema_json: str) -> bool:
        """Return whether these are the same columns, in any order."""
        return self._types == _types(plain(json.loads(schema_json)))

    def take(self, schema_json: str) -> bool:
        """Return whether there is a column for each of the others, of a type that fits its values."""
        if self.match(schema_json):
            return True
        try:
            return alike(unified(self.schema, T.StructType.fromJson(json.loads(schema_json))), self.schema)
        except UnlikeSchemaError:
            return False

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with these columns, null where they have none."""
        names = {name.lower(): name for name in rows.schema.names}
        kinds = dict(zip(names, rows.schema.types, strict=True))
        if self._kinds == kinds:
            return rows
        return pa.table(
            {
                field.name: rows[names[field.name.lower()]].cast(field.type)
                if field.name.lower() in names
                else pa.nulls(len(rows), field.type)
                for field in self._arrow
            }
        )


def plain(kind: Any) -> Any:
    """Return a schema's bare columns and types.

    Generated and identity columns and the like are the source's affair.
    """
    if isinstance(kind, dict):
        bare = {name: plain(value) for name, value in kind.items()}
        known = {"metadata": {}, "nullable": True, "containsNull": True, "valueContainsNull": True}
        return {name: known.get(name, value) for name, value in bare.items()}
    if isinstance(kind, list):
        return [plain(each) for each in kind]
    return kind


def _types(schema: Any) -> dict[str, str]:
    """Return column names and types; nullability and comments do not decide which rows fit."""
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in schema["fields"]}


# --- the position -----------------------------------------------------------------------------------------------------

FORMAT = 1
_HARMLESS = ("SET TBLPROPERTIES", "UNSET TBLPROPERTIES")


def tag_json(tag: CommitTag) -> str:
    """Return the user metadata of a sink's commit."""
    return json.dumps(
        {
            "iscp": FORMAT,
            "seq": tag.seq,
            "job_id": tag.job_id,
            "source_id": tag.source_id,
            "from": tag.from_version,
            "to": tag.watermark.version,
            "at": tag.watermark.at_s,
            **({"step": tag.watermark.step, "steps": tag.watermark.steps} if tag.watermark.steps else {}),
            "epoch": tag.epoch,
            "base": tag.base_version,
            "attempt": tag.attempt,
            "kind": tag.kind,
            "columns": dict(tag.column_ids),
            **({"dead": [tag.dead.seq, tag.dead.rows]} if tag.dead.seq else {}),
            **({"sources": sources_document(tag.sources)} if tag.sources else {}),
            **({TABLE_KEY: tag.table_uri} if tag.table_uri else {}),
            **({"as_of": tag.as_of_s} if tag.as_of_s else {}),
            **({"totals": totals_document(tag.totals)} if tag.totals.totals else {}),
            **({TRACE_KEY: tag.trace} if tag.trace else {}),
            **({REPAIR_MARK: True} if tag.kind == "repair" else {}),  # for jobs that have this target as their table
        },
        separators=(",", ":"),
    )


@dataclass(frozen=True, slots=True)
class _Ours:
    """One of our commits, as its user metadata describes it."""

    version: int
    position: Position
    base_version: int
    attempt: str


def _ours(commit: Commit) -> _Ours | None:
    if commit.seq is None:
        return None
    try:
        tag = json.loads(commit.user_metadata)
        position = Position(
            seq=commit.seq,
            watermark=Watermark(tag["to"], tag["at"], tag.get("step", 0), tag.get("steps", 0)),
            job_id=tag["job_id"],
            source_id=tag["source_id"],
            base_version=commit.version,
            dead=DeadLetters(*tag.get("dead", (0, 0))),
            column_ids=tag.get("columns"),
            sources=parse_sources(tag.get("sources", {})),
            as_of_s=exact_float(tag.get("as_of", 0.0), "as_of"),
            totals=parse_totals(tag["totals"]) if "totals" in tag else NO_TOTALS,
        )
        return _Ours(commit.version, position, tag["base"], tag["attempt"])
    except (ValueError, KeyError, TypeError):
        # A commit under our application id that is not ours, as a copied `txn`: its rows cannot be trusted.
        void = f"version {commit.version} has seq {commit.seq} but not our metadata"
        return _Ours(commit.version, Position(seq=commit.seq, void=void, base_version=commit.version), -1, "")


class PositionReader:
    """Reads and remembers one sink's position; a probe of an unchanged sink costs one failed open of a file.

    `txn` gives the seq, and the commit that carries it the range. Neither is believed blindly: a RESTORE or REPLACE of
    the target leaves its `txn` behind while the rows are gone, and log cleanup leaves the `txn` while the commit is
    gone. So every commit since the base of our last one must be ours or change no data. Otherwise the target has
    diverged, as it has if one of these commits cannot be read any more.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._known: Position | None = None
        self._stamp: tuple[int, ...] | None = None
        self._ours_at = -1
        self.shape = 0
        """A number that changes whenever the table's columns, properties or protocol may have changed."""

    @property
    def overtaken(self) -> bool:
        """Return whether others have committed since our last commit, which a cleaning of the log may thus remove."""
        return self._known is not None and 0 <= self._ours_at < self._known.base_version

    def read(self, row: JobRow) -> Position:
        """Return the position; its seq is 0 if the table was never ours, or is not there.

        Raises StorageError.
        """
        if self._known is not None and self._same_log(self._known):
            return self._advance(self._known)
        self._ours_at, self.shape = -1, self.shape + 1
        try:
            newest = newest_version(self._uri)
            seq = self._last_seq(newest)
        except TableNotFound as error:
            self._known = None
            self._refuse_no_place(error)
            return Position(void="the target is not there" if row.seq else "", seq=0)
        if seq is None:
            self._known = None
            return Position(base_version=newest, void="the target has no commit of ours" if row.seq else "")
        return self._advance(self._from_log(row, seq, newest))

    def _refuse_no_place(self, error: TableNotFound) -> None:
        """Raise StorageError if the target cannot be rebuilt until somebody has made room for it."""
        require_place(self._uri)
        path = place(self._uri)
        if files.is_file(path) or files.is_file(log_of(self._uri)):
            raise StorageError(
                f"there is a file in the place of the target {self._uri}", remedy="Move it away: the target is rebuilt"
            ) from error

    def _last_seq(self, newest: int) -> int | None:
        """Return the seq of our last commit, or None if there is none.

        Mostly the newest commit is ours and says it; the table is opened only if it is not.
        """
        commit = read_commit(self._uri, newest)
        if commit is not None and commit.seq is not None:
            return commit.seq
        with delta_faults(f"open {self._uri}"):
            return open_delta(self._uri).transaction_version(APP_ID)

    def _same_log(self, known: Position) -> bool:
        """Return whether the commit file that `known` ends at is still the very same file."""
        return self._stamp is not None and commit_stamp(self._uri, known.base_version) == self._stamp

    def _from_log(self, row: JobRow, seq: int, newest: int) -> Position:
        """Walk back to the commit that carries `seq`; what lies between must change no data."""
        void = ""
        for version in range(newest, -1, -1):
            commit = read_commit(self._uri, version)
            if commit is None:
                return self._without_commit(row, seq, version + 1, newest, void)
            ours = _ours(commit)
            if ours is not None and ours.position.seq == seq:
                found, self._ours_at = self._check_commit(ours), version
                return replace(found, void=found.void or void, base_version=newest)
            void = void or self._foreign(commit)
        return Position(seq=seq, void="no commit carries the seq", base_version=newest)

    def _without_commit(self, row: JobRow, seq: int, earliest: int, newest: int, void: str) -> Position:
        """Return the position, which is void, as our commit was cleaned from the log: the rows have to be compared.

        Commits of others after it may be gone too. The job log's row says what the rows should be if it is of the same
        seq. Otherwise nobody knows whose rows these are: without a job_id they are taken for another's, and replaced.
        """
        void = void or f"the log of the target begins at version {earliest}, after our commit of seq {seq}"
        if row.seq == seq and row.watermark.version >= 0:
            watermark, status = row.watermark, row.status
            if not watermark.steps and status.to_version == watermark.version:
                watermark = replace(watermark, step=status.step, steps=status.steps)  # the log has them there alone
            return Position(seq, watermark, row.job_id, row.source_id, void, newest, DeadLetters(seq=-1))
        return Position(seq, void=void, base_version=newest)

    def _check_commit(self, ours: _Ours) -> Position:
        """Return our commit's position, void if somebody wrote between the state that it was made on and itself."""
        for version in range(ours.base_version + 1, ours.version):
            commit = read_commit(self._uri, version)
            # Cleaned away unseen, as for a reader that was not there: nobody knows that it was harmless.
            void = (
                self._foreign(commit)
                if commit is not None
                else f"version {version} of the target is not there to check"
            )
            if void:
                return replace(ours.position, void=void)
        return ours.position

    def _advance(self, known: Position) -> Position:
        """Take in the commits after `known.base_version`."""
        while (commit := read_commit(self._uri, known.base_version + 1)) is not None:
            ours = _ours(commit)
            self.shape += commit.reshapes
            if ours is not None:
                self._ours_at = ours.version
                # What was void before is healed: a commit made on a base that had seen it was a difference.
                known = self._check_commit(ours)
            else:
                known = replace(known, void=known.void or self._foreign(commit), base_version=commit.version)
        self._known, self._stamp = known, commit_stamp(self._uri, known.base_version)
        return known

    def _foreign(self, commit: Commit) -> str:
        """Return why a commit that is not ours makes the rows doubtful, or an empty text if it does not."""
        if not (commit.operation or commit.reshapes or commit.seq is not None):
            return f"version {commit.version} of the target is empty"
        if commit.changes_data or (commit.metadata_id is not None and not self._sets_properties(commit)):
            return f"version {commit.version} of the target ({commit.operation or 'unknown operation'}) is not ours"
        if commit.unclear:
            return f"version {commit.version} of the target is not understood: {commit.unclear}"
        return ""

    def _sets_properties(self, commit: Commit) -> bool:
        """Return whether the commit sets or unsets properties, as it says, and changes nothing else of the table."""
        if commit.operation not in _HARMLESS:
            return False
        try:
            with delta_faults(f"open {self._uri}"):
                before, after = (open_delta(self._uri, version) for version in (commit.version - 1, commit.version))
                return _identity(before) == _identity(after)
        except (StorageError, TableNotFound):
            return False  # nobody knows what it was before

    def confirm(self, tag: CommitTag) -> int:
        """Return the version of the commit with this tag, once it was made; raises Conflict if it does not count."""
        if (winner := self.find(tag)) is None:
            raise Conflict(f"seq {tag.seq} of {self._uri} was won by another writer")
        if not counts(self._uri, winner.version):
            raise Conflict(f"the log of {self._uri} has gone on without seq {tag.seq}")
        count_work(bytes_written=winner.bytes_written)
        return winner.version

    def find(self, tag: CommitTag) -> Commit | None:
        """Return the commit with this tag; None: there is none. Raises StorageError."""
        # Delta skips a seq silently that another writer has committed already: only the log says whose it is.
        winner = next((each for each in commits_after(self._uri, tag.base_version) if each.seq == tag.seq), None)
        ours = _ours(winner) if winner is not None else None
        return winner if ours is not None and ours.attempt == tag.attempt else None


def _identity(table: DeltaTable) -> tuple[str, Any, list[str]]:
    """Return a table's id, its columns, and those by which it is partitioned."""
    metadata = table.metadata()
    return str(metadata.id), plain(json.loads(table.schema().to_json())), metadata.partition_columns
