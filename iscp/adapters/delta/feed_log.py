"""A feed's Delta log as one writer knows it: the numbers that it keeps by name (`txn`), and commits put behind its end.

deltalake's own commit brings a snapshot of all files along, twice for each commit, which costs with the table's size. A
writer of a feed needs no file but its own: it reads the commits since, by their names, and puts the next one there if
none is. A number comes with the rows of its commit and stays through checkpoints; looking one up anew reads the log
from its last checkpoint on, so that is done once.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction

from iscp import __version__
from iscp.adapters.delta import storage
from iscp.adapters.delta.commits import commit_file
from iscp.adapters.delta.faults import delta_faults
from iscp.adapters.delta.feed_schema import FeedDescription, described
from iscp.core.errors import ConfigurationError

log = logging.getLogger(__name__)

COMMIT_ID = "iscp.commit_id"

CHECKPOINT_COMMITS = 50
"""Commits from one checkpoint of a feed's log to the next."""

BEHIND_MAX = 100
"""Commits that are read one by one; further on it costs less to open the table anew."""

TEXT_BYTES_MAX = 7_000
"""Of a text that is kept in a log, packed."""

_CHUNK_BYTES = 7
"""Of a text in one number, which has a sign."""

_WRITER_VERSION_FEATURES = 7
_FEATURES = frozenset({"appendOnly", "invariants", "changeDataFeed", "timestampNtz", "deletionVectors", "v2Checkpoint"})
_RESHAPES = ("metaData", "protocol")

Action = AddAction | RemoveAction | Mapping[str, Any]


