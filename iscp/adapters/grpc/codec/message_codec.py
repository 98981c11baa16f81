"""Between values and protobuf's messages that have the same fields: what a codec is made of.

A codec reads the fields off the value's class and the message's descriptor once, when it is made. It gives protobuf
dicts, since that would copy messages that stand in messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from iscp.core.values.errors import InvalidRequest, PermanentError

PAGE_BYTES_MAX = 512 * 1024
"""Bytes in one page of an answer, unless a single item has more; the others follow in further pages."""

PAGE_ITEMS_MAX = 1_000
"""Items in one page of an answer; the others follow in further pages."""

E = TypeVar("E", bound=Enum)
M = TypeVar("M", bound=Message)
P = ParamSpec("P")
V = TypeVar("V")
Fields = dict[str, Any]

_EXPECTED = {
    FieldDescriptor.CPPTYPE_STRING: "a text that UTF-8 can hold",
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_INT64: "a whole number of at most 63 bits",
    FieldDescriptor.CPPTYPE_UINT32: "a whole number from 0 to 2^32 - 1",
}


def to_message(kind: Callable[P, M], *args: P.args, **given: P.kwargs) -> M:
    """Return a message with these fields. Raises InvalidRequest, with the field, for a value that does not fit."""
    try:
        return kind(*args, **given)
    except (TypeError, ValueError, OverflowError) as error:
        _refuse_misfit(kind, given, error)
        raise


def _refuse_misfit(kind: Any, given: Mapping[str, Any], cause: Exception) -> None:
    for name, value in given.items():
        try:
            kind(**{name: value})
        except (TypeError, ValueError, OverflowError):
            field = kind.DESCRIPTOR.fields_by_name[name]
            for each in value if isinstance(value, list) else (value,):
                if isinstance(each, Mapping) and field.message_type is not None:
                    _refuse_misfit(GetMessageClass(field.message_type), each, cause)
            expected = _EXPECTED.get(field.cpp_type, "as the wire has it")
            raise InvalidRequest(f"is {value!r:.100}: must be {expected}", field=name, remedy="Give another") from cause


def pages(messages: Iterable[M]) -> Iterator[list[M]]:
    """Cut into pages of at most PAGE_ITEMS_MAX items and PAGE_BYTES_MAX bytes, but at least one item each."""
    page: list[M] = []
    page_bytes = 0
    for message in messages:
        message_bytes = message.ByteSize()
        if page and (len(page) >= PAGE_ITEMS_MAX or page_bytes + message_bytes > PAGE_BYTES_MAX):
            yield page
            page, page_bytes = [], 0
        page.append(message)
        page_bytes += message_bytes
    if page:
        yield page


class EnumCodec(Generic[E]):
    """Between an enum and the wire's enum of the same names.

    `named`: how errors name a number, as `state {} of a build`.
    """

    def __init__(self, kind: type[E], wire: Any, named: str) -> None:
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", wire.DESCRIPTOR.name).upper()
        self.known: Mapping[int, E] = _Known({wire.Value(f"{prefix}_{each.name}"): each for each in kind}, named)
        self.to_wire: Callable[[E], Any] = {each: number for number, each in self.known.items()}.__getitem__
        self.from_wire: Callable[[int], E] = self.known.__getitem__


class _Known(dict[int, E]):
    """An enum's members by the wire's numbers. A number that only a newer node knows raises PermanentError."""

    def __init__(self, members: Mapping[int, E], named: str) -> None:
        super().__init__(members)
        self._named = named

    def __missing__(self, number: int) -> E:
        raise PermanentError(
            f"{self._named.format(number)} is not known here", remedy="Use a client as new as the node"
        )


class FieldCodec(NamedTuple):
    """How one field goes over the wire, both ways, where it has another form there."""

    to_wire: Callable[[Any], Any]
    from_wire: Callable[[Any], Any]


class Codec(Generic[V, M]):
    """Between the values of a class and the messages of the same fields; both ways lose nothing.

    `parts` says how a field goes over that is not plain. One that the message has no field for lies flat in the message
    itself. `absent`: what a field is that is not set. `check`: is given each value that comes in, and returns it as it
    may be used.
    """

    def __init__(
        self,
        kind: Callable[..., V],
        message: type[M],
        *,
        absent: Mapping[str, Any] | None = None,
        check: Callable[[V], V] | None = None,
        **parts: Codec[Any, Any] | EnumCodec[Any] | FieldCodec,
    ) -> None:
        self._kind = kind
        self._message = message
        self._check = check
        self._written: list[str] = []
        self._writers: list[tuple[str, Callable[[Any], Any]]] = []
        self._flat_writers: list[tuple[str, Callable[[Any], Fields]]] = []
        self._places: dict[str, int] = {}
        self._read: list[str] = []
        self._readers: list[tuple[int, str, Callable[[Any], Any], Callable[[Any], Any] | None, Any]] = []
        self._whole_readers: list[tuple[int, str, Callable[[Any], Any]]] = []
        absences, defaults = dict(absent or {}), _defaults(kind) | dict(absent or {})
        for place, (name, optional) in enumerate(_optional(kind).items()):
            self._places[name] = place
            part, field = parts.get(name), message.DESCRIPTOR.fields_by_name.get(name)
            self._read.append(name if field is not None else "DESCRIPTOR")  # something that is there, to be replaced
            if field is not None:
                self._add(place, field, part, optional, name in absences, defaults.get(name))
            elif part is not None:
                self._flat_writers.append((name, _write_of(part)))
                self._whole_readers.append((place, name, _read_of(part)))
            else:
                self._whole_readers.append((place, name, partial(_default, defaults.get(name))))
        self._written_values, self._read_values = _values_of(self._written), _values_of(self._read)

    def _add(self, place: int, field: Any, part: Any, optional: bool, may_be_absent: bool, absent: Any) -> None:
        name, write, read = field.name, _write_of(part), _read_of(part)
        if field.is_repeated and not isinstance(part, FieldCodec):
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            read = (dict if is_map else tuple) if read is None else _of_each(read, tuple)
            write = None if write is None else _of_each(write, list)
        self._written.append(name)
        if write is not None:
            self._writers.append((name, write))
        is_there: Callable[[Any], Any] | None = None
        if field.has_presence and (optional or field.message_type is None):
            is_there = methodcaller("HasField", name)
        elif not (field.has_presence or field.is_repeated) and (optional or may_be_absent):
            is_there = attrgetter(name)
        if read is not None or is_there is not None:
            self._readers.append((place, name, read or _unchanged, is_there, absent))

    def fields(self, value: V) -> Fields:
        """Return the fields of the value's message, as protobuf takes them."""
        found: Fields = dict(zip(self._written, self._written_values(value), strict=True))
        for name, write in self._writers:
            if found[name] is not None:
                found[name] = write(found[name])
        for name, write in self._flat_writers:
            found |= write(getattr(value, name))
        return found

    def to_wire(self, value: V, **more: Any) -> M:
        """Return the value's message, with `more` fields. Raises InvalidRequest for what has no place in it."""
        return to_message(self._message, **self.fields(value), **more)

    def from_wire(self, message: M, **given: Any) -> V:
        """Return the message's value; fields that are given are not read. Raises PermanentError, and as `check`."""
        values = list(self._read_values(message))
        for place, name, read, is_there, absent in self._readers:
            if name not in given:
                values[place] = read(values[place]) if is_there is None or is_there(message) else absent
        for place, name, read in self._whole_readers:
            if name not in given:
                values[place] = read(message)
        for name, each in given.items():
            values[self._places[name]] = each
        value = self._kind(*values)
        return value if self._check is None else self._check(value)


def _write_of(part: Any) -> Any:
    return part.fields if isinstance(part, Codec) else part.to_wire if part is not None else None


def _read_of(part: Any) -> Any:
    return part.from_wire if part is not None else None


def _default(default: Any, message: object) -> Any:
    return default


def _unchanged(value: Any) -> Any:
    return value


def _of_each(change: Callable[[Any], Any], whole: Callable[[list[Any]], Any]) -> Callable[[Iterable[Any]], Any]:
    return lambda values: whole([change(each) for each in values])


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _optional(kind: Any) -> Mapping[str, bool]:
    """Return the names of a class's fields, in order, and whether each may be None."""
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind._fields
    hints = get_type_hints(kind)
    return {name: type(None) in get_args(hints[name]) for name in names}


def _defaults(kind: Any) -> Fields:
    if not is_dataclass(kind):
        return dict(kind._field_defaults)
    made = {each.name: each.default_factory() for each in fields(kind) if each.default_factory is not MISSING}
    return made | {each.name: each.default for each in fields(kind) if each.default is not MISSING}
