"""Tables as a hostile account leaves them: each function poisons one that is in order, whose log has three commits.

`elsewhere` is a directory of another account, two levels above the table and then `other`; in it lies `secret.parquet`,
whose rows have the text SECRET and must never be seen.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from iscp.delta.log.readable_files import pack_vectors, vectors_path

SECRET = "secret"
LEVELS = 10_000
"""Of nesting: 80 KB of a Parquet footer, which overflowed the stack of a thread."""
SPARSE_BYTES = 6 * 1024**3
VERSIONS = 3
VECTORS_ID = uuid.UUID(int=7)

Poison = Callable[[str, Path], None]


def table_in(lake: Path) -> tuple[str, Path]:
    """A table of one account, and what another has elsewhere."""
    uri, elsewhere = str(lake / "evil" / "t"), lake / "other"
    for version in range(VERSIONS):
        rows = pa.table({"id": pa.array([version], pa.int64()), "v": ["mine"]})
        write_deltalake(uri, rows, mode="append", configuration={"delta.enableChangeDataFeed": "true"})
    elsewhere.mkdir()
    pq.write_table(pa.table({"id": pa.array([7], pa.int64()), "v": [SECRET]}), elsewhere / "secret.parquet")
    return uri, elsewhere


def log_file(uri: str, name: str) -> Path:
    return Path(uri, "_delta_log", name)


def commit(uri: str, version: int = VERSIONS) -> Path:
    """By default the one that is to come next."""
    return log_file(uri, f"{version:020d}.json")


def write_commit(uri: str, *actions: Mapping[str, Any]) -> None:
    about = {"commitInfo": {"operation": "WRITE", "timestamp": 1}}
    commit(uri).write_text("".join(f"{json.dumps(each)}\n" for each in (about, *actions)))


def add(uri: str, **fields: Any) -> dict[str, Any]:
    """The action of the newest file, with other fields."""
    lines = commit(uri, VERSIONS - 1).read_text().splitlines()
    (found,) = [action["add"] for action in map(json.loads, lines) if "add" in action]
    return {"add": found | fields}


def secret_add(uri: str, path: str) -> dict[str, Any]:
    size = (Path(uri).parents[1] / "other" / "secret.parquet").stat().st_size
    return add(uri, path=path, size=size, stats='{"numRecords":1}')


# --- what is no file, or an endless one -----------------------------------------------------------------------------


def pipe_as_commit(uri: str, elsewhere: Path) -> None:
    os.mkfifo(commit(uri))


def device_as_commit(uri: str, elsewhere: Path) -> None:
    commit(uri).symlink_to("/dev/zero")


def link_as_commit(uri: str, elsewhere: Path) -> None:
    path = elsewhere / "commit.json"
    path.write_text(json.dumps(add(uri)) + "\n")
    commit(uri).symlink_to(path)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE_BYTES)


def sparse_commit(uri: str, elsewhere: Path) -> None:
    _sparse(commit(uri))


def pipe_as_hint(uri: str, elsewhere: Path) -> None:
    os.mkfifo(log_file(uri, "_last_checkpoint"))


def sparse_hint(uri: str, elsewhere: Path) -> None:
    _sparse(log_file(uri, "_last_checkpoint"))


def pipe_as_checksum(uri: str, elsewhere: Path) -> None:
    os.mkfifo(log_file(uri, f"{VERSIONS - 1:020d}.crc"))


def pipe_as_hadoops_checksum(uri: str, elsewhere: Path) -> None:
    os.mkfifo(log_file(uri, f".{VERSIONS - 1:020d}.json.crc"))


def sparse_checkpoint(uri: str, elsewhere: Path) -> None:
    _sparse(log_file(uri, f"{VERSIONS - 1:020d}.checkpoint.parquet"))


def pipe_as_data_file(uri: str, elsewhere: Path) -> None:
    path = Path(uri, add(uri)["add"]["path"])
    path.unlink()
    os.mkfifo(path)


# --- nesting --------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    content = bytearray()
    while number > 127:
        content.append(number & 127 | 128)
        number >>= 7
    return bytes([*content, number])


def nested_parquet(levels: int) -> bytes:
    """A file whose only column lies below so many others, each of which has one child (parquet.thrift)."""
    within = bytes([0x35, 2, 0x18, 1, ord("a"), 0x15, 2, 0])  # repetition_type 1, name a, num_children 1
    leaf = bytes([0x15, 2, 0x25, 2, 0x18, 1, ord("a"), 0])  # type 1, repetition_type 1, name a
    root = bytes([0x48, 1, ord("r"), 0x15, 2, 0])  # name r, num_children 1
    schema = b"\x19\xfc" + _varint(levels + 2) + root + within * levels + leaf
    footer = b"\x15\x02" + schema + b"\x16\x00" + b"\x19\x0c" + b"\x00"  # version 1, num_rows 0, no row groups
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def nested_checkpoint(uri: str, elsewhere: Path) -> None:
    log_file(uri, f"{VERSIONS - 1:020d}.checkpoint.parquet").write_bytes(nested_parquet(LEVELS))


def nested_sidecar(uri: str, elsewhere: Path) -> None:
    _sidecar_checkpoint(uri, "a.parquet")
    log_file(uri, "_sidecars").mkdir()
    log_file(uri, "_sidecars/a.parquet").write_bytes(nested_parquet(LEVELS))


def _sidecar_checkpoint(uri: str, path: str) -> None:
    """A checkpoint of version 2, whose files are in a sidecar."""
    lines = [json.loads(line) for line in commit(uri, 0).read_text().splitlines()]
    features = {"readerFeatures": ["v2Checkpoint"], "writerFeatures": ["v2Checkpoint", "changeDataFeed"]}
    kept = [each for each in lines if "metaData" in each]
    actions = [
        {"checkpointMetadata": {"version": VERSIONS - 1}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        *kept,
        {"sidecar": {"path": path, "sizeInBytes": 80_000, "modificationTime": 1}},
    ]
    name = f"{VERSIONS - 1:020d}.checkpoint.{VECTORS_ID}.json"
    lines_of = "".join(f"{json.dumps(each)}\n" for each in actions)
    log_file(uri, name).write_text(lines_of.replace('"sidecar"', '"side\\u0063ar"'))


def nested_data_file(uri: str, elsewhere: Path) -> None:
    content = nested_parquet(LEVELS)
    Path(uri, "nested.parquet").write_bytes(content)
    write_commit(uri, add(uri, path="nested.parquet", size=len(content)))


def nested_commit(uri: str, elsewhere: Path) -> None:
    commit(uri).write_text('{"metaData":' + '{"a":' * LEVELS + "1" + "}" * LEVELS + "}\n")


def nested_schema(uri: str, elsewhere: Path) -> None:
    lines = [json.loads(line) for line in commit(uri, 0).read_text().splitlines()]
    (metadata,) = [each["metaData"] for each in lines if "metaData" in each]
    within = '{"type":"struct","fields":[{"name":"a","nullable":true,"metadata":{},"type":'
    write_commit(uri, {"metaData": metadata | {"schemaString": within * LEVELS + '"long"' + "}]}" * LEVELS}})


# --- paths ----------------------------------------------------------------------------------------------------------


def path_by_dots(uri: str, elsewhere: Path) -> None:
    write_commit(uri, secret_add(uri, "../../other/secret.parquet"))


def path_by_encoded_dots(uri: str, elsewhere: Path) -> None:
    write_commit(uri, secret_add(uri, "..%2F%2E%2E/other%2Fsecret.parquet"))


def dots_in_a_checkpoint(uri: str, elsewhere: Path) -> None:
    path_by_dots(uri, elsewhere)
    DeltaTable(uri).create_checkpoint()
    commit(uri).write_text(json.dumps({"commitInfo": {"operation": "WRITE", "timestamp": 1}}) + "\n")


def path_by_a_link(uri: str, elsewhere: Path) -> None:
    Path(uri, "part").symlink_to(elsewhere)
    write_commit(uri, secret_add(uri, "part/secret.parquet"))


def link_as_data_file(uri: str, elsewhere: Path) -> None:
    Path(uri, "linked.parquet").symlink_to(elsewhere / "secret.parquet")
    write_commit(uri, secret_add(uri, "linked.parquet"))


def change_data_by_dots(uri: str, elsewhere: Path) -> None:
    size = (elsewhere / "secret.parquet").stat().st_size
    path = "_change_data/../../../other/secret.parquet"
    write_commit(uri, {"cdc": {"path": path, "partitionValues": {}, "size": size, "dataChange": False}})


def sidecar_by_dots(uri: str, elsewhere: Path) -> None:
    _sidecar_checkpoint(uri, "../../../../other/secret.parquet")


def absolute_path(uri: str, elsewhere: Path) -> None:
    """Refused where accounts have roots alone."""
    write_commit(uri, secret_add(uri, str(elsewhere / "secret.parquet")))


# --- deletion vectors -----------------------------------------------------------------------------------------------


def _vector(uri: str, vector: Mapping[str, Any]) -> None:
    """A commit that gives the newest file a deletion vector, in a table that may have some."""
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "changeDataFeed"]}
    before = add(uri)["add"]
    removed = {name: before[name] for name in ("path", "partitionValues", "size")} | {"deletionTimestamp": 1}
    write_commit(
        uri,
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": removed | {"dataChange": True, "extendedFileMetadata": True}},
        {"add": before | {"deletionVector": dict(vector)}},
    )


def _store_vector(uri: str, bitmap: bytes, cardinality: int) -> None:
    body = struct.pack("<i", 1_681_511_377) + bitmap
    path = Path(uri, vectors_path(VECTORS_ID))
    path.write_bytes(b"\x01" + struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body)))
    stored = {"storageType": "u", "pathOrInlineDv": _coded(), "offset": 1}
    _vector(uri, stored | {"sizeInBytes": len(body), "cardinality": cardinality})


def _coded() -> str:
    """How a descriptor names the file of vectors."""
    _, (descriptor,) = pack_vectors(VECTORS_ID, [np.zeros(1, np.int64)])
    return str(descriptor["pathOrInlineDv"])


def _runs(containers: int) -> bytes:
    """All rows of so many times 65,536, in 10 bytes each: a bitmap of 32 bits in Roaring's format, of runs alone."""
    head = struct.pack("<I", 12_347 | (containers - 1) << 16) + b"\xff" * ((containers + 7) // 8)
    keys = b"".join(struct.pack("<HH", key, 65_535) for key in range(containers))
    first = len(head) + len(keys) + 4 * containers
    offsets = b"".join(struct.pack("<I", first + 6 * each) for each in range(containers))
    return head + keys + offsets + struct.pack("<HHH", 1, 0, 65_535) * containers


def huge_bitmap(uri: str, elsewhere: Path) -> None:
    """1 MB that takes out 2 ** 32 rows of a file which has one: 32 GiB as numbers."""
    containers = 2**16
    _store_vector(uri, struct.pack("<QI", 1, 0) + _runs(containers), containers * 65_536)


def bitmap_far_away(uri: str, elsewhere: Path) -> None:
    """The row 2 ** 62: Spark makes an empty bitmap for each 2 ** 32 before it."""
    one = struct.pack("<IIHHIH", 12_346, 1, 0, 0, 16, 0)
    _store_vector(uri, struct.pack("<QI", 1, 2**30) + one, 1)


def device_as_vector(uri: str, elsewhere: Path) -> None:
    at = {"storageType": "p", "pathOrInlineDv": "/dev/zero", "offset": 1}
    _vector(uri, at | {"sizeInBytes": 2**31 - 9, "cardinality": 1})


def vector_by_dots(uri: str, elsewhere: Path) -> None:
    named = {"storageType": "u", "pathOrInlineDv": f"../../other/{_coded()}"}
    _vector(uri, named | {"offset": 1, "sizeInBytes": 40, "cardinality": 1})


# --- ids ------------------------------------------------------------------------------------------------------------

ODD_IDS = ("a/b", "", "x" * 5_000, "../../other", "0a1b2c3d-0000-4000-8000-00000000a000/2")


def with_id(table_id: str) -> Poison:
    """From its first commit on."""

    def poison(uri: str, elsewhere: Path) -> None:
        lines = [json.loads(line) for line in commit(uri, 0).read_text().splitlines()]
        for line in lines:
            if "metaData" in line:
                line["metaData"]["id"] = table_id
        commit(uri, 0).write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    return poison


NO_FILES: tuple[Poison, ...] = (
    pipe_as_commit,
    device_as_commit,
    link_as_commit,
    sparse_commit,
    pipe_as_hint,
    sparse_hint,
    pipe_as_checksum,
    pipe_as_hadoops_checksum,
    sparse_checkpoint,
    pipe_as_data_file,
)
NESTED: tuple[Poison, ...] = (nested_checkpoint, nested_sidecar, nested_data_file, nested_commit, nested_schema)
PATHS: tuple[Poison, ...] = (
    path_by_dots,
    path_by_encoded_dots,
    dots_in_a_checkpoint,
    path_by_a_link,
    link_as_data_file,
    change_data_by_dots,
    sidecar_by_dots,
)
VECTORS: tuple[Poison, ...] = (huge_bitmap, bitmap_far_away, device_as_vector, vector_by_dots)
POISONS = (*NO_FILES, *NESTED, *PATHS, *VECTORS)
"""Each of which every reader refuses, wherever accounts may read."""
