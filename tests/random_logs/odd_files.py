"""Puts what is odd into a table's files: hints, what is no file, and footers of Parquet that lie in one field."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.random_logs.odd_cases import Hint, Kept, Odd

HUGE_BYTES = 1 << 30
HINT = "_last_checkpoint"

_TYPES = {"version", "schema", "path_in_schema", "type", "codec", "created_by", "key_value_metadata"}


def newest_in(log: Path) -> int:
    return max(int(each.stem) for each in log.glob("*.json") if each.stem.isdigit())


def commit_in(log: Path, version: int) -> Path:
    return Path(log, f"{version:020}.json")


def put_hint(log: Path, hint: Hint, newest: int) -> None:
    path = Path(log, HINT)
    path.unlink(missing_ok=True)
    away = {"path": "x.parquet", "sizeInBytes": 9, "sidecarFiles": [{"path": "y.parquet", "sizeInBytes": 9}]}
    said: dict[Hint, object] = {
        Hint.NEWEST: {"version": newest, "size": 3},
        Hint.NEXT: {"version": newest + 1, "size": 3},
        Hint.FUTURE: {"version": newest + 100, "size": 3},
        Hint.PAST: {"version": max(0, newest - 1), "size": 3},
        Hint.FIRST: {"version": 0, "size": 3},
        Hint.NEGATIVE: {"version": -1, "size": 1},
        Hint.TEXT: {"version": str(newest), "size": 1},
        Hint.FRACTION: {"version": 1.5, "size": 1},
        Hint.LONG_NUMBER: {"version": 10**400, "size": 1},
        Hint.OTHER_FIELDS: {"checkpoint": 1},
        Hint.LIST: [newest],
        Hint.PARTS: {"version": newest, "size": 3, "parts": 3},
        Hint.CHECKSUM: {"version": newest, "size": 3, "checksum": "0" * 32},
        Hint.SIDECARS: {"version": newest, "size": 3, "v2Checkpoint": away},
    }
    texts = {Hint.EMPTY: b"", Hint.HALF: b'{"version": 1,', Hint.NO_JSON: b"version 1\n", Hint.NO_UNICODE: b"\xff\xfe{"}
    match hint:
        case Hint.ABSENT:
            return
        case Hint.DEEP:
            path.write_text('{"version":' + "[" * 10_000 + "]" * 10_000 + "}")
        case Hint.HUGE:
            path.touch()
            os.truncate(path, HUGE_BYTES)
        case Hint.LINK:
            path.symlink_to("/etc/hostname")
        case Hint.PIPE:
            os.mkfifo(path)
        case Hint.SOCKET:
            bind(path)
        case Hint.DIRECTORY:
            path.mkdir()
        case _:
            path.write_bytes(texts[hint] if hint in texts else json.dumps(said[hint]).encode())


def take_away(path: Path) -> None:
    """Whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def spoil(log: Path, kept: Kept) -> None:
    """Do to the log's newest checkpoint what the case has it be; its commits are there or not already."""
    made = sorted(log.glob("*.checkpoint*.parquet"))
    if kept in (Kept.AWAY, Kept.LOST):
        for path in made:
            path.unlink()
    if kept is Kept.DAMAGED:
        made[-1].write_bytes(made[-1].read_bytes()[:-40])


def bind(path: Path) -> None:
    """A socket, whose path may be longer than one that it can be bound to."""
    above = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{above}/{path.name}")
    finally:
        os.close(above)


@dataclass(frozen=True, slots=True)
class Replaced:
    """A file, or a directory, in whose place something else is until `restore` puts it back."""

    path: Path
    kept: Path

    @classmethod
    def by(cls, odd: Odd, path: Path, kept: Path) -> Replaced:
        """`kept`: where the file is meanwhile; a link leads there."""
        shutil.move(path, kept)
        match odd:
            case Odd.LINK:
                path.symlink_to(kept)
            case Odd.LINK_TO_NOTHING:
                path.symlink_to("nowhere")
            case Odd.LINK_TO_ITSELF:
                path.symlink_to(path.name)
            case Odd.PIPE:
                os.mkfifo(path)
            case Odd.DIRECTORY:
                path.mkdir()
            case Odd.SOCKET:
                bind(path)
        return cls(path, kept)

    def restore(self) -> None:
        take_away(self.path)
        shutil.move(self.kept, self.path)


