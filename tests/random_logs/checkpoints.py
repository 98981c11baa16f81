"""Writes checkpoints of each kind that the protocol has (PROTOCOL.md, "Checkpoints"), whole and torn."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.random_logs.cases import Checkpoint, CheckpointKind, Pointer
from tests.random_logs.data_files import Action, compact
from tests.random_logs.table_state import LogState

_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_FILE = [("path", pa.string()), ("partitionValues", _TEXTS), ("size", pa.int64()), ("dataChange", pa.bool_())]
_ADD = pa.struct(
    [*_FILE, ("modificationTime", pa.int64()), ("stats", pa.string()), ("tags", _TEXTS), ("deletionVector", _VECTOR)]
)
_REMOVE = pa.struct(
    [*_FILE, ("deletionTimestamp", pa.int64()), ("extendedFileMetadata", pa.bool_()), ("deletionVector", _VECTOR)]
)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", _TEXTS),
        ("createdTime", pa.int64()),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
_DOMAIN = pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())])
_SIDECAR = pa.struct(
    [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64()), ("tags", _TEXTS)]
)
_OF_V2 = pa.struct([("version", pa.int64()), ("tags", _TEXTS)])

_FILE_ACTIONS = [("add", _ADD), ("remove", _REMOVE)]
_FLAT = [("txn", _TXN), *_FILE_ACTIONS, ("metaData", _METADATA), ("protocol", _PROTOCOL), ("domainMetadata", _DOMAIN)]
_V2 = [*_FLAT, ("checkpointMetadata", _OF_V2), ("sidecar", _SIDECAR)]

V2_KINDS = {CheckpointKind.V2_JSON, CheckpointKind.V2_PARQUET, CheckpointKind.V2_CLASSIC}
PARTED_KINDS = {CheckpointKind.PARTS, CheckpointKind.TORN}


_OTHERWISE = {
    CheckpointKind.V2_JSON: CheckpointKind.PARTS,
    CheckpointKind.V2_PARQUET: CheckpointKind.TORN,
    CheckpointKind.V2_CLASSIC: CheckpointKind.CLASSIC,
    CheckpointKind.PARTS: CheckpointKind.V2_JSON,
    CheckpointKind.TORN: CheckpointKind.V2_PARQUET,
}


def kind_of(wanted: CheckpointKind, *, featured: bool) -> CheckpointKind:
    """A kind that the table may have: with the feature v2Checkpoint none of parts, without it none of version 2."""
    fits = wanted not in (PARTED_KINDS if featured else V2_KINDS)
    return wanted if fits else _OTHERWISE[wanted]


@dataclass(frozen=True, slots=True)
class CheckpointWriter:
    """Into the log at `log`, of the table as `state` has it."""

    log: Path
    state: LogState

    def write(self, plan: Checkpoint) -> bool:
        """Whether readers may use it: not if it is torn."""
        kind = kind_of(plan.kind, featured=self.state.featured)
        others, files = self.state.others(), self.state.file_actions()
        parts = plan.parts + 2 if kind in PARTED_KINDS else None
        match kind:
            case CheckpointKind.CLASSIC:
                self._parquet(self._name("parquet"), _FLAT, [*others, *files])
            case CheckpointKind.PARTS | CheckpointKind.TORN:
                self._parts(plan.parts + 2, [*others, *files], torn=kind is CheckpointKind.TORN)
            case _:
                self._v2(kind, others, files, plan.parts)
        whole = kind is not CheckpointKind.TORN
        if whole:
            self.state.in_v2 = kind in V2_KINDS
        self._point(plan.pointer if whole else Pointer.STALE, len(others) + len(files), parts)
        return whole

    def _name(self, end: str) -> str:
        return f"{self.state.version:020}.checkpoint.{end}"

    def _parts(self, count: int, actions: Sequence[Action], *, torn: bool) -> None:
        for number in range(count):
            if not torn or number != count - 1:
                name = self._name(f"{number + 1:010}.{count:010}.parquet")
                # The first part has the actions that are about no file, and at least one of the others.
                self._parquet(name, _FLAT, _part(actions, number, count))

    def _v2(self, kind: CheckpointKind, others: list[Action], files: list[Action], sidecars: int) -> None:
        head: list[Action] = [{"checkpointMetadata": {"version": self.state.version, "tags": {}}}, *others]
        named = uuid.UUID(int=self.state.version)
        if not sidecars:
            head += files
        for number in range(sidecars):
            path = f"{uuid.UUID(int=1000 * (self.state.version + 1) + number)}.parquet"
            size = self._parquet(f"_sidecars/{path}", _FILE_ACTIONS, files[number::sidecars])
            said = {"path": path, "sizeInBytes": size, "modificationTime": self.state.at_ms(self.state.version)}
            head.append({"sidecar": said})
        match kind:
            case CheckpointKind.V2_JSON:
                lines = "".join(f"{compact(action)}\n" for action in head)
                Path(self.log, self._name(f"{named}.json")).write_text(lines)
            case CheckpointKind.V2_PARQUET:
                self._parquet(self._name(f"{named}.parquet"), _V2, head)
            case _:
                self._parquet(self._name("parquet"), _V2, head)

    def _parquet(self, name: str, columns: Iterable[tuple[str, pa.DataType]], actions: Sequence[Action]) -> int:
        path = Path(self.log, name)
        path.parent.mkdir(exist_ok=True)
        rows = [{kind: _plain(body) for kind, body in action.items()} for action in actions]
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(columns))), path)
        return path.stat().st_size

    def _point(self, pointer: Pointer, size: int, parts: int | None) -> None:
        path = Path(self.log, "_last_checkpoint")
        match pointer:
            case Pointer.MISSING:
                path.unlink(missing_ok=True)
            case Pointer.STALE:
                pass
            case Pointer.RIGHT | Pointer.AHEAD:
                version = self.state.version + (5 if pointer is Pointer.AHEAD else 0)
                path.write_text(compact({"version": version, "size": size} | ({"parts": parts} if parts else {})))


def _part(actions: Sequence[Action], number: int, count: int) -> list[Action]:
    about_files = [action for action in actions if "add" in action or "remove" in action]
    others = [action for action in actions if action not in about_files]
    return [*(others if number == 0 else []), *about_files[number::count]]


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """As Arrow takes it: maps are lists of pairs."""
    found: dict[str, Any] = {}
    for name, value in body.items():
        if name in ("partitionValues", "configuration", "tags", "options") and isinstance(value, dict):
            found[name] = list(value.items())
        elif name == "format":
            found[name] = _plain(value)
        else:
            found[name] = value
    return found
