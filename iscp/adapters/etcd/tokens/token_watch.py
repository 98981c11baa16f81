"""The tokens as etcd has them, followed by each node, and since when that is certain.

A watch alone cannot say that nothing has changed: where its connection hangs, it is silent. So the head, which every
change writes too, is read once a second (linearizable); what the watch has brought is as of the moment when that read
was sent, if it is not behind the head. Nobody is let in by tokens once that moment is too long ago.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from iscp.adapters.etcd.etcd_errors import EtcdCompactedError
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.member_watch import CLOSE_WAIT_S, RELIST_PAUSE_S, MemberStore, WatchItems
from iscp.adapters.etcd.tokens.token_keys import TokenKeys
from iscp.adapters.etcd.values import Changed, EventType, KeyValue
from iscp.core.access_token import TokenBook
from iscp.core.errors import IscpError
from iscp.ports.system import Clock, Threads

log = logging.getLogger(__name__)

CONFIRM_S = 1.0
"""How often a node reads whether tokens have changed, beside the watch that brings the changes."""

BEHIND_MAX_S = 2.0
"""How long the watch of tokens may be behind what was read of them; then all are read again."""


class TokenWatch:
    """The port `TokenView`: one thread follows, one confirms."""

    def __init__(self, client: MemberStore, keys: Keys, clock: Clock, threads: Threads) -> None:
        self._client = client
        self._keys = TokenKeys(keys.access)
        self._clock = clock
        self._book = TokenBook()
        self._revision = 0
        self._confirmed_s = -math.inf
        self._closed = False
        (self._ended,) = threads.conditions(1)
        self._watch: WatchItems | None = None
        self._threads = [
            threads.thread("etcd-tokens", self._run),
            threads.thread("etcd-tokens-confirm", self._confirm_always),
        ]

    @property
    def book(self) -> TokenBook:
        return self._book

    @property
    def age_s(self) -> float:
        return self._clock.monotonic_s() - self._confirmed_s

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        with self._ended:
            self._closed = True
            if self._watch is not None:
                self._watch.close()
            self._ended.notify_all()
        for thread in self._threads:
            thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        while not self._closed:
            try:
                self._follow()
            except EtcdCompactedError:  # between two pages of the list: the next one is of a newer revision
                continue
            except IscpError as error:
                log.warning("access.tokens_unreadable", extra={"reason": str(error)})
                self._pause(RELIST_PAUSE_S)

    def _follow(self) -> None:
        sent_s = self._clock.monotonic_s()
        listing = self._client.list_prefix(self._keys.prefix)
        known = {kv.key: kv for kv in listing.items}
        self._take(known, listing.revision)
        self._confirmed_s = max(self._confirmed_s, sent_s)
        watch = self._client.watch(
            self._keys.prefix, prefix=True, start_revision=listing.revision + 1, survives_connection=False
        )
        with self._ended:
            self._watch = watch
            if self._closed:  # `close` found no watch to close
                return
        for item in watch:
            if isinstance(item, Changed):
                for event in item.events:
                    if event.type is EventType.PUT:
                        known[event.kv.key] = event.kv
                    else:
                        known.pop(event.kv.key, None)
                self._take(known, max(event.kv.mod_revision for event in item.events))

    def _take(self, known: Mapping[str, KeyValue], revision: int) -> None:
        self._book = TokenBook(record for record in map(self._keys.read, known.values()) if record is not None)
        self._revision = revision  # after the book: what is confirmed by it is there

    def _confirm_always(self) -> None:
        while not self._closed:
            try:
                self._confirm()
            except IscpError as error:
                log.warning("access.tokens_unconfirmed", extra={"reason": str(error), "age_s": round(self.age_s, 1)})
            self._pause(CONFIRM_S)

    def _confirm(self) -> None:
        sent_s = self._clock.monotonic_s()
        head = self._client.get(self._keys.head)
        if not self._revision:
            return  # nothing was listed yet
        if (head.mod_revision if head else 0) <= self._revision:
            self._confirmed_s = sent_s
        elif sent_s - self._confirmed_s > BEHIND_MAX_S:
            log.warning("access.tokens_behind", extra={"revision": self._revision})
            with self._ended:
                if self._watch is not None:
                    self._watch.close()  # all are listed then

    def _pause(self, pause_s: float) -> None:
        with self._ended:
            self._ended.wait_for(lambda: self._closed, pause_s)
