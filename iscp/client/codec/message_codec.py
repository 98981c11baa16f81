"""Turns values into protobuf's messages with the same fields, and back: the parts of codecs.

A codec reads the fields off the value's class and the message's descriptor once, when it is made. Values go to protobuf
as dicts, since it would copy messages that stand in messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from iscp.model.values.errors import InvalidRequest, PermanentError
from iscp.system.tls.tls_files import FORMAT_VERSION

FORMAT_FIELD = "format_version"
"""The field of each request that says in which format of the wire it is."""

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


def to_request(kind: Callable[P, M], *args: P.args, **given: P.kwargs) -> M:
    """Return a request with these fields, in the wire format of this release. Raises InvalidRequest as `to_message`."""
    request = to_message(kind, *args, **given)
    setattr(request, FORMAT_FIELD, FORMAT_VERSION)
    return request


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
    """Converts one field that has another form on the wire, both ways."""

    to_wire: Callable[[Any], Any]
    from_wire: Callable[[Any], Any]


class Codec(Generic[V, M]):
    """Between the values of a class and the messages of the same fields; both ways lose nothing.

    `parts` says how a field goes over that is not plain. One that the message has no field for lies flat in the message
    itself. `absent`: what a field is that is not set.
    """

    def __init__(
        self,
        kind: Callable[..., V],
        message: type[M],
        *,
        absent: Mapping[str, Any] | None = None,
        **parts: Codec[Any, Any] | EnumCodec[Any] | FieldCodec,
    ) -> None:
        self._message = message
        # What each field is written as, as code that takes the value `v`; and read as, of the message `m`.
        self._written: list[str] = []
        self._read: dict[str, str] = {}
        self._names: Fields = {"_kind": kind}
        self._compiled: dict[tuple[str, ...], Callable[..., V]] = {}
        absences, defaults = dict(absent or {}), _defaults(kind) | dict(absent or {})
        for name, optional in _optional(kind).items():
            part, field = parts.get(name), message.DESCRIPTOR.fields_by_name.get(name)
            self._names[f"absent_{name}"] = defaults.get(name)
            if field is not None:
                self._add(field, part, optional, name in absences)
            elif part is not None:
                self._names |= {f"write_{name}": _write_of(part), f"read_{name}": _read_of(part)}
                self._written.append(f"**write_{name}(v.{name})")
                self._read[name] = f"read_{name}(m)"
            else:
                self._read[name] = f"absent_{name}"
        self.fields: Callable[[V], Fields] = _compile("v", f"{{{', '.join(self._written)}}}", self._names)
        """Returns the fields of a value's message, as protobuf takes them."""

    def _add(self, field: Any, part: Any, optional: bool, may_be_absent: bool) -> None:
        name, write, read = field.name, _write_of(part), _read_of(part)
        if field.is_repeated and not isinstance(part, FieldCodec):
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            read = (dict if is_map else tuple) if read is None else _of_each(read, tuple)
            write = None if write is None else _of_each(write, list)
        self._names |= {f"write_{name}": write, f"read_{name}": read}
        written = f"None if v.{name} is None else write_{name}(v.{name})"
        self._written.append(f"{name!r}: " + (f"v.{name}" if write is None else written))
        value = f"m.{name}" if read is None else f"read_{name}(m.{name})"
        if field.has_presence and (optional or field.message_type is None):
            value = f"({value} if m.HasField({name!r}) else absent_{name})"
        elif not (field.has_presence or field.is_repeated) and (optional or may_be_absent):
            value = f"({value} if m.{name} else absent_{name})"
        self._read[name] = value

    def to_wire(self, value: V, **more: Any) -> M:
        """Return the value's message, with `more` fields. Raises InvalidRequest for what has no place in it."""
        return to_message(self._message, **self.fields(value), **more)

    def from_wire(self, message: M, **given: Any) -> V:
        """Return the message's value; fields that are given are not read. Raises PermanentError."""
        read = self._compiled.get(tuple(given)) or self._compile_reading(tuple(given))
        return read(message, **given)

    def _compile_reading(self, given: tuple[str, ...]) -> Callable[..., V]:
        value = f"_kind({', '.join(name if name in given else read for name, read in self._read.items())})"
        read: Callable[..., V] = _compile(", ".join(("m", *given)), value, self._names)
        self._compiled[given] = read
        return read


def _compile(parameters: str, value: str, names: Fields) -> Any:
    """Return a function of one expression, as dataclasses have their methods made: it is as fast as one that is
    written by hand. The texts are made of the names of fields of this project's own classes and messages.
    """
    return eval(f"lambda {parameters}: {value}", dict(names))


def _write_of(part: Any) -> Any:
    return part.fields if isinstance(part, Codec) else part.to_wire if part is not None else None


def _read_of(part: Any) -> Any:
    return part.from_wire if part is not None else None


def _of_each(change: Callable[[Any], Any], whole: Callable[[list[Any]], Any]) -> Callable[[Iterable[Any]], Any]:
    return lambda values: whole([change(each) for each in values])


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
