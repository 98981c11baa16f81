"""The tokens as etcd has them, followed by each node, and since when that is certain.

A watch alone cannot say that nothing has changed: where its connection hangs, it is silent. So the head, which every
change writes too, is read once a second (linearizable); what the watch has brought is as of the moment when that read
was sent, if it is not behind the head. Nobody is let in by tokens once that moment is too long ago.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.prefix_watch import CLOSE_WAIT_S, PrefixWatch, WatchedStore, apply_events
from iscp.adapters.etcd.tokens.token_keys import TokenKeys
from iscp.adapters.etcd.values import KeyValue, WatchEvent
from iscp.core.access.access_token import TokenBook
from iscp.core.values.errors import IscpError
from iscp.ports.system import Clock, Threads

log = logging.getLogger(__name__)

CONFIRM_S = 1.0
"""How often a node reads whether tokens have changed, beside the watch that brings the changes."""

BEHIND_MAX_S = 2.0
"""How long the watch of tokens may be behind what was read of them; then all are read again."""


class TokenWatch:
    """The port `TokenView`: one thread follows, one confirms."""

    def __init__(self, client: WatchedStore, keys: Keys, clock: Clock, threads: Threads) -> None:
        self._client = client
        self._keys = TokenKeys(keys.access)
        self._clock = clock
        self._known: dict[str, KeyValue] = {}
        self._book = TokenBook()
        self._revision = 0
        self._confirmed_s = -math.inf
        self._watch = PrefixWatch(
            client, self._keys.prefix, self._read, self._follow, "access.tokens_unreadable", "etcd-tokens", threads
        )
        self._confirmer = threads.thread("etcd-tokens-confirm", self._confirm_always)

    @property
    def book(self) -> TokenBook:
        return self._book

    @property
    def age_s(self) -> float:
        return self._clock.monotonic_s() - self._confirmed_s

    def start(self) -> None:
        self._watch.start()
        self._confirmer.start()

    def close(self) -> None:
        self._watch.close()
        self._confirmer.join(CLOSE_WAIT_S)

    def _read(self) -> int:
        sent_s = self._clock.monotonic_s()
        listing = self._client.list_prefix(self._keys.prefix)
        self._known = {kv.key: kv for kv in listing.items}
        self._take(listing.revision)
        self._confirmed_s = max(self._confirmed_s, sent_s)
        return listing.revision

    def _follow(self, events: Sequence[WatchEvent]) -> None:
        self._take(apply_events(self._known, events))

    def _take(self, revision: int) -> None:
        records = map(self._keys.read_token, self._known.values())
        self._book = TokenBook(record for record in records if record is not None)
        self._revision = revision  # after the book: what is confirmed by it is there

    def _confirm_always(self) -> None:
        while not self._watch.closed:
            try:
                self._confirm()
            except IscpError as error:
                log.warning("access.tokens_unconfirmed", extra={"reason": str(error), "age_s": round(self.age_s, 1)})
            self._watch.pause(CONFIRM_S)

    def _confirm(self) -> None:
        sent_s = self._clock.monotonic_s()
        head = self._client.get(self._keys.head)
        if not self._revision:
            return  # nothing was listed yet
        if (head.mod_revision if head else 0) <= self._revision:
            self._confirmed_s = sent_s
        elif sent_s - self._confirmed_s > BEHIND_MAX_S:
            log.warning("access.tokens_behind", extra={"revision": self._revision})
            self._watch.read_again()
