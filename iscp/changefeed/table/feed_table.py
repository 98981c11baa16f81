"""The Delta table of a changefeed: rows in the order of their ulids, by shard, with each shard's state; and the purge
of its oldest files.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import RemoveAction

from iscp.changefeed.model.ulid import UlidPlace, ulid_text
from iscp.changefeed.table.feed_log import FeedLog, numbers_of_text
from iscp.changefeed.table.feed_schema import Action, FeedDescription, widened
from iscp.changefeed.table.file_writer import FeedDraft, FeedRows
from iscp.changefeed.table.page_reader import list_files
from iscp.delta.log.table_opening import open_delta
from iscp.model.values.errors import ConfigurationError, Conflict, IscpError, OutcomeUnknown, StorageError, Unavailable
from iscp.ports.engine import count_work
from iscp.ports.system import Clock, Failpoints
from iscp.storage.delta_errors import delta_faults
from iscp.storage.files import require_conditional_writes
from iscp.storage.locations import local_path, place
from iscp.storage.table_files import DurableCommits, files_of, sync

# --- the table --------------------------------------------------------------------------------------------------------

FAILPOINT_COMMIT = "feed.commit"
FAILPOINT_COMMITTED = "feed.committed"
FAILPOINT_SYNC_FILES = "feed.sync_files"

ATTEMPTS_MAX = 200
"""Attempts of a feed's commit, each after another shard's took its version; then it fails with a Conflict."""

SLEPT_S = 3_600.0
"""How long a feed's commit is tried for after its file was written; then it is given up, as the file may have been
vacuumed.
"""

LONG_S = 10.0
"""Seconds that a feed's commit may take from reading the state on, far less than any log is retained; after a longer
one the log is read again to check whether the commit still counts.
"""


@dataclass(frozen=True, slots=True)
class FeedShardState:
    """`seq`: how many commits the shard has had; `place`: the next ulid that it will give."""

    seq: int
    place: UlidPlace


@dataclass(frozen=True, slots=True)
class _Change:
    """The actions of a commit, and the conditions for it: states of shards, texts by their names, and when the log was
    last opened again after a change of the table's columns, properties or protocol.
    """

    actions: Sequence[Action]
    numbers: Mapping[str, int]
    seen: Mapping[int, FeedShardState]
    texts_seen: Mapping[str, str | None]
    opened_at_seen: int | None = None
    commit_id: str = field(default_factory=lambda: uuid.uuid4().hex)


class FeedTable:
    """One process's handle on the table, which threads take by turns.

    A shard's state, the next ulid that it will give, moves by compare-and-set in the commit that has the rows. 128 bits
    do not fit one `txn`, so that three of them carry it: a count, and the ulid's two halves. A commit goes to exactly
    the version after the last one known. Where another shard's commit took that version, the same file is committed
    again at the next one; where the shard's own state has moved, the commit fails: so ulids become visible in their
    order.

    A log that is cleaned has free versions at its beginning, and a writer that slept for long would find one free. So a
    commit that took long counts only once the table was opened again after it.

    The environment (`AWS_*`) has the access to a table on S3.
    """

    def __init__(self, uri: str, clock: Clock, failpoints: Failpoints) -> None:
        """Raises TableNotFound, ConfigurationError where the table is no feed, a newer iscp's, or not to be written."""
        self.uri = place(uri)
        self.files = files_of(self.uri)
        self._clock = clock
        self._failpoints = failpoints
        self._path = local_path(self.uri)
        self._log = FeedLog(self.uri)
        self._durable = DurableCommits(self._path, failpoints, "feed")
        self._turn = threading.RLock()
        self._lasting: set[str] = set()

    @property
    def description(self) -> FeedDescription:
        return self._log.description

    def state(self, shard: int) -> FeedShardState:
        """Return the present state of a shard. Raises InvalidRequest, StorageError."""
        return self.states([shard])[shard]

    def states(self, shards: Collection[int]) -> dict[int, FeedShardState]:
        """Return the states of several shards as of one moment. Raises as `state`."""
        for shard in shards:
            self.description.refuse_shard(shard)
        with self._turn:
            self._log.refresh()
            return {shard: self._state(shard) for shard in shards}

    def last_ulids(self) -> dict[int, str]:
        """Return the last ulid that each shard has given, as text, as of now; without the shards that have
        given none.
        """
        states = self.states(range(self.description.shards))
        return {shard: ulid_text(state.place.ulid(-1)) for shard, state in states.items() if state.seq}

    def texts(self, names: Iterable[str]) -> dict[str, str | None]:
        """Return small texts that commits have left, by their names, as of now; None: there is none."""
        with self._turn:
            self._log.refresh()
            return {name: self._log.text(self._text_app(name)) for name in names}

    def widen(self, row: pa.Schema) -> None:
        """Give the feed the columns that it lacks, and fields of them, which are null in all that is there.

        Raises PermanentError where a column has a type that the feed's does not take, and what `commit` raises.
        """
        with self._turn:
            self._log.refresh()
            if (wider := self._widened(row)) == self.description.row:
                return
            require_conditional_writes(self.uri)
            change = _Change(self._log.widened(wider), {}, {}, {}, self._log.opened_at)
            self._commit(change, self._clock.monotonic_s() + SLEPT_S)
            self._sync_log()
            self._log.reopen()
            if self._widened(row) != self.description.row:
                raise Conflict(f"the log of {self.uri} was cleaned while a commit slept", remedy="Begin it again")

    def _widened(self, row: pa.Schema) -> pa.Schema:
        return widened(self.description.row, row, self.description.key)

    def draft(self) -> FeedDraft:
        """Return a draft for the files of one commit: `with table.draft() as draft`."""
        return FeedDraft(self.description, self.files, self._clock, self._failpoints)

    def append(self, shard: int, seen: FeedShardState, first: UlidPlace, rows: FeedRows) -> FeedShardState:
        """Commit rows in their order, with the ulids from `first` on, if the shard's state still is `seen`.

        Returns the state that this leaves; raises what `commit` raises, and InvalidRequest where they do not fit.
        """
        with self.draft() as draft:
            place = draft.add(shard, first, rows)
            self.commit(draft, {shard: seen})
        self.tidy()
        return FeedShardState(seen.seq + 1, place)

    def commit(
        self,
        draft: FeedDraft,
        seen: Mapping[int, FeedShardState],
        texts: Mapping[str, str] | None = None,
        texts_seen: Mapping[str, str | None] | None = None,
        remove: Sequence[RemoveAction] = (),
    ) -> None:
        """Commit the draft's files, what becomes of its shards' states, and `texts`, and take `remove` away.

        The commit needs each shard's state to be still as it was `seen`, and so each of `texts_seen`. Raises Conflict
        (it is not, or this took too long: nothing was committed), StorageError and Unavailable (neither was it then),
        OutcomeUnknown.
        """
        began_s = self._clock.monotonic_s()
        require_conditional_writes(self.uri)
        adds = draft.finish()
        if remove and self._log.append_only:
            raise ConfigurationError(f"{self.uri} has delta.appendOnly, and gives nothing away", remedy="Unset it")
        self._sync_files([add.path for add in adds])
        numbers = {
            name: value
            for shard, place in draft.places.items()
            for name, value in zip(self._apps(shard), (seen[shard].seq + 1, *place), strict=True)
        }
        for name, text in (texts or {}).items():
            numbers |= numbers_of_text(self._text_app(name), text)
        with self._turn:
            # Its files have to stay unless it is sure that no commit names them.
            draft.committed = True
            try:
                self._commit(_Change([*adds, *remove], numbers, seen, texts_seen or {}), began_s + SLEPT_S)
            except (Conflict, Unavailable, StorageError):
                draft.committed = False
                raise
            self._last(began_s)
        count_work(bytes_written=sum(add.size for add in adds))

    def tidy(self) -> None:
        """Shorten the table's log: call it now and then, when others do not wait."""
        with self._turn:
            self._log.tidy()

    def _apps(self, shard: int) -> tuple[str, str, str]:
        base = f"changefeed/{self.description.feed_id}/{shard}"
        return f"{base}/seq", f"{base}/high", f"{base}/low"

    def _text_app(self, name: str) -> str:
        return f"changefeed/{self.description.feed_id}/text/{name}"

    def _state(self, shard: int) -> FeedShardState:
        seq, high, low = (self._log.number(app) or 0 for app in self._apps(shard))
        return FeedShardState(seq, UlidPlace(high, low))

    def _commit(self, change: _Change, until_s: float) -> None:
        """Try to commit until that time."""
        for _ in range(ATTEMPTS_MAX):
            self._log.refresh()
            if difference := self._difference(change):
                raise Conflict(difference, remedy="Begin the transaction again")
            self._failpoints.reach(FAILPOINT_COMMIT)
            if self._clock.monotonic_s() > until_s:
                raise Conflict(f"a commit to {self.uri} slept for too long", remedy="Begin the transaction again")
            if self._put(change):
                return
        raise Unavailable(f"other commits to {self.uri} were first {ATTEMPTS_MAX} times in a row")

    def _put(self, change: _Change) -> bool:
        """Put the commit; return False if another one was first. Raises StorageError (nothing was committed),
        OutcomeUnknown.
        """
        failed: OSError | None = None
        try:
            self._log.put(change.actions, change.numbers, change.commit_id, int(self._clock.now_s() * 1000))
            self._failpoints.reach(FAILPOINT_COMMITTED)
        except OSError as error:
            failed = error
        try:
            # Also where another one is said to be there: an answer that was lost makes the client repeat its request.
            landed = self._log.find_next(change.commit_id)
        except OSError as error:
            raise OutcomeUnknown(f"cannot check whether a commit to {self.uri} came through: {error}") from error
        if landed is not None:
            return landed
        if failed is None or self._path is None:  # where what was given up may still arrive
            raise OutcomeUnknown(f"it is not known whether a commit to {self.uri} comes through: {failed}") from failed
        with delta_faults(f"commit to the feed {self.uri}"):
            raise failed

    def _last(self, began_s: float) -> None:
        """Make what was committed last, and check that it counts.

        Raises Conflict where it does not, OutcomeUnknown where that is not sure.
        """
        self._sync_log()
        if self._clock.monotonic_s() - began_s <= LONG_S:
            return
        try:
            goes_on = self._log.goes_on_from(self._log.version)
        except IscpError as error:
            raise OutcomeUnknown(f"cannot check whether a commit to {self.uri} counts: {error}") from error
        if not goes_on:
            raise Conflict(f"the log of {self.uri} was cleaned while a commit slept", remedy="Begin it again")

    def _difference(self, change: _Change) -> str:
        """Return what is not any more as it was seen, or an empty string."""
        for shard, seen in change.seen.items():
            if (state := self._state(shard)) != seen:
                return f"shard {shard} of {self.uri} has had commit {state.seq} since commit {seen.seq} was read"
        for name, text in change.texts_seen.items():
            if self._log.text(self._text_app(name)) != text:
                return f"{name} of {self.uri} has moved: another writer has committed"
        if change.opened_at_seen not in (None, self._log.opened_at):
            return f"what {self.uri} is has been changed"
        return ""

    def _sync_files(self, paths: Sequence[str]) -> None:
        """Make files last before they are committed. Raises StorageError."""
        folders = {os.path.dirname(path) for path in paths}
        above = {name for folder in folders - self._lasting for name in _above(folder)}
        with delta_faults(f"write to the feed {self.uri}"):
            self._failpoints.reach(FAILPOINT_SYNC_FILES)
            if self._path is not None:
                for name in (*paths, *folders, *above):
                    sync(self._path / name)
        self._lasting |= folders

    def _sync_log(self) -> None:
        """Make what is acknowledged outlive a power loss too. Raises OutcomeUnknown."""
        try:
            self._durable.sync(self._log.version, content=False)
        except OSError as error:
            raise OutcomeUnknown(f"it is not known whether a commit to {self.uri} lasts: {error}") from error


