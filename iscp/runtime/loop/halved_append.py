"""Appends a batch of which some entries can be refused for what they are, without holding up their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from iscp.core.values.errors import InvalidRequest

T = TypeVar("T")


def append_in_halves(
    batch: Sequence[T], append: Callable[[Sequence[T]], object], refuse: Callable[[T, InvalidRequest], object]
) -> None:
    """Append all but the entries that no table can hold (InvalidRequest), each of which goes to `refuse`, in order.

    Halves of halves, so that the neighbours are written in few commits. Raises what else `append` does.
    """
    try:
        append(batch)
    except InvalidRequest as error:
        if len(batch) > 1:
            middle = len(batch) // 2
            append_in_halves(batch[:middle], append, refuse)
            append_in_halves(batch[middle:], append, refuse)
            return
        refuse(batch[0], error)
