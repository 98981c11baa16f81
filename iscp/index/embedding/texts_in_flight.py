"""Know which texts are being embedded now, so that two jobs with the same new text do not both embed it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

Key = tuple[str, str, bytes]
"""An account, the fingerprint of an embedder, and the hash of a text."""


class TextsInFlight:
    """Somebody claims texts for the time of one request. Whoever finds them claimed may wait for the end of it.

    Nobody waits while holding claims, so none wait for each other in a circle. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[Key, threading.Event] = {}

    def claim(self, keys: Iterable[Key]) -> tuple[list[Key], set[threading.Event]]:
        """Claim those that nobody has, and return them, with an event for each request that has others.

        What is claimed has to be released, however the request ends.
        """
        end, mine, others = threading.Event(), list[Key](), set[threading.Event]()
        with self._lock:
            for key in keys:
                if (known := self._ends.get(key)) is not None:
                    others.add(known)
                else:
                    self._ends[key] = end
                    mine.append(key)
        return mine, others - {end}

    def release(self, keys: Iterable[Key]) -> None:
        """Give up what `claim` has returned; those who wait for it go on."""
        with self._lock:
            ends = {self._ends.pop(key) for key in keys}
        for end in ends:
            end.set()