class FeedLog:
    """`version` is the newest one known. For one thread."""

    def __init__(self, uri: str) -> None:
        """Raises TableNotFound, ConfigurationError where the table is no feed, or one that is not written like this."""
        self._uri = uri
        self._stamp: tuple[int, ...] = ()
        self.reopen()
        self._untidy = False

    def look(self) -> None:
        """Go to the newest version. Raises StorageError, and ConfigurationError as when it was opened."""
        with delta_faults(f"read the feed {self._uri}"):
            stamp = storage.stamp(commit_file(self._uri, self.version))
            # Cleaned away, or of a log that was made anew: then so may be the next one.
            if not stamp or (self._stamp and stamp != self._stamp):
                self.reopen()
                return
            self._stamp = stamp
            for _ in range(BEHIND_MAX):
                if (actions := self._read(self.version + 1)) is None:
                    return
                if any(kind in action for action in actions for kind in _RESHAPES):
                    break
                self._take_in(actions)
            self.reopen()

    def number(self, name: str) -> int | None:
        """As of the version; None: it was never set. Raises StorageError."""
        if name not in self._numbers:
            with delta_faults(f"read the feed {self._uri}"):
                # Had a commit since set it, it would be among the numbers.
                self._numbers[name] = self._base.transaction_version(name)
        return self._numbers[name]

    def text(self, name: str) -> str | None:
        """What `numbers_of_text` has made of it. Raises ConfigurationError where it was made otherwise."""
        length = self.number(_part(name, 0))
        if length is None:
            return None
        parts = [self.number(_part(name, number)) for number in range(1, 1 + _chunks(length))]
        packed = b"".join((part or 0).to_bytes(_CHUNK_BYTES, "big") for part in parts)[:length]
        try:
            return zlib.decompress(packed).decode()
        except (zlib.error, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the text {name} of {self._uri} cannot be read: {error}") from error

    def put(self, actions: Sequence[Action], numbers: Mapping[str, int], commit_id: str, at_ms: int) -> None:
        """Make it the next version, if no other commit is: `landed` tells, also after the OSError that this raises."""
        storage.create(commit_file(self._uri, self.version + 1), _commit(actions, numbers, commit_id, at_ms))

    def landed(self, commit_id: str) -> bool | None:
        """Whether the next version is this commit, which is taken in then; None: there is none yet. Raises OSError."""
        actions = self._read(self.version + 1)
        if actions is None:
            return None
        if not any(action.get("commitInfo", {}).get(COMMIT_ID) == commit_id for action in actions):
            return False
        self._take_in(actions)
        self._untidy |= self.version % CHECKPOINT_COMMITS == 0
        return True

    def goes_on_from(self, version: int) -> bool:
        """Whether this commit, the one before and all later ones of the table, opened anew, are there.

        Raises StorageError.
        """
        self.reopen()
        with delta_faults(f"read the feed {self._uri}"):
            return all(storage.exists(commit_file(self._uri, at)) for at in range(version - 1, self.version + 1))

    def tidy(self) -> None:
        """Make a checkpoint, and clean the log, if a commit of one's own was the one after which it is time.

        That it fails does no harm but to those who open the table.
        """
        if not self._untidy:
            return
        self._untidy = False
        try:
            table = DeltaTable(self._uri)
            table.create_checkpoint()
            table.cleanup_metadata()
        except Exception as error:  # noqa: BLE001  (what was committed is not to look as if it were not)
            log.warning("feed.tidy.failed", extra={"table": self._uri, "reason": str(error)})

    @property
    def append_only(self) -> bool:
        return self._base.metadata().configuration.get("delta.appendOnly", "false").lower() == "true"

    @property
    def features(self) -> frozenset[str]:
        return frozenset(self._base.protocol().writer_features or ())

    def metadata(self, description: FeedDescription) -> Mapping[str, Any]:
        """The action that gives the table the columns of `description`."""
        now = self._base.metadata()
        return {
            "metaData": {
                "id": now.id,
                "name": now.name,
                "description": now.description,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": Schema.from_arrow(description.schema).to_json(),
                "partitionColumns": now.partition_columns,
                "configuration": now.configuration,
                "createdTime": now.created_time,
            }
        }

    def reopen(self) -> None:
        """Raises as when it was opened."""
        with delta_faults(f"open the feed {self._uri}"):
            self._base = DeltaTable(self._uri)
        _refuse_unwritable(self._base)
        self.description: FeedDescription = described(self._base)
        self.version: int = self._base.version()
        self._stamp = ()
        self._numbers: dict[str, int | None] = {}

    def _read(self, version: int) -> list[dict[str, Any]] | None:
        """What a commit says but for its files; None: it is not there."""
        try:
            content, _ = storage.read(commit_file(self._uri, version))
        except FileNotFoundError:
            return None
        return [json.loads(line) for line in content.splitlines() if not line.startswith((b'{"add"', b'{"remove"'))]

    def _take_in(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """The next version."""
        txns = (action["txn"] for action in actions if "txn" in action)
        self._numbers |= {txn["appId"]: txn["version"] for txn in txns}
        self.version += 1
        self._stamp = ()


def numbers_of_text(name: str, text: str) -> dict[str, int]:
    """The numbers that hold a text: how long it is, packed, and its parts."""
    packed = zlib.compress(text.encode(), 9)
    if len(packed) > TEXT_BYTES_MAX:
        raise ValueError(f"the text {name} is too long to be kept in a commit: {len(packed)} bytes")
    return dict(_numbered(name, packed))


def _numbered(name: str, packed: bytes) -> Iterator[tuple[str, int]]:
    yield _part(name, 0), len(packed)
    for number in range(_chunks(len(packed))):
        chunk = packed[number * _CHUNK_BYTES :][:_CHUNK_BYTES].ljust(_CHUNK_BYTES, b"\0")
        yield _part(name, number + 1), int.from_bytes(chunk, "big")


def _chunks(length: int) -> int:
    return -(-length // _CHUNK_BYTES)


def _part(name: str, number: int) -> str:
    return f"{name}/{number}"


def _commit(actions: Sequence[Action], numbers: Mapping[str, int], commit_id: str, at_ms: int) -> bytes:
    """A commit file (Delta protocol, "Actions")."""
    removes = any(isinstance(action, RemoveAction) for action in actions)
    about = {
        "timestamp": at_ms,
        "operation": "DELETE" if removes else "WRITE",
        "operationParameters": {} if removes else {"mode": "Append"},
        "isBlindAppend": not removes,
        "engineInfo": f"iscp:{__version__}",
        COMMIT_ID: commit_id,
    }
    txns = ({"appId": app, "version": value, "lastUpdated": at_ms} for app, value in numbers.items())
    lines = [{"commitInfo": about}, *({"txn": txn} for txn in txns), *map(_action, actions)]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def _action(action: Action) -> Mapping[str, Any]:
    if isinstance(action, Mapping):
        return action
    about = {
        "path": action.path,
        "partitionValues": action.partition_values,
        "size": action.size,
        "dataChange": action.data_change,
    }
    if isinstance(action, AddAction):
        return {"add": {**about, "modificationTime": action.modification_time, "stats": action.stats}}
    return {"remove": {**about, "deletionTimestamp": action.deletion_timestamp, "extendedFileMetadata": True}}


def _refuse_unwritable(table: DeltaTable) -> None:
    """Raises ConfigurationError for a table of which an append has to say more than these commits do."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    more = set(protocol.writer_features or ()) - _FEATURES
    if protocol.min_writer_version == _WRITER_VERSION_FEATURES and not more:
        return
    if protocol.min_writer_version <= 4 and not any(name.startswith("delta.constraints.") for name in configuration):
        return
    raise ConfigurationError(
        f"the feed {table.table_uri} was given features that its writers do not know: "
        f"{', '.join(sorted(more)) or f'writer version {protocol.min_writer_version}'}",
        remedy="Drop them, or begin another feed",
    )
