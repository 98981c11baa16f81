"""What a table is at a version, with all that the log says of each data file: its deletion vector above all.

deltalake keeps to deletion vectors, and does not show where they are. So the newest checkpoint and the commits after
it are read here (Delta protocol, "Action Reconciliation"), and followed commit by commit from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from iscp.adapters.delta.log.actions import Action, is_count, statistics_of
from iscp.adapters.delta.log.commits import commit_stamp, list_log, read_actions, version_of
from iscp.adapters.delta.storage.table_files import files_of

FOLLOWED_MAX = 1_000
"""Commits that are read one by one from what is known, or from a checkpoint; more are left to others to read."""

_COLUMNS = ("add", "metaData", "protocol")


class NotReadableHere(Exception):  # noqa: N818  (not a fault: somebody else has to read it)
    """The log is one that is not read here."""


@dataclass(frozen=True, slots=True)
class TableState:
    """`adds`: of each live file, by its path as the log has it, the whole action."""

    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    adds: Mapping[str, Mapping[str, Any]]

    @property
    def features(self) -> frozenset[str]:
        named = (self.protocol.get(f"{who}Features") or () for who in ("reader", "writer"))
        return frozenset(name for names in named for name in names)

    @property
    def rows(self) -> int | None:
        """Without those that are marked as gone; None: not all files say how many they have."""
        total = 0
        for add in self.adds.values():
            written, gone = (
                statistics_of(add).get("numRecords"),
                (add.get("deletionVector") or {}).get("cardinality", 0),
            )
            if not is_count(written) or not is_count(gone):
                return None
            total += written - gone
        return total

    @property
    def configuration(self) -> Mapping[str, str]:
        return dict(self.metadata.get("configuration") or ())


@dataclass
class StateReader:
    """Of one table; keeps what it read last."""

    uri: str
    _version: int = -1
    _stamp: tuple[int, ...] | None = None
    _state: TableState = field(default_factory=lambda: TableState({}, {}, {}))

    def read(self, version: int) -> TableState:
        """The same object while nobody commits. Raises NotReadableHere, StorageError, TableNotFound."""
        known = 0 <= self._version <= version and commit_stamp(self.uri, self._version) == self._stamp
        if not known:
            self._version, self._state = self._from_checkpoint(version)
        elif version == self._version:
            return self._state
        if version - self._version > FOLLOWED_MAX:
            raise NotReadableHere
        first, self._version = self._version + 1, -1
        state = _after(self._state, (self._actions(each) for each in range(first, version + 1)))
        if not state.protocol or not state.metadata:
            raise NotReadableHere
        self._state, self._version, self._stamp = state, version, commit_stamp(self.uri, version)
        return state

    def _actions(self, version: int) -> list[Action]:
        actions = read_actions(self.uri, version)
        if actions is None:
            raise NotReadableHere
        return actions

    def _from_checkpoint(self, version: int) -> tuple[int, TableState]:
        """The newest one's version and state; nothing, before all commits, where there is none."""
        names = list_log(self.uri).checkpoint
        if not names:
            return -1, TableState({}, {}, {})
        at = version_of(names[0], checkpoints=True)
        if at is None or at > version:
            raise NotReadableHere
        actions: list[Action] = []
        store = files_of(self.uri)
        for name in names:
            with store.open_input_file(f"_delta_log/{name}") as file:
                parquet = pq.ParquetFile(file)
                if not {*_COLUMNS} <= {*parquet.schema_arrow.names}:
                    raise NotReadableHere
                for kind in _COLUMNS:
                    column = parquet.read([kind])[kind]
                    actions += [{kind: _plain(row)} for row in column.filter(column.is_valid()).to_pylist()]
        return at, _after(TableState({}, {}, {}), [actions])


def _after(state: TableState, commits: Iterable[Sequence[Action]]) -> TableState:
    """Of each commit the removed before the added: a file whose deletion vector changes is both in one."""
    adds, protocol, metadata = dict(state.adds), state.protocol, state.metadata
    for actions in commits:
        for action in actions:
            if "remove" in action:
                adds.pop(action["remove"]["path"], None)
        for action in actions:
            if "add" in action:
                adds[action["add"]["path"]] = action["add"]
            protocol, metadata = action.get("protocol", protocol), action.get("metaData", metadata)
    return TableState(protocol, metadata, adds)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """As a commit has it, where maps are objects, and what is not there is left out."""
    found = {name: dict(value) if _is_map(value) else value for name, value in row.items() if value is not None}
    return {"partitionValues": {}} | {name: value for name, value in found.items() if not name.endswith("_parsed")}


def _is_map(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, tuple) and len(each) == 2 for each in value)
