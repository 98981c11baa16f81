"""Hashes of keys without Spark, the same that Spark has for `hash_sql`: of keys for which that is certain.

Spark's xxhash64 is XXH64 (Yann Collet, https://xxhash.com), of a double its eight bytes, of a text those of UTF-8; the
hash of each value is the seed of the next, and nulls are passed over. A key's value counts as a double if its text is a
number, and as its text otherwise. Which texts Java takes for numbers is decided here only where it is plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TEXTS_HASHED_MAX = 20_000
"""Rows whose keys are hashed without Spark where a key is a text: each takes some microseconds."""

_SEED = 42
_MASK = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_STRIPE, _LANE = 32, 8
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,14}", re.ASCII)
# All that Java takes for a number, and perhaps more, and what Spark does besides.
_DECIMAL = r"(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?"
_HEXADECIMAL = r"0x[\da-f]*(\.[\da-f]*)?p[+-]?\d+"
_MAY_BE_NUMBER = re.compile(
    rf"[\x00-\x20]*[+-]?(nan|inf|infinity|({_DECIMAL}|{_HEXADECIMAL})[fd]?)[\x00-\x20]*", re.IGNORECASE
)

Hashes = npt.NDArray[np.uint64]


def key_hashes(rows: pa.Table, key: Sequence[str]) -> pa.Array | None:
    """Return the hash of each row's key, a signed number of 64 bits; None: Spark has to find them."""
    names = {name.lower(): name for name in rows.column_names}
    hashes = np.full(len(rows), _SEED, np.uint64)
    for name in key:
        found = _hashed(rows[names[name.lower()]].combine_chunks(), hashes)
        if found is None:
            return None
        hashes = found
    return pa.array(hashes.view(np.int64))


def _hashed(values: pa.Array, seeds: Hashes) -> Hashes | None:
    kind = values.type
    if pa.types.is_integer(kind):
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        doubles = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
        return np.where(valid, _hash_doubles(doubles, seeds), seeds)
    if len(values) > TEXTS_HASHED_MAX:
        return None
    if pa.types.is_boolean(kind):
        texts = [None if each is None else str(each).lower() for each in values.to_pylist()]
    elif pa.types.is_date32(kind):
        try:
            texts = [None if each is None else each.isoformat() for each in values.to_pylist()]
        except (ValueError, OverflowError):  # a year that Python does not have
            return None
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = values.to_pylist()
        if any(map(_may_be_odd_number, texts)):
            return None
    else:
        return None
    return np.fromiter(_each_hash(texts, seeds), np.uint64, len(texts))


def _may_be_odd_number(text: str | None) -> bool:
    return text is not None and _MAY_BE_NUMBER.fullmatch(text) is not None and _WHOLE.fullmatch(text) is None


def _each_hash(texts: Sequence[str | None], seeds: Hashes) -> Iterator[int]:
    known: dict[tuple[str, int], int] = {}
    for text, seed in zip(texts, seeds.tolist(), strict=True):
        if text is None:
            yield seed
            continue
        if (found := known.get((text, seed))) is None:
            number = _WHOLE.fullmatch(text) is not None
            bytes_of = np.float64(text).tobytes() if number else text.replace(" 00:00:00", "").encode()
            found = known[text, seed] = xxh64(bytes_of, seed)
        yield found


def _hash_doubles(doubles: npt.NDArray[np.float64], seeds: Hashes) -> Hashes:
    """Return the XXH64 of the eight bytes of each double."""
    p1, p2, p3, p4 = map(np.uint64, (_P1, _P2, _P3, _P4))
    with np.errstate(over="ignore"):
        lanes = _rotated(doubles.view(np.uint64) * p2, 31) * p1
        found = _rotated((seeds + np.uint64((_P5 + _LANE) & _MASK)) ^ lanes, 27) * p1 + p4
        found = (found ^ (found >> np.uint64(33))) * p2
        found = (found ^ (found >> np.uint64(29))) * p3
        return found ^ (found >> np.uint64(32))


def _rotated(values: Hashes, places: int) -> Hashes:
    return (values << np.uint64(places)) | (values >> np.uint64(64 - places))


def xxh64(data: bytes, seed: int) -> int:
    """Return the XXH64 of `data`, a number of 64 bits without a sign."""
    length, at = len(data), 0
    if length >= _STRIPE:
        sums = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at <= length - _STRIPE:
            lanes = [int.from_bytes(data[at + start : at + start + _LANE], "little") for start in range(0, _STRIPE, 8)]
            sums = [_round(total, lane) for total, lane in zip(sums, lanes, strict=True)]
            at += _STRIPE
        found = sum(_rotate(total, places) for total, places in zip(sums, (1, 7, 12, 18), strict=True)) & _MASK
        for total in sums:
            found = ((found ^ _round(0, total)) * _P1 + _P4) & _MASK
    else:
        found = (seed + _P5) & _MASK
    found = (found + length) & _MASK
    while at <= length - _LANE:
        lane = int.from_bytes(data[at : at + _LANE], "little")
        found = (_rotate(found ^ _round(0, lane), 27) * _P1 + _P4) & _MASK
        at += _LANE
    if at <= length - 4:
        half = int.from_bytes(data[at : at + 4], "little")
        found = (_rotate(found ^ ((half * _P1) & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = (_rotate(found ^ ((byte * _P5) & _MASK), 11) * _P1) & _MASK
    found = ((found ^ (found >> 33)) * _P2) & _MASK
    found = ((found ^ (found >> 29)) * _P3) & _MASK
    return found ^ (found >> 32)


def _round(total: int, lane: int) -> int:
    return (_rotate((total + lane * _P2) & _MASK, 31) * _P1) & _MASK


def _rotate(value: int, places: int) -> int:
    return ((value << places) | (value >> (64 - places))) & _MASK