def _above(folder: str) -> list[str]:
    """Return the folders that lead to one below the table, from the table's own."""
    parts = folder.split("/")
    return ["/".join(parts[:count]) or "." for count in range(len(parts))]


# --- purges -----------------------------------------------------------------------------------------------------------
# A purge takes the oldest files out of a changefeed, and keeps in the same commit up to where each shard lost its rows.
# Readers compare their cursors with that: a cursor that is behind it has missed something. A file goes as a whole;
# where files overlap, after a compaction, rows of a file that stays may lie before what is noted, and are not read any
# more.

SHARDS_PER_TEXT = 256
"""Shards whose purge positions share one text of the log; the others have texts of their own."""

PURGED_FILES_MAX = 10_000
"""Files that one commit of a purge removes; further commits remove the others."""


@dataclass(frozen=True, slots=True)
class PurgedFiles:
    """`purged`: each shard's last ulid that is gone, as text, of all purges up to this one; `more`: files are left."""

    files: int
    rows: int
    purged: Mapping[int, str]
    more: bool


def purged_names(shards: int) -> list[str]:
    """Return the names of the texts that record what was purged of a feed with so many shards."""
    return ["purged", *(f"purged/{first}" for first in range(SHARDS_PER_TEXT, shards, SHARDS_PER_TEXT))]


