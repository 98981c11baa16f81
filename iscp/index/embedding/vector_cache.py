"""Hold vectors of texts that were embedded before, in bounded memory, apart for each account.

An account's texts are found by that account alone: nobody learns by the time of an answer which texts others have. The
account that holds the most loses its oldest vectors first, so that none can displace those of others as long as these
hold less than it (max-min fairness).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np

from iscp.index.embedding.embedder import Vectors

ENTRY_BYTES = 400
"""Bytes of memory that an entry of the cache is counted with besides its numbers; they are an estimate."""

EVICTED_AT_ONCE = 64
"""Entries that the greatest account loses at a time, before the greatest is sought again."""

Key = tuple[str, bytes]


class VectorCache:
    """Holds vectors by account, fingerprint of the embedder and hash of the text. Any thread may call all methods.

    `bytes_max` is for all accounts together; with 0 nothing is stored. `bytes_held` are counted now.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._accounts: dict[str, OrderedDict[Key, bytes]] = {}
        self._held: dict[str, int] = {}
        self.bytes_held = 0

    def get(self, account: str, fingerprint: str, hashes: Iterable[bytes]) -> dict[bytes, Vectors]:
        """Return the vectors that are there, by hash; they become the account's newest. They cannot be written to."""
        found: dict[bytes, Vectors] = {}
        with self._lock:
            entries = self._accounts.get(account)
            if entries is None:
                return found
            for each in hashes:
                key = (fingerprint, each)
                if (stored := entries.get(key)) is not None:
                    entries.move_to_end(key)
                    found[each] = np.frombuffer(stored, np.float32)
        return found

    def put(self, account: str, fingerprint: str, vectors: Mapping[bytes, Vectors]) -> None:
        """Store vectors by hash, in place of older ones; those that are too large for the whole cache are left out."""
        if not vectors or self._bytes_max <= 0:
            return
        with self._lock:
            entries = self._accounts.setdefault(account, OrderedDict())
            for each, vector in vectors.items():
                self._replace(account, entries, (fingerprint, each), vector.astype(np.float32).tobytes())
                if self.bytes_held > self._bytes_max:
                    self._evict()

    def _replace(self, account: str, entries: OrderedDict[Key, bytes], key: Key, content: bytes) -> None:
        more = len(content) + ENTRY_BYTES
        if (old := entries.pop(key, None)) is not None:
            more -= len(old) + ENTRY_BYTES
        entries[key] = content
        self._held[account] = self._held.get(account, 0) + more
        self.bytes_held += more

    def _evict(self) -> None:
        while self.bytes_held > self._bytes_max:
            greatest = max(self._held, key=self._held.__getitem__)
            entries = self._accounts[greatest]
            for _ in range(EVICTED_AT_ONCE):
                if self.bytes_held <= self._bytes_max or not entries:
                    break
                _, content = entries.popitem(last=False)
                self._held[greatest] -= len(content) + ENTRY_BYTES
                self.bytes_held -= len(content) + ENTRY_BYTES
            if not entries:
                # An account without entries costs nothing; `put` may be about to fill it again.
                self._held[greatest] = 0
