"""Ulids in Spark's own expressions: those of rows that are numbered, and functions for SQL (after core/ulid).

Spark has no integer of 128 bits and no base of 32 digits that sorts. So a text is put together from what its halves
give, or, where the ulid is not known beforehand, from parts of 5 bytes, each of which is 8 characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from iscp.changefeed.model.ulid import ALPHABET, TEXT_CHARS, ULID_BYTES, UlidPlace, ulid_text
from iscp.spark.spark_errors import spark_faults

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_TEXT_OF_HIGH = 13
"""Characters of a text that its first half decides alone; the next has its last bit and four bits of the second."""

_LOW_BYTES = 8

_TIME_MS_MAX = (1 << 48) - 1

# `conv` takes the letters from A on as digits; Crockford's leave out I, L, O and U.
_DIGITS, _LETTERS = "IJKLMNOPQRSTUV", "JKMNPQRSTVWXYZ"
_VALID = f"[0-7][{ALPHABET}{ALPHABET[10:].lower()}]{{{TEXT_CHARS - 1}}}"


def ulid_of(place: UlidPlace, count: int, number: Column) -> Column:
    """The bytes of the ulid that is `number` (bigint, from 0 and below `count`) after the next.

    Only what differs between the first and the last of them is computed for each row.
    """
    fixed = min(_common(place.ulid(), place.ulid(count - 1)), ULID_BYTES - 1)
    width = ULID_BYTES - fixed
    low = _low(place, number).bitwiseAND((1 << 8 * width) - 1) if width < _LOW_BYTES else _low(place, number)
    return F.unhex(F.concat(F.lit(place.ulid()[:fixed].hex()), F.lpad(F.hex(low), 2 * width, "0")))


def ulid_text_of(place: UlidPlace, count: int, number: Column) -> Column:
    """Return the text of a ulid."""
    low = _low(place, number)
    text = ulid_text(place.ulid())
    fixed = _common(text, ulid_text(place.ulid(count - 1)))
    paired = [_pair(low, at) for at in range(_TEXT_OF_HIGH + 1, TEXT_CHARS, 2) if at + 2 > fixed]
    if fixed > _TEXT_OF_HIGH:
        return F.concat(F.lit(text[: TEXT_CHARS - 2 * len(paired)]), *paired)
    middle = F.shiftrightunsigned(low, 60).bitwiseOR((place.high & 1) << 4)
    return F.concat(F.lit(text[:_TEXT_OF_HIGH]), F.get(listed(ALPHABET), middle.cast("int")), *paired)


def _pair(low: Column, at: int) -> Column:
    """Return the two characters of a text from `at` on: ten bits of its second half."""
    bits = F.shiftrightunsigned(low, 5 * (TEXT_CHARS - 2 - at)).bitwiseAND(1023)
    return F.get(listed(first + second for first in ALPHABET for second in ALPHABET), bits.cast("int"))


def listed(texts: Iterable[str]) -> Column:
    """Return a constant array of texts without blanks; one literal, as many of them take seconds to be planned."""
    return F.split(F.lit(" ".join(texts)), " ")


def _common(first: Sequence[object], last: Sequence[object]) -> int:
    """Return how many items the two have in common at their beginnings; they are equally long."""
    return next((at for at, pair in enumerate(zip(first, last, strict=True)) if pair[0] != pair[1]), len(first))


def _low(place: UlidPlace, number: Column) -> Column:
    return F.lit(place.low).cast("bigint") + number


def register_functions(spark: SparkSession) -> None:
    """Make the functions for the session; replaces what it has of their names."""
    with spark_faults("register the functions for ulids"):
        for signature, body in _FUNCTIONS.items():
            spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {signature} RETURN {body}")


def _part(text: str, at: int, width: int, to: int, bases: str) -> str:
    return f"lpad(conv(substr({text}, {at}, {width}), {bases}), {to}, '0')"


def _text_of_bytes(ulid: str) -> str:
    parts = [_part(f"hex({ulid})", 1, 2, 2, "16, 32")]
    parts += [_part(f"hex({ulid})", at, 10, 8, "16, 32") for at in (3, 13, 23)]
    return f"translate(concat({', '.join(parts)}), '{_DIGITS}', '{_LETTERS}')"


def _bytes_of_text(text: str) -> str:
    digits = f"translate(upper({text}), '{_LETTERS}', '{_DIGITS}')"
    parts = [_part(digits, 1, 2, 2, "32, 16"), *(_part(digits, at, 8, 10, "32, 16") for at in (3, 11, 19))]
    return f"unhex(concat({', '.join(parts)}))"


def _lowest_text_at(moment: str) -> str:
    ms = f"least(greatest(unix_millis({moment}), 0), {_TIME_MS_MAX})"
    digits = f"lpad(conv(cast({ms} AS STRING), 10, 32), {TEXT_CHARS - 16}, '0')"
    return f"concat(translate({digits}, '{_DIGITS}', '{_LETTERS}'), repeat('0', 16))"


def _only_if(condition: str, value: str) -> str:
    return f"CASE WHEN {condition} THEN {value} END"


_IS_ULID = f"octet_length(ulid) = {ULID_BYTES}"
_TIME_MS = "cast(conv(hex(substr(ulid, 1, 6)), 16, 10) AS BIGINT)"
_IS_TEXT = f"length(text) = {TEXT_CHARS} AND text RLIKE '{_VALID}'"

_FUNCTIONS = {
    "ulid_time(ulid BINARY) RETURNS TIMESTAMP_LTZ": _only_if(_IS_ULID, f"timestamp_millis({_TIME_MS})"),
    "ulid_text(ulid BINARY) RETURNS STRING": _only_if(_IS_ULID, _text_of_bytes("ulid")),
    "ulid_binary(text STRING) RETURNS BINARY": _only_if(_IS_TEXT, _bytes_of_text("text")),
    "ulid_at(moment TIMESTAMP_LTZ) RETURNS STRING": _only_if("moment IS NOT NULL", _lowest_text_at("moment")),
}
"""All give null for null, and for what is no ulid. `ulid_at`: the lowest of that millisecond."""
