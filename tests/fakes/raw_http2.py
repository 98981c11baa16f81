"""HTTP/2 written by hand, to say what no library of clients would: odd headers, frames that are none, half a call."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
WAIT_S = 10.0

Headers = Iterable[tuple[bytes, bytes]]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(path: str, more: Headers = (), *, message: bytes | None = b"", stream: int = 1) -> bytes:
    """A call with these headers besides its own; None: its message never comes."""
    own = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"node"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    block = b"".join(_literal(name, value) for name, value in (*own, *more))
    begun = frame(HEADERS, END_HEADERS, stream, block)
    if message is None:
        return begun
    return begun + frame(DATA, END_STREAM, stream, b"\0" + struct.pack(">I", len(message)) + message)


def exchange(address: str, sent: bytes, wait_s: float = WAIT_S) -> bytes:
    """What is answered to these bytes, until the other side closes, or for so long after its last word."""
    host, _, port = address.rpartition(":")
    answer = bytearray()
    with socket.create_connection((host, int(port)), timeout=wait_s) as connection:
        try:
            connection.sendall(sent)
            while more := connection.recv(65_536):
                answer += more
        except (TimeoutError, ConnectionError):
            pass
    return bytes(answer)


def begin() -> bytes:
    return PREFACE + frame(SETTINGS, 0, 0, b"")


def _literal(name: bytes, value: bytes) -> bytes:
    """Never indexed, not Huffman-coded (RFC 7541, 6.2.2)."""
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(number: int) -> bytes:
    if number < 127:
        return bytes((number,))
    out, number = bytearray((127,)), number - 127
    while number >= 128:
        out.append(number % 128 + 128)
        number //= 128
    return bytes((*out, number))
