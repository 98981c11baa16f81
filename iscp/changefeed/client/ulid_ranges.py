"""The ulids that an append was given: so many from one on, without holding each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from iscp.changefeed.model.ulid import UlidPlace, ulid_text
from iscp.changefeed.table.ulid_columns import ulid_columns


@dataclass(frozen=True, slots=True)
class Ulids:
    """`count` ulids, the first of which is that of `place`: one for each row, in the order in which these were sorted.

    The ulids are a sequence of their texts; readers see them once the transaction is committed.
    """

    place: UlidPlace
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> str:
        return ulid_text(self.bytes(number))

    def __iter__(self) -> Iterator[str]:
        return (ulid_text(self.place.ulid(number)) for number in range(self.count))

    @property
    def first(self) -> str:
        """Raises IndexError where there are none, as `last` does."""
        return self[0]

    @property
    def last(self) -> str:
        return self[-1]

    def bytes(self, number: int) -> bytes:
        """Return the 16 bytes of one ulid; a negative number counts from the end. Raises IndexError."""
        return self.place.ulid(range(self.count)[number])

    def columns(self) -> tuple[pa.Array, pa.Array]:
        """Return all ulids at once: as bytes (binary), and as texts (string)."""
        return ulid_columns(self.place, self.count)
