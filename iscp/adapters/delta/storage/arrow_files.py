"""Reads Arrow files that somebody else may have put there: one schema, and no more memory than was said.

A file of Arrow's may claim any length for what it has compressed, name one part many times in its footer, and have
texts that end outside of it. So its messages are read one after the other, as they stand, without the footer; the
lengths that they claim are added up before anything is unpacked; and all values are checked
(https://arrow.apache.org/docs/format/Columnar.html has the format).
"""

from __future__ import annotations

from struct import Struct, error

import pyarrow as pa

_PREFIX = b"ARROW1\0\0"
_SCHEMA, _BATCH = "schema", "record batch"
_INT32, _UINT32, _UINT16, _INT64 = Struct("<i"), Struct("<I"), Struct("<H"), Struct("<q")
_BUFFER, _BLOCK = Struct("<qq"), Struct("<qi4xq")
_FOOTER_END = 10
_DICTIONARIES, _BATCHES = 2, 3
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3


class OddArrowError(ValueError):
    """A file that is not read; the text says why."""


def read_arrow(content: bytes, schema: pa.Schema, bytes_max: int) -> pa.Table:
    """Return the rows of an Arrow file of this schema, with the file's own metadata.

    Raises OddArrowError for another schema, for more than `bytes_max` bytes once unpacked, and for what is damaged.
    """
    if not content.startswith(_PREFIX):
        raise OddArrowError("it is no Arrow file")
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(content)[len(_PREFIX) :])
        first = messages.read_next_message()
        if first.type != _SCHEMA:  # pyarrow reads it as one, and ends the process
            raise OddArrowError(f"it begins with a message of the type {first.type}")
        found = pa.ipc.read_schema(first)
        if found != schema:
            raise OddArrowError(f"its columns are {', '.join(found.names[:10])}"[:200])
        batches, left = [], bytes_max
        for message in messages:
            if message.type != _BATCH:
                raise OddArrowError(f"it has a message of the type {message.type}")
            left -= _unpacked_bytes(message)
            if left < 0:
                raise OddArrowError(f"it has more than {bytes_max} bytes once unpacked")
            batch = pa.ipc.read_record_batch(message, found)
            batch.validate(full=True)
            batches.append(batch)
        return pa.Table.from_batches(batches, found)
    except OddArrowError:
        raise
    except (pa.ArrowException, OSError, ValueError, StopIteration, EOFError, MemoryError, error) as fault:
        raise OddArrowError(f"it is damaged ({str(fault)[:200]})") from fault


def check_arrow(content: bytes, schema: pa.Schema, bytes_max: int) -> None:
    """Raise OddArrowError unless another reader, which goes by the footer, takes at most `bytes_max` bytes for a file.

    Others reserve whatever lengths a footer and a message claim, and end the process where there is no such memory.
    """
    try:
        reader = pa.ipc.open_file(pa.py_buffer(content))
        if reader.schema != schema:
            raise OddArrowError("its columns are others")
        (length,) = _INT32.unpack_from(content, len(content) - _FOOTER_END)
        footer = content[len(content) - _FOOTER_END - length : -_FOOTER_END]
        table = _UINT32.unpack_from(footer, 0)[0]
        if (field := _field(footer, table, _DICTIONARIES)) is not None:
            place = field + _UINT32.unpack_from(footer, field)[0]
            if _UINT32.unpack_from(footer, place)[0]:
                raise OddArrowError("it has dictionaries")
        blocks, left = _child(footer, table, _BATCHES), bytes_max
        for number in range(_UINT32.unpack_from(footer, blocks)[0]):
            place, head, body = _BLOCK.unpack_from(footer, blocks + _UINT32.size + number * _BLOCK.size)
            if min(place, head, body) < 0 or place + head + body > len(content):
                raise OddArrowError("it has a part beyond its end")
            message = pa.ipc.read_message(pa.py_buffer(content)[place : place + head + body])
            left -= _unpacked_bytes(message)
            if message.type != _BATCH or left < 0:
                raise OddArrowError(f"it has another message, or more than {bytes_max} bytes once unpacked")
    except OddArrowError:
        raise
    except (pa.ArrowException, OSError, ValueError, EOFError, MemoryError, error) as fault:
        raise OddArrowError(f"it is damaged ({str(fault)[:200]})") from fault


def _unpacked_bytes(message: pa.ipc.Message) -> int:
    """Return how many bytes the columns of a message take once it is unpacked, as it says itself."""
    head, body = message.metadata.to_pybytes(), memoryview(message.body)
    batch = _child(head, _UINT32.unpack_from(head, 0)[0], _HEADER)
    buffers = _child(head, batch, _BUFFERS)
    count = _UINT32.unpack_from(head, buffers)[0]
    compressed = _field(head, batch, _COMPRESSION) is not None
    total = 0
    for number in range(count):
        offset, length = _BUFFER.unpack_from(head, buffers + _UINT32.size + number * _BUFFER.size)
        if offset < 0 or length < 0 or offset + length > len(body):
            raise OddArrowError("it has a part beyond its end")
        claimed = _INT64.unpack_from(body, offset)[0] if compressed and length else -1
        total += length if claimed < 0 else claimed
    return total


def _child(head: bytes, table: int, number: int) -> int:
    """Return the place of the table or list that a field of a table of Flatbuffers' leads to."""
    place = _field(head, table, number)
    if place is None:
        raise OddArrowError("it has a message without a content")
    return int(place + _UINT32.unpack_from(head, place)[0])


def _field(head: bytes, table: int, number: int) -> int | None:
    """Return the place of a field of a table of Flatbuffers'; None where it is not there."""
    known = table - _INT32.unpack_from(head, table)[0]
    if known < 0 or table < 0:
        raise OddArrowError("it has a table outside of a message")
    entry = 4 + 2 * number
    if entry >= _UINT16.unpack_from(head, known)[0]:
        return None
    offset = _UINT16.unpack_from(head, known + entry)[0]
    return table + offset if offset else None
