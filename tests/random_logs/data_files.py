"""Writes what a log points to: data files, change data and deletion vectors, byte by byte as Delta's protocol has them.

None of it goes through the product, deltalake or Spark: what is tried with it is how these read.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.random_logs.cases import Placing, Vector
from tests.random_logs.columns import COLUMNS, Row, arrow_of, partition_values, statistics

_MAGIC, _COOKIE = 1_681_511_377, 12_346
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_NULL = "__HIVE_DEFAULT_PARTITION__"

CHANGE_TYPE = "_change_type"

Action = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class LogFile:
    """A logical file: a data file, and the rows of it that a vector says to be gone. `columns`: those it may have."""

    path: str
    rows: tuple[Row, ...]
    partitions: tuple[str, ...]
    partition: Mapping[str, str | None]
    size: int
    written_ms: int
    columns: int
    stats: str
    vector: Mapping[str, Any] | None = None
    gone: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[str, str]:
        return self.path, unique_id(self.vector)

    @property
    def there(self) -> list[int]:
        """The places of the rows that are there."""
        return [place for place in range(len(self.rows)) if place not in self.gone]

    @property
    def alive(self) -> list[Row]:
        return [self.rows[place] for place in self.there]

    def add(self, *, data_change: bool) -> Action:
        said = {
            "path": self.path,
            "partitionValues": dict(self.partition),
            "size": self.size,
            "modificationTime": self.written_ms,
            "dataChange": data_change,
            "stats": self.stats,
        }
        return {"add": said | self._vector()}

    def remove(self, at_ms: int, *, data_change: bool, bare: bool) -> Action:
        said = {"path": self.path, "deletionTimestamp": at_ms, "dataChange": data_change}
        more = {"extendedFileMetadata": True, "partitionValues": dict(self.partition), "size": self.size}
        return {"remove": said | ({} if bare else more) | self._vector()}

    def _vector(self) -> dict[str, Any]:
        return {} if self.vector is None else {"deletionVector": dict(self.vector)}


def unique_id(vector: Mapping[str, Any] | None) -> str:
    """What distinguishes vectors of one file in the protocol; empty: there is none."""
    if vector is None:
        return ""
    offset = f"@{vector['offset']}" if "offset" in vector else ""
    return f"{vector['storageType']}{vector['pathOrInlineDv']}{offset}"


@dataclass
class DataFiles:
    """Of one table; files are numbered in the order in which they are written."""

    root: Path
    placing: Placing
    bounds: bool
    marked: bool = False
    repeated: bool = False
    _number: int = 0

    def write(self, rows: Sequence[Row], partitions: tuple[str, ...], columns: int, at_ms: int) -> LogFile:
        """A data file of rows that are of one partition."""
        values = partition_values(rows[0], partitions)
        names = [column.name for column in COLUMNS[:columns] if self.repeated or column.name not in partitions]
        place, held = self._place(values), arrow_of(rows, names)
        if self.marked:
            held = held.append_column(CHANGE_TYPE, pa.nulls(len(held), pa.string()))
        size = self._parquet(place, held)
        path = Path(self.root, place).as_uri() if self.placing is Placing.ABSOLUTE else quote(place, safe="/=-_.~")
        stats = compact(statistics(rows, columns, partitions, bounds=self.bounds))
        return LogFile(path, tuple(rows), partitions, values, size, at_ms, columns, stats)

    def write_changes(self, changes: Sequence[tuple[str, Row]], partitions: tuple[str, ...], columns: int) -> Action:
        """A file of change data, of one partition: the kind of each change, and the row."""
        rows = [row for _, row in changes]
        names = [column.name for column in COLUMNS[:columns] if column.name not in partitions]
        kinds = pa.array([kind for kind, _ in changes], pa.string())
        self._number += 1
        place = f"_change_data/cdc-{self._number:05}.parquet"
        size = self._parquet(place, arrow_of(rows, names).append_column(CHANGE_TYPE, kinds))
        values = partition_values(rows[0], partitions)
        return {"cdc": {"path": place, "partitionValues": values, "size": size, "dataChange": False}}

    def mask(self, file: LogFile, gone: Iterable[int], kind: Vector) -> LogFile:
        """The file without these rows and those that are gone already."""
        places = file.gone | {*gone}
        body = _bitmap(sorted(places))
        said = {"sizeInBytes": len(body), "cardinality": len(places)}
        if kind is Vector.INLINE:
            coded = _z85(body + bytes(-len(body) % 4))
            return replace(file, gone=places, vector={"storageType": "i", "pathOrInlineDv": coded} | said)
        self._number += 1
        name = uuid.UUID(int=self._number)
        folder = "ab" if kind is Vector.PREFIXED else ""
        path = Path(self.root, folder, f"deletion_vector_{name}.bin")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another vector comes before it, so that not every offset is the same.
        blocks = [_block(_bitmap([0]))] * (self._number % 2) + [_block(body)]
        path.write_bytes(b"\x01" + b"".join(blocks))
        offset = 1 + sum(map(len, blocks[:-1]))
        if kind in (Vector.RELATIVE, Vector.PREFIXED):
            storage, where = "u", folder + _z85(name.bytes)
        else:
            storage, where = "p", path.as_uri()
        vector = {"storageType": storage, "pathOrInlineDv": where, "offset": offset} | said
        return replace(file, gone=places, vector=vector)

    def _place(self, values: Mapping[str, str | None]) -> str:
        """Below the table, as the file system has it."""
        self._number += 1
        if self.placing is Placing.ESCAPED:
            return f"part {self._number:05} é%25.parquet"
        name = f"part-{self._number:05}.parquet"
        if self.placing is not Placing.HIVE:
            return name
        folders = (f"{key}={_NULL if value is None else quote(value, safe='')}" for key, value in values.items())
        return "/".join([*folders, name])

    def _parquet(self, place: str, rows: pa.Table) -> int:
        path = Path(self.root, place)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path)
        return path.stat().st_size


def compact(document: Mapping[str, Any]) -> str:
    """JSON as commits have it."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _bitmap(places: Sequence[int]) -> bytes:
    """A bitmap of one bucket with one array container: all places are below 2 ** 16 (RoaringFormatSpec)."""
    header = struct.pack("<iqi", _MAGIC, 1, 0)
    containers = struct.pack("<ii", _COOKIE, 1) + struct.pack("<HHi", 0, len(places) - 1, 16)
    return header + containers + struct.pack(f"<{len(places)}H", *places)


def _block(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def _z85(content: bytes) -> str:
    """https://rfc.zeromq.org/spec/32/"""
    found = []
    for (number,) in struct.iter_unpack(">I", content):
        found += [_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(found)