def read_purged(table: FeedTable) -> dict[int, str]:
    """Return each shard's last ulid that is gone, as text, as of now; without the shards that have lost none."""
    return _parsed(table.texts(purged_names(table.description.shards)))


def purge_files(table: FeedTable, bounds: Mapping[int, str], now_ms: int, *, dry_run: bool = False) -> PurgedFiles:
    """Remove the files of which no ulid lies behind its shard's bound, the oldest first and so many at a time.

    Raises what `FeedTable.commit` does; Conflict where another purge was first.
    """
    seen = table.texts(purged_names(table.description.shards))
    gone = _parsed(seen)
    with delta_faults(f"read the feed {table.uri}"):
        there = list_files(open_delta(place(table.uri)))
    found = _removable(there, bounds)
    found = found.take(pc.sort_indices(found, [("last", "ascending")]))
    taken = found.slice(0, PURGED_FILES_MAX)
    for file in taken.to_pylist():
        gone[file["shard"]] = max(gone.get(file["shard"], ""), file["last"])
    if len(taken) and not dry_run:
        remove = [
            RemoveAction(file["path"], True, now_ms, file["size"], table.description.partition(file["shard"]))
            for file in taken.to_pylist()
        ]
        with table.draft() as draft:
            table.commit(draft, {}, _texts(gone), seen, remove)
    rows = pc.sum(taken["rows"]).as_py() or 0
    return PurgedFiles(len(taken), rows, gone, len(found) > len(taken))


def _removable(files: pa.Table, bounds: Mapping[int, str]) -> pa.Table:
    shards, ulids = pa.array(bounds.keys(), pa.int32()), pa.array(bounds.values(), pa.string())
    bound = ulids.take(pc.index_in(files["shard"].combine_chunks(), shards))
    return files.filter(pc.fill_null(pc.less_equal(files["last"], bound), False))


def _parsed(texts: Mapping[str, str | None]) -> dict[int, str]:
    return {int(shard): ulid for text in texts.values() if text for shard, ulid in json.loads(text).items()}


def _texts(gone: Mapping[int, str]) -> dict[str, str]:
    parts: dict[str, dict[str, str]] = {}
    for shard, ulid in sorted(gone.items()):
        first = shard - shard % SHARDS_PER_TEXT
        parts.setdefault(f"purged/{first}" if first else "purged", {})[str(shard)] = ulid
    return {name: json.dumps(part) for name, part in parts.items()}