# --- footers ----------------------------------------------------------------------------------------------------------

_FILE: Mapping[int, str] = {1: "version", 2: "schema", 3: "num_rows", 5: "key_value_metadata", 6: "created_by"}
_GROUP = {2: "group.sizes", 3: "group.num_rows", 5: "group.file_offset", 6: "group.sizes", 7: "group.file_offset"}
_COLUMN = {
    1: "type",
    2: "encodings",
    3: "path_in_schema",
    4: "codec",
    5: "num_values",
    6: "total_uncompressed_size",
    7: "total_compressed_size",
    9: "data_page_offset",
    11: "dictionary_page_offset",
    12: "statistics",
    13: "encoding_stats",
    16: "size_statistics",
}
_BY_PATH: Mapping[tuple[int, ...], Mapping[int, str]] = {(): _FILE, (4,): _GROUP, (4, 1, 3): _COLUMN}
_LENGTH = "length of the footer"


@dataclass(frozen=True, slots=True)
class FooterValue:
    """A number or text of a footer: its field, where it begins and ends in the footer; the number itself."""

    field: str
    begin: int
    end: int
    number: int | None


def footer_values(footer: bytes) -> list[FooterValue]:
    """All of them, by Thrift's compact protocol."""
    return list(_Walk(footer).struct((), ""))


class _Walk:
    def __init__(self, footer: bytes) -> None:
        self._data, self._at = footer, 0

    def struct(self, path: tuple[int, ...], field: str) -> Iterator[FooterValue]:
        number = 0
        while header := self._byte():
            number = number + (header >> 4) if header >> 4 else _signed(self._varint())
            named = field or _BY_PATH.get(path, {}).get(number, "")
            yield from self._value(header & 15, (*path, number), named)

    def _value(self, kind: int, path: tuple[int, ...], field: str) -> Iterator[FooterValue]:
        begin = self._at
        if kind in (4, 5, 6):
            number = _signed(self._varint())
            yield FooterValue(field, begin, self._at, number)
        elif kind == 8:
            length = self._varint()
            begin, self._at = self._at, self._at + length
            yield FooterValue(field, begin, self._at, None)
        elif kind == 9:
            header = self._byte()
            for _ in range(self._varint() if header >> 4 == 15 else header >> 4):
                yield from self._value(header & 15, path, field)
        elif kind == 12:
            yield from self.struct(path, field)
        elif kind in (3, 7):
            self._at += 1 if kind == 3 else 8

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def varint(number: int) -> bytes:
    """A number of 64 bits, as Thrift has it."""
    value, content = (number << 1 ^ number >> 63) & (1 << 64) - 1, bytearray()
    while value > 127:
        content.append(value & 127 | 128)
        value >>= 7
    return bytes([*content, value])


def lie(content: bytes, field: str, number: int) -> bytes:
    """A Parquet file with another value in that field of its footer, or in one of those that have its name."""
    random = Random(number)
    length = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - length], content[-8 - length : -8]
    if field == _LENGTH:
        said = random.choice((0, 1, length - 1, length + 1, length * 2, len(content), 1 << 24, (1 << 32) - 1))
        return content[:-8] + struct.pack("<I", said) + content[-4:]
    values = [each for each in footer_values(footer) if each.field == field and each.begin < each.end]
    if not values:
        raise LookupError(f"the footer has no {field}")
    chosen = random.choice(values)
    footer = footer[: chosen.begin] + _other(chosen, footer, random) + footer[chosen.end :]
    return body + footer + struct.pack("<I", len(footer)) + content[-4:]


def _other(value: FooterValue, footer: bytes, random: Random) -> bytes:
    held = footer[value.begin : value.end]
    if value.number is None:
        place = random.randrange(len(held))
        other = bytes([held[place] ^ 1 << random.randrange(8)])
        return random.choice((held[:place] + other + held[place + 1 :], random.randbytes(len(held))))
    of = value.number
    near = (0, 1, -1, of + 1, of - 1, of * 2, of + 7)
    far = (1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))
    return varint(random.choice([each for each in (*near, *far) if each != of]))


def says_its_rows(field: str) -> bool:
    """Whether a file of which this field is another still has the rows that it had, if it has any."""
    return field not in _TYPES
