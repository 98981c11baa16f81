"""ULIDs of a changefeed: their arithmetic in two halves, and their two spellings (after mssql-changefeed).

A ulid is 16 bytes, of which the first 6 are a time in milliseconds: bytewise order is order in time. All ulids of a
transaction have its time and follow one another, so that only where they begin is drawn; transactions of one shard
follow one another too, within a millisecond and when a clock steps back.
"""

from __future__ import annotations

from typing import NamedTuple

from iscp.core.values.errors import ConfigurationError, InvalidRequest

ULID_BYTES = 16
DRAWN_BYTES = 10
"""Random bytes for a beginning; 79 of their bits are used."""

TRANSACTION_ULIDS_MAX = 64 * 1024 * 1024 * 1024
"""2^36 ulids of one transaction; more are refused. A place with room for fewer is left for the next millisecond."""

TIME_MS_MAX = (1 << 47) - 1
"""The latest time of a ulid, the year 6429: its first half stays a positive int64, as which Delta keeps it. A later one
is refused.
"""

TEXT_CHARS = 26
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's: five bits a character, in the order of their bytes."""

_VALUES = {char: value for value, char in enumerate(ALPHABET)}
_BIT_62 = 1 << 62
_LOW_MAX = (1 << 63) - 1
_LOW_MASK = (1 << 64) - 1


class UlidPlace(NamedTuple):
    """The next ulid that a shard will give.

    `high`: its first 8 bytes as a number, the time and 16 drawn bits; `low`: its last 8 bytes as an int64, whose bit 62
    is 0 when it is drawn: so many as 2^62 can be added before the sign would change, and with it the order.
    """

    high: int
    low: int

    @property
    def time_ms(self) -> int:
        """Return the Unix milliseconds of the place."""
        return self.high >> 16

    @property
    def room(self) -> int:
        """Return how many ulids can be given from here."""
        return (_LOW_MAX if self.low >= 0 else -1) - self.low

    def ulid(self, number: int = 0) -> bytes:
        """The one that is `number` after the next."""
        return self.high.to_bytes(8, "big") + ((self.low + number) & _LOW_MASK).to_bytes(8, "big")

    def after(self, count: int) -> UlidPlace:
        """The place when `count` more were given. Raises InvalidRequest if there is no room for them."""
        if not 0 <= count <= self.room:
            raise InvalidRequest(
                f"there are no {count} ulids in one transaction", about="rows", remedy="Split it into several"
            )
        return self._replace(low=self.low + count)


NO_ULIDS = UlidPlace(0, 0)
"""The place of a shard that has given none."""


def begin(place: UlidPlace, now_ms: int, drawn: bytes) -> UlidPlace:
    """Return the place where the ulids of a transaction begin that comes after all that led to `place`.

    Within the millisecond of the last one, or when the clock has stepped back behind it, they go on where those ended.
    `drawn`: DRAWN_BYTES random bytes. Raises ConfigurationError on a clock that cannot be right.
    """
    if not 0 < now_ms <= TIME_MS_MAX:
        raise ConfigurationError(f"the clock says {now_ms} ms since 1970", remedy="Set it")
    if now_ms > place.time_ms:
        return _drawn(now_ms, drawn)
    if place.room >= TRANSACTION_ULIDS_MAX:
        return place
    return _drawn(place.time_ms + 1, drawn)


def _drawn(time_ms: int, drawn: bytes) -> UlidPlace:
    if len(drawn) != DRAWN_BYTES:
        raise ValueError(f"{len(drawn)} bytes were drawn, not {DRAWN_BYTES}")
    high = time_ms << 16 | int.from_bytes(drawn[:2], "big")
    return UlidPlace(high, int.from_bytes(drawn[2:], "big", signed=True) & ~_BIT_62)


def ulid_time_ms(ulid: bytes) -> int:
    """Return the Unix milliseconds of the ulid."""
    return int.from_bytes(ulid[:6], "big")


def ulid_text(ulid: bytes) -> str:
    """Return the ulid's 26 characters, which sort as its bytes do."""
    number = int.from_bytes(ulid, "big")
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def parse_ulid(text: str, field: str = "ulid") -> bytes:
    """Return the 16 bytes of a ulid's text, in capital or small letters. Raises InvalidRequest."""
    values = [_VALUES.get(char) for char in text.upper()]
    if len(values) != TEXT_CHARS or None in values or text[0] > "7":
        raise InvalidRequest(
            f"{text[:64]!r} is no ulid",
            about=field,
            remedy=f"Give {TEXT_CHARS} characters of {ALPHABET}, the first of them at most 7",
        )
    number = 0
    for value in values:
        number = number << 5 | (value or 0)
    return number.to_bytes(ULID_BYTES, "big")
