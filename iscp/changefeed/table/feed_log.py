"""A feed's Delta log as one writer knows it: the numbers that it keeps by name (`txn`), and commits put behind its end.

deltalake's own commit brings a snapshot of all files along, twice for each commit, which costs with the table's size. A
writer of a feed needs no file but its own: it reads the commits since, by their names, and puts the next one there if
none is. A number comes with the rows of its commit and stays through checkpoints; looking one up again reads the log
from its last checkpoint on, so that is done once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema

from iscp.changefeed.table.feed_schema import (
    ROW,
    TIMES_WITHOUT_ZONE,
    Action,
    FeedDescription,
    commit,
    described,
    has_times_without_zone,
    with_feature,
)
from iscp.delta.log.actions import is_whole, parse_actions
from iscp.delta.log.commits import COMMIT_ID, commit_file, newest_version
from iscp.delta.log.table_opening import Checkpoints, counts, open_delta
from iscp.model.values.errors import ConfigurationError
from iscp.ports.system import current_trace
from iscp.storage import files
from iscp.storage.delta_errors import delta_faults

CHECKPOINT_COMMITS = 50
"""Commits from one checkpoint of a feed's log to the next."""

BEHIND_MAX = 100
"""Commits that a writer reads one by one; when it is further behind it opens the table again."""

TEXT_BYTES_MAX = 7_000
"""Bytes of a packed text in a feed's log; a longer one is refused."""

_CHUNK_BYTES = 7
"""Bytes of a text in one number, which has a sign."""

_WRITER_VERSION_MAX, _WRITER_VERSION_FEATURES = 4, 7
_FEATURES = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        TIMES_WITHOUT_ZONE,
        "v2Checkpoint",
    }
)
_CONSTRAINT = "delta.constraints."
_CHECKED = ('"delta.invariants"', '"delta.generationExpression"')
"""Texts in a schema where a column's values follow from, or are checked by, an expression."""
_RESHAPES = ("metaData", "protocol")


