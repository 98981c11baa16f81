"""Impossible values that third-party code may hand over: texts, numbers and types that ours never makes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from iscp.model.values.errors import IscpError
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.consumer import Consumed

TEXTS = ("half a character: \ud800", "\x00\x1b[2J\u202e", "", "x" * 20_000, "{", "[" * 10_000)

GARBAGE = (b"\xff\xff\xff", b"\x7a\x00", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a" * 1_000)
"""What is no message, or one of a kind that is not known here."""


class MuteError(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def error(random: Random) -> BaseException:
    """What a consumer raises."""
    text: Any = random.choice((*TEXTS, None, b"\xff", 5))
    known = IscpError(text, remedy=random.choice(TEXTS))
    known.code = random.choice((known.code, "full", None, np.int64(9), 2**70))  # type: ignore[assignment]
    return random.choice((known, ValueError(text), MuteError(), KeyError(text)))


def consumed(random: Random, position: Position) -> Consumed:
    """What a consumer answers that has committed: in types of NumPy's the right thing, or nothing like it."""
    mark, rows = position.watermark, 5
    number: Any = np.int64
    by_numpy = Watermark(number(mark.version), np.float64(mark.at_s))
    answers: tuple[Any, ...] = (
        Consumed(replace(position, seq=number(position.seq), watermark=by_numpy), number(rows), number(100)),
        Consumed(position, "5", 100),  # type: ignore[arg-type]
        Consumed(position, rows, -1),
        Consumed(position, 2**70, 100),
        Consumed(replace(position, seq=str(position.seq)), rows, 100),  # type: ignore[arg-type]
        Consumed(replace(position, watermark=replace(mark, at_s=float("nan"))), rows, 100),
        Consumed(replace(position, watermark=replace(mark, version=True)), rows, 100),
        Consumed(replace(position, source_id="\ud800"), rows, 100),
        Consumed(None, rows, 100),  # type: ignore[arg-type]
    )
    answer: Consumed = random.choice(answers)
    return answer
