"""Requests of gRPC services with one field or several put wrong, made from the descriptors of the wire: as bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

Path = tuple[FieldDescriptor, ...]

NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1)
SECONDS_WRONG = (float("nan"), float("inf"), float("-inf"), -1.0, 1e308)
TEXTS_UNREADABLE = (b"\xff\xfe", b"\xed\xa0\x80", b"\xc3")
"""No UTF-8: a byte order mark of another encoding, the half of a surrogate pair, the beginning of a character."""

TEXTS_WRONG = ("a\0b", "x" * 300_000)
TEXTS_ODD = (
    "",
    " ",
    "a\nb",
    "\x1b[31mred",
    "\u202eabc",
    "\ufeff",
    "\x85",
    "-x",
    "*",
    "[",
    "../x",
    "s3://b/k",
    "1" * 300,
)
"""What may be a name of nothing, or of something, but nothing that a terminal obeys."""

JSON_WRONG = (
    *(" ", "{", "[]", "null", "7", "NaN", '"x"', "1" * 5_000, "[" * 100_000, '{"a":' * 5_000, "x" * 300_000),
    *('{"nope": 1}', '{"target_lag": NaN}', '{"target_lag": 1e400}', '{"target_lag": -1}', '{"target_lag": true}'),
    '{"iteration": {"priority": 99999999999999999999999}}',
    '{"iteration": {"priority": "\\ud800"}}',
    '{"iteration": {"consumer": {"kind": "\\udfff"}}}',
    '{"iteration": {"consumer": {"kind": ["replica"]}}}',
    '{"iteration": {"consumer": {"kind": "replica", "target": "/nowhere/\\u0000", "key": ["id"]}}}',
    '{"iteration": {"consumer": {"kind": "replica", "target": "/nowhere/\\u001b[31m", "key": ["id"]}}}',
    '{"iteration": {"consumer": {"kind": "replica", "target": "/nowhere/x", "key": [""]}}}',
    '{"iteration": {"on_replace": "sometimes"}, "trigger": 7}',
)


def fill(message: Descriptor, values: Mapping[str, Any]) -> Message:
    """A message with all its fields: those of these names have these values."""
    made: Any = GetMessageClass(message)()
    for field in message.fields:
        if _is_map(field):
            continue
        if field.message_type is not None:
            part = fill(field.message_type, values)
            (getattr(made, field.name).add() if field.is_repeated else getattr(made, field.name)).CopyFrom(part)
        elif field.name in values:
            setattr(made, field.name, values[field.name])
    return made  # type: ignore[no-any-return]


def paths(message: Descriptor, above: Path = ()) -> Iterator[Path]:
    """All its fields, and those of the messages in it."""
    for field in message.fields:
        yield (*above, field)
        if field.message_type is not None and not _is_map(field):
            yield from paths(field.message_type, (*above, field))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def wrong_values(field: FieldDescriptor) -> tuple[Any, ...]:
    """What no method may take for this field."""
    if field.type == field.TYPE_STRING:
        return TEXTS_UNREADABLE + (JSON_WRONG if field.name.endswith("_json") else TEXTS_WRONG)
    if field.type == field.TYPE_DOUBLE:
        return SECONDS_WRONG
    if field.type == field.TYPE_ENUM:
        return (99, -1, 2**31 - 1)
    if field.type == field.TYPE_MESSAGE:
        return (b"\xff", b"\x0a\x7f")
    return (2**32 - 1,) if field.name == "format_version" else ()


def odd_values(field: FieldDescriptor) -> tuple[Any, ...]:
    """What a method may take or refuse; None: the field is not there."""
    if field.type == field.TYPE_STRING:
        return (None, *TEXTS_ODD)
    if field.type == field.TYPE_MESSAGE:
        return (None, b"")
    return (None,) if field.type == field.TYPE_DOUBLE else (None, *NUMBERS)


def with_value(message: Message, path: Path, value: Any) -> bytes:
    """The message's bytes, with another value of the field at the end of the path."""
    field, *below = path
    rest: Any = type(message)()
    rest.CopyFrom(message)
    rest.ClearField(field.name)
    if below:
        part = getattr(message, field.name)
        value = with_value(part[0] if field.is_repeated else part, tuple(below), value)
    return bytes(rest.SerializeToString()) + (b"" if value is None else encode_field(field, value))


def encode_field(field: FieldDescriptor, value: Any) -> bytes:
    if field.type == field.TYPE_DOUBLE:
        return _varint(field.number << 3 | 1) + struct.pack("<d", value)
    if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
        raw = value if isinstance(value, bytes) else value.encode()
        return _varint(field.number << 3 | 2) + _varint(len(raw)) + raw
    return _varint(field.number << 3) + _varint(value)


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))
