"""Leaves out items of another node's message that cannot be true, logs and counts them, so that the rest counts.

Such an item would be sent again and again, and all that came with it would wait for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from iscp.core.values.errors import PermanentError
from iscp.core.values.untrusted_values import named_error, shown

log = logging.getLogger(__name__)
W = TypeVar("W")
V = TypeVar("V")


class Quarantine:
    """`count`: parts of messages that were dead-lettered."""

    def __init__(self) -> None:
        self.count = 0

    def each(self, build: Callable[[W], V], items: Iterable[W], what: str) -> tuple[V, ...]:
        """Return the results of `build` for those items for which it raises neither ValueError nor PermanentError."""
        found: list[V] = []
        for item in items:
            try:
                found.append(build(item))
            except (ValueError, PermanentError) as error:
                self.count += 1
                log.error("message.quarantined", extra={"what": what, "item": shown(item), "error": named_error(error)})
        return tuple(found)
