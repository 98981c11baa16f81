"""The ulids of many rows at once, as columns of Arrow: many millions a second."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iscp.changefeed.model.ulid import ALPHABET, TEXT_CHARS, ULID_BYTES, UlidPlace, ulid_text
from iscp.core.values.errors import InvalidRequest

ROWS_MAX = 50_000_000
"""Rows of one append; more are refused, as their texts have to fit into one array of Arrow, whose offsets are of 32
bits.
"""

_CHARS = np.frombuffer(ALPHABET.encode(), np.uint8)
_PAIRS = np.stack([np.repeat(_CHARS, 32), np.tile(_CHARS, 32)], axis=1).reshape(-1).view(np.uint16)
"""Two characters for ten bits."""

_CHUNK_ROWS = 1 << 14
"""Rows whose texts are made together: they stay in the processor's cache."""

_TEXT_OF_HIGH = 13
"""Characters of a text that its first half decides alone; the next has its last bit and four bits of the second."""


def ulid_columns(place: UlidPlace, count: int) -> tuple[pa.Array, pa.Array]:
    """Return the next `count` ulids: their bytes (binary), and their texts (string). Raises InvalidRequest."""
    if count > ROWS_MAX:
        raise InvalidRequest(
            f"{count} rows are more than one append takes", about="rows", remedy=f"Append at most {ROWS_MAX} at a time"
        )
    place.after(count)
    low = np.arange(count, dtype=np.uint64) + np.uint64(place.low & 0xFFFF_FFFF_FFFF_FFFF)
    return _binary(place, low), _text(place, low)


def _binary(place: UlidPlace, low: npt.NDArray[np.uint64]) -> pa.Array:
    halves = np.empty((len(low), 2), dtype=">u8")
    halves[:, 0] = place.high
    halves[:, 1] = low
    return _array(pa.binary(), halves, ULID_BYTES)


def _text(place: UlidPlace, low: npt.NDArray[np.uint64]) -> pa.Array:
    text = np.empty((len(low), TEXT_CHARS), dtype=np.uint8)
    text[:, :_TEXT_OF_HIGH] = np.frombuffer(ulid_text(place.ulid())[:_TEXT_OF_HIGH].encode(), np.uint8)
    for start in range(0, len(low), _CHUNK_ROWS):
        _end_of_text(place, low[start : start + _CHUNK_ROWS], text[start : start + _CHUNK_ROWS, _TEXT_OF_HIGH:])
    return _array(pa.string(), text, TEXT_CHARS)


def _end_of_text(place: UlidPlace, low: npt.NDArray[np.uint64], text: npt.NDArray[np.uint8]) -> None:
    text[:, 0] = _CHARS[_bits(low, 60) | np.uint64((place.high & 1) << 4)]
    pairs = text[:, 1:].view(np.uint16)
    for pair, shift in enumerate(range(50, -1, -10)):
        pairs[:, pair] = _PAIRS[_bits(low, shift) & np.uint64(1023)]


def _bits(low: npt.NDArray[np.uint64], shift: int) -> npt.NDArray[np.uint64]:
    """Return these bits of each ulid, or one value for all: as they follow one another, all of a chunk have the same
    but in their last bits.
    """
    first, last = low[:1] >> np.uint64(shift), low[-1:] >> np.uint64(shift)
    return first if first[0] == last[0] else low >> np.uint64(shift)


def _array(of: pa.DataType, values: npt.NDArray[np.generic], width: int) -> pa.Array:
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(of, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)])