class FeedLog:
    """`version` is the newest one known. For one thread."""

    def __init__(self, uri: str) -> None:
        """Raises TableNotFound, ConfigurationError where the table is no feed, or one that is not written like this."""
        self._uri = uri
        self._stamp: tuple[int, ...] = ()
        self.reopen()
        self._checkpoints = Checkpoints(uri, CHECKPOINT_COMMITS)

    def refresh(self) -> None:
        """Go to the newest version. Raises StorageError, and ConfigurationError as when it was opened."""
        with delta_faults(f"read the feed {self._uri}"):
            stamp = files.stamp(commit_file(self._uri, self.version))
            # Cleaned away, or of a log that was recreated: then so may be the next one.
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
        """Return the number as of the version; None: it was never set. Raises StorageError."""
        if name not in self._numbers:
            with delta_faults(f"read the feed {self._uri}"):
                # Had a commit since set it, it would be among the numbers.
                self._numbers[name] = self._base.transaction_version(name)
        return self._numbers[name]

    def text(self, name: str) -> str | None:
        """Return the text that `numbers_of_text` turned into numbers. Raises ConfigurationError where they are no such
        text.
        """
        return _text_of(self._uri, name, self.number)

    def put(self, actions: Sequence[Action], numbers: Mapping[str, int], commit_id: str, at_ms: int) -> None:
        """Make it the next version, if no other commit is: `find_next` reports it, also after an OSError."""
        content = commit(actions, numbers, commit_id, at_ms, current_trace())
        files.create(commit_file(self._uri, self.version + 1), content)

    def find_next(self, commit_id: str) -> bool | None:
        """Return whether the next version is this commit, which is taken in then; None: there is none yet. Raises
        OSError.
        """
        actions = self._read(self.version + 1)
        if actions is None:
            return None
        if not any(action.get("commitInfo", {}).get(COMMIT_ID) == commit_id for action in actions):
            return False
        self._take_in(actions)
        self._checkpoints.note_commit(self.version)
        return True

    def goes_on_from(self, version: int) -> bool:
        """Return whether the log of the table, opened again, has this commit. Raises StorageError."""
        self.reopen()
        return counts(self._uri, version)

    def tidy(self) -> None:
        """Make a checkpoint, and clean the log, if a commit of one's own was the one after which it is time."""
        self._checkpoints.make()

    @property
    def opened_at(self) -> int:
        """Return the version at which it was opened, which happens again after a change of the table's columns,
        properties or protocol.
        """
        return int(self._base.version())

    @property
    def append_only(self) -> bool:
        return self._base.metadata().configuration.get("delta.appendOnly", "false").lower() == "true"

    def widened(self, wider: pa.Schema) -> list[Action]:
        """Return the actions that give the table's rows these columns, which include those that it has, and the feature
        that they need.
        """
        now, schema = self._base.metadata(), json.loads(self._base.schema().to_json())
        row = next(column for column in schema["fields"] if column["name"] == ROW)
        there = {field["name"]: field for field in row["type"]["fields"]}
        for field in json.loads(Schema.from_arrow(wider).to_json())["fields"]:
            name = field["name"]
            if name not in there:
                row["type"]["fields"].append(field)
            elif wider.field(name).type != self.description.row.field(name).type:
                there[name]["type"] = field["type"]
        actions: list[Action] = [
            {
                "metaData": {
                    "id": now.id,
                    "name": now.name,
                    "description": now.description,
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps(schema),
                    "partitionColumns": now.partition_columns,
                    "configuration": now.configuration,
                    "createdTime": now.created_time,
                }
            }
        ]
        protocol = self._base.protocol()
        if has_times_without_zone(wider) and TIMES_WITHOUT_ZONE not in (protocol.writer_features or ()):
            actions.append(with_feature(protocol, TIMES_WITHOUT_ZONE))
        return actions

    def reopen(self) -> None:
        """Raises as when it was opened."""
        with delta_faults(f"open the feed {self._uri}"):
            self._base = open_delta(self._uri)
        _refuse_unwritable(self._base)
        self.description: FeedDescription = described(self._base)
        self.version: int = self._base.version()
        self._stamp = ()
        self._numbers: dict[str, int | None] = {}

    def _read(self, version: int) -> list[dict[str, Any]] | None:
        return _read_numbered(self._uri, version)

    def _take_in(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """Take in the actions of the next version."""
        self._numbers |= _numbers_in(actions)
        self.version += 1
        self._stamp = ()


def newest_text(uri: str, name: str) -> str | None:
    """Return a feed's text as its newest commit has left it, without opening the table; None: it has left none.

    `name` is the text's own. Raises TableNotFound, StorageError, ConfigurationError.
    """
    with delta_faults(f"read the feed {uri}"):
        numbers = _numbers_in(_read_numbered(uri, newest_version(uri)) or ())
    found = [app[: -len(_part("", 0))] for app in numbers if app.endswith(f"/text/{_part(name, 0)}")]
    return _text_of(uri, found[0], numbers.get) if len(found) == 1 else None


def _read_numbered(uri: str, version: int) -> list[dict[str, Any]] | None:
    """Return the actions of a commit but for its files; None: it is not there."""
    path = commit_file(uri, version)
    try:
        content, _ = files.read(path)
    except FileNotFoundError:
        return None
    return parse_actions(content, path, skip=(b'{"add"', b'{"remove"'))


def _numbers_in(actions: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    # Half of a ulid is negative as often as not.
    txns = (action["txn"] for action in actions if "txn" in action)
    return {txn["appId"]: txn["version"] for txn in txns if is_whole(txn.get("version"))}


def _text_of(uri: str, name: str, number: Callable[[str], int | None]) -> str | None:
    """Return the text that `numbers_of_text` turned into numbers; None: there is none.

    Raises ConfigurationError where they are no such text.
    """
    length = number(_part(name, 0))
    if length is None:
        return None
    try:
        if length > TEXT_BYTES_MAX:
            raise ConfigurationError(f"the text {name} of {uri} cannot be read: it has {length} bytes")
        parts = [number(_part(name, each)) for each in range(1, 1 + _chunks(length))]
        packed = b"".join((part or 0).to_bytes(_CHUNK_BYTES, "big") for part in parts)[:length]
        return zlib.decompress(packed).decode()
    except (zlib.error, UnicodeDecodeError, OverflowError) as error:
        raise ConfigurationError(f"the text {name} of {uri} cannot be read: {error}") from error


def numbers_of_text(name: str, text: str) -> dict[str, int]:
    """Return the numbers that store a text: its length, packed, and its parts."""
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


def _refuse_unwritable(table: DeltaTable) -> None:
    """Raises ConfigurationError for a table of which an append has to say more than these commits do."""
    protocol = table.protocol()
    faults = sorted(set(protocol.writer_features or ()) - _FEATURES)
    if _WRITER_VERSION_MAX < protocol.min_writer_version != _WRITER_VERSION_FEATURES:
        faults.append(f"writer version {protocol.min_writer_version}")
    faults += [name for name in table.metadata().configuration if name.startswith(_CONSTRAINT)]
    schema = table.schema().to_json()
    faults += [name.strip('"') for name in _CHECKED if name in schema]
    if faults:
        raise ConfigurationError(
            f"the feed {table.table_uri} was given what its writers do not know: {', '.join(faults)}",
            remedy="Drop it, or begin another feed",
        )
