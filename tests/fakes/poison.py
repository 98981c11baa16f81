"""Values as foreign code may hand them over: of every wrong type, absurd, and such as raise when they are looked at."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

LONE = "\ud800"


class Ends(BaseException):
    """As SystemExit: no `except Exception` holds it; the test's own report of a failure does."""


class RaisesWhenRead:
    """Any access to it ends the calling thread, if that lets it."""

    def _exit(self, *_: object) -> Any:
        raise Ends("foreign")

    __repr__ = __str__ = __index__ = __float__ = __int__ = __eq__ = __hash__ = __bool__ = __iter__ = _exit
    __lt__ = __gt__ = __le__ = __ge__ = __len__ = _exit


class Evil(str):
    """A text that fails at its first use."""

    def _exit(self, *_: object, **__: object) -> Any:
        raise Ends("foreign")

    __str__ = __len__ = __getitem__ = encode = isprintable = __format__ = _exit


class EvilInt(int):
    def _exit(self, *_: object) -> Any:
        raise Ends("foreign")

    __index__ = __int__ = __le__ = __ge__ = __lt__ = __gt__ = _exit


class StrRaisesError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class StrExitsError(Exception):
    def __str__(self) -> str:
        raise Ends("no text")


class StrIsNoStrError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


SAYS_NOTHING: tuple[BaseException, ...] = (StrRaisesError(), StrExitsError(), StrIsNoStrError())

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=50),
    st.sampled_from(["", "\x00", LONE, "\x1b[2J", "a\r\nb", "\u202e", "ordinary", "x" * 100_000, LONE * 10_000]),
)

POISON: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    TEXTS,
    st.binary(max_size=20),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -1, 0, 1, 10**5000, float("nan"), float("inf"), 1e300]),
    st.sampled_from([np.int64(7), np.int64(-7), np.uint64(2**64 - 1), np.float32(1.5), np.float64("nan"), np.bool_(1)]),
    st.sampled_from([Decimal("NaN"), Decimal(5), Fraction(1, 3), 1j, [], {}, (), object(), type, range(3)]),
    st.builds(RaisesWhenRead),
    st.builds(Evil, st.just("evil")),
    st.builds(EvilInt, st.integers(-5, 5)),
)
"""Any value at all, as a consumer or a handler may answer it."""

ERRORS: st.SearchStrategy[BaseException] = st.one_of(
    st.builds(ValueError, TEXTS),
    st.builds(SystemExit, TEXTS),
    st.builds(Ends, TEXTS),
    st.builds(GeneratorExit),
    st.builds(StrRaisesError),
    st.builds(StrExitsError),
    st.builds(StrIsNoStrError),
    st.builds(RuntimeError, st.builds(RaisesWhenRead)),
)
