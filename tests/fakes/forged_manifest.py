"""Protobuf by hand, to write into a manifest of Lance's what Lance itself never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

_FOOTER, _LENGTH = Struct("<q"), Struct("<I")
_END = 16

Fields = list[tuple[int, int | bytes]]


def field(number: int, value: int | bytes) -> bytes:
    """Return one field of a message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def message(fields: Fields) -> bytes:
    return b"".join(field(*each) for each in fields)


def fields_of(content: bytes) -> Fields:
    return list(_fields(content))


def forge(manifest: Path, change: Callable[[Fields], Fields]) -> bytes:
    """Put the result of a change in the place of a manifest's message, and return the whole."""
    content = manifest.read_bytes()
    (place,) = _FOOTER.unpack_from(content, len(content) - _END)
    (length,) = _LENGTH.unpack_from(content, place)
    begin = place + _LENGTH.size
    forged = message(change(fields_of(content[begin : begin + length])))
    whole = content[:place] + _LENGTH.pack(len(forged)) + forged + content[-_END:]
    manifest.unlink()
    manifest.write_bytes(whole)
    return whole


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(content):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            assert tag & 7 == 2
            length = varint()
            yield tag >> 3, content[at : at + length]
            at += length
