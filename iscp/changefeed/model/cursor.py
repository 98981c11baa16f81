"""The place of a reader in a changefeed: the last ulid that it has had of each shard.

One ulid for all shards would not do: one that is behind the others would have its later rows passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType

from iscp.changefeed.model.ulid import parse_ulid, ulid_text
from iscp.core.values.argument_checks import require
from iscp.core.values.errors import CursorBehind, InvalidRequest

_FIELD = "cursor"
_REMEDY = 'Give a cursor as a page has it, or its text: {"feed": "...", "shards": {"0": "01J..."}}'
_BEGINNING = ""


class Cursor(Mapping[int, str]):
    """A frozen map from shard to the last ulid, as text, that knows its feed; a shard that is not in it: its beginning.

    Only `parse` and `refuse_foreign` check that its ulids are ulids.
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
