"""ULIDs of a changefeed: their arithmetic in two halves, and their two spellings (after mssql-changefeed); and cursors,
which say by ulids how far a reader has come.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import NamedTuple

from iscp.model.values.errors import ConfigurationError, CursorBehind, InvalidRequest
from iscp.model.values.untrusted_values import require

# --- ulids ------------------------------------------------------------------------------------------------------------
# A ulid is 16 bytes, of which the first 6 are a time in milliseconds: bytewise order is order in time. All ulids of a
# transaction have its time and follow one another, so that only where they begin is drawn; transactions of one shard
# follow one another too, within a millisecond and when a clock steps back.

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


# --- cursors ----------------------------------------------------------------------------------------------------------

_FIELD = "cursor"
_REMEDY = 'Give a cursor as a page has it, or its text: {"feed": "...", "shards": {"0": "01J..."}}'
_BEGINNING = ""


class Cursor(Mapping[int, str]):
    """The place of a reader in a changefeed: the last ulid that it has had of each shard.

    One ulid for all shards would not do: a shard that is behind the others would have its later rows passed over. A
    cursor is a frozen map from shard to the last ulid, as text, that knows its feed; a shard that is not in it: its
    beginning. Only `parse` and `refuse_foreign` check that its ulids are ulids.
    """

    __slots__ = ("_ulids", "feed")

    def __init__(self, feed: str, ulids: Mapping[int, str] | None = None) -> None:
        require(ulids, (Mapping, NoneType), "ulids", "a dict from shard to ulid")
        self.feed = feed
        self._ulids = dict(sorted((ulids or {}).items()))

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor that `text` was made of. Raises InvalidRequest."""
        try:
            fields = json.loads(text)
            feed, shards = fields["feed"], fields["shards"]
            if not isinstance(feed, str) or len(fields) != 2:
                raise ValueError(text)
            ulids = {int(shard): str(ulid) for shard, ulid in shards.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidRequest(f"{text[:200]!r} is no cursor", about=_FIELD, remedy=_REMEDY) from error
        return cls(feed, {shard: ulid_text(parse_ulid(ulid, _FIELD)) for shard, ulid in ulids.items()})

    @classmethod
    def of(cls, given: Cursor | str) -> Cursor:
        """Return the cursor, or the one that a text was made of. Raises InvalidRequest for anything else."""
        if isinstance(given, str):
            return cls.parse(given)
        if not isinstance(given, Cursor):
            raise InvalidRequest(f"is a {type(given).__name__}", field=_FIELD, remedy=_REMEDY)
        return given

    @property
    def text(self) -> str:
        """Return one line of JSON, which `parse` reads."""
        return json.dumps({"feed": self.feed, "shards": {str(shard): ulid for shard, ulid in self._ulids.items()}})

    def __getitem__(self, shard: int) -> str:
        return self._ulids[shard]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ulids)

    def __len__(self) -> int:
        return len(self._ulids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and (self.feed, self._ulids) == (other.feed, other._ulids)

    def __hash__(self) -> int:
        return hash((self.feed, *self._ulids.items()))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Cursor({self.feed!r}, {self._ulids!r})"

    def refuse_behind(self, gone: Mapping[int, str]) -> None:
        """Raises CursorBehind where rows that come next were purged, of each shard up to `gone`."""
        if behind := self.behind(gone):
            first = Cursor(self.feed, gone).text
            raise CursorBehind(
                f"rows of shard {behind[0]} that come next were purged, the last of them {gone[behind[0]]}",
                about="cursor",
                remedy=f"Begin again from what is left, behind {first}",
                first_cursor=first,
            )

    def behind(self, ulids: Mapping[int, str]) -> list[int]:
        """The shards in which it has not come as far."""
        return [shard for shard, ulid in ulids.items() if self.get(shard, _BEGINNING) < ulid]

    def refuse_foreign(self, feed: str, shards: int) -> None:
        """Raises InvalidRequest unless it can be one of this feed, which has so many shards."""
        if self.feed != feed:
            raise InvalidRequest(
                f"is one of feed {self.feed}, and this is {feed}",
                field=_FIELD,
                remedy="Use it on the feed that it is of",
            )
        for shard, ulid in self.items():
            if not 0 <= shard < shards:
                raise InvalidRequest(
                    f"has shard {shard}, which the feed has not", field=_FIELD, remedy=f"Shards are 0 to {shards - 1}"
                )
            if ulid_text(parse_ulid(ulid, _FIELD)) != ulid:
                raise InvalidRequest(f"has {ulid!r} in small letters", field=_FIELD, remedy="Use Cursor.parse")


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """A cursor that is stored by name; `revision` is etcd's, and changes with each store. `stored_at_s`: Unix
    seconds.
    """

    name: str
    cursor: Cursor
    revision: int
    stored_at_s: float


def slowest(cursors: Iterable[Cursor]) -> dict[int, str]:
    """Return how far all of the cursors have come: without the shards that one of them has not begun; empty if there is
    none.
    """
    least: dict[int, str] | None = None
    for cursor in cursors:
        before = cursor if least is None else least
        least = {shard: min(ulid, before[shard]) for shard, ulid in cursor.items() if shard in before}
    return least or {}
