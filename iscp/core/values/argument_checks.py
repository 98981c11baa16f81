"""Check the kinds of what callers in Python hand over before it is used, and refuse it with the argument's name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real

from iscp.core.values.errors import InvalidRequest, IscpError
from iscp.core.values.untrusted_values import shown

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
