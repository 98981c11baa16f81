"""The answers of the cluster that boards show, such as the list of all jobs, held for seconds for each viewer.

A list of ten thousand jobs takes the owner longer than a page may take. So a page shows the last answer, and one that
has become old is fetched again while it is shown.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

from iscp.core.values.errors import IscpError, TemporaryError
from iscp.page.serving.value_size import bytes_of
from iscp.page.serving.viewer_calls import Viewer, ViewerClient, ViewerClients
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWERS_MAX = 48
"""Answers that are held, of all viewers; for one more the answer that was unused for longest is dropped."""

BYTES_MAX = 256 * 1024**2
"""Bytes that all of these may take together; beyond them the answers that were unused for longest are dropped. One that
alone has more is held alone.
"""

FRESH_S = 2.0
"""Seconds for which an answer counts as new, at least."""

FETCH_SHARE = 0.1
"""Part of the time that fetching one answer may take up: one that took 0.5 s counts as new for 5 s."""

STALE_S = 20.0
"""Seconds beyond which an answer is not shown while the next one is fetched; the page waits for that instead."""

FETCHES_MAX = 2
"""Answers that are fetched in the background at a time; others wait for their turn."""


@dataclass(frozen=True, slots=True)
class HeldAnswer(Generic[T]):
    """An answer of the cluster, as of `taken_at_s` (Unix seconds).

    `fault` says why there is no newer answer; empty: there is nothing wrong.
    """

    value: T
    taken_at_s: float
    fault: str = ""


@dataclass(slots=True)
class _Held:
    """One answer for one viewer. `lock` is held while it is fetched, for somebody who waits or behind."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: HeldAnswer[Any] | None = None
    taken_s: float = 0.0
    cost_s: float = 0.0
    bytes: int = 0
    under_way: bool = False


class HeldAnswers:
    """The answers by viewer and by what was fetched; several threads may use it. `close` waits for no fetch."""

    def __init__(self, clients: ViewerClients, clock: Clock, bytes_max: int = BYTES_MAX) -> None:
        self._clients = clients
        self._clock = clock
        self._bytes_max = bytes_max
        self._held: OrderedDict[tuple[str, str], _Held] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(FETCHES_MAX, thread_name_prefix="iscp-page-list")

    def newest(self, viewer: Viewer, what: str, fetch: Callable[[ViewerClient], T]) -> HeldAnswer[T]:
        """Return an answer that is new enough; raise the error of fetching it where there is none to show.

        `fetch` is always the same for the same `what`. Where the cluster does not answer now, the last answer is
        returned with that `fault`.
        """
        held = self._place(viewer.scope, what)
        now_s = self._clock.monotonic_s()
        if (shown := held.answer) is not None:
            age_s = now_s - held.taken_s
            if age_s < max(FRESH_S, held.cost_s / FETCH_SHARE):
                return shown
            if age_s < max(STALE_S, 2 * held.cost_s / FETCH_SHARE):
                self._fetch_behind(held, viewer, fetch)
                return shown
        with held.lock:
            # Who has waited for another's fetch takes what that has brought.
            if held.answer is None or held.taken_s < now_s:
                self._fetch(held, viewer, fetch)
            return cast(HeldAnswer[T], held.answer)

    def forget(self, viewer: Viewer) -> None:
        """Drop a viewer's answers, after a change that the next page has to show."""
        with self._lock:
            for place in [each for each in self._held if each[0] == viewer.scope]:
                del self._held[place]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _place(self, scope: str, what: str) -> _Held:
        with self._lock:
            held = self._held.setdefault((scope, what), _Held())
            self._held.move_to_end((scope, what))
            while len(self._held) > ANSWERS_MAX:
                self._held.popitem(last=False)
            return held

    def _make_room(self, held: _Held) -> None:
        """Drop the answers that were unused for longest, but not `held`, until the others fit."""
        with self._lock:
            left = self._bytes_max - sum(each.bytes for each in self._held.values())
            for place, each in list(self._held.items()):
                if left >= 0:
                    return
                if each is not held:
                    left += each.bytes
                    del self._held[place]

    def _fetch_behind(self, held: _Held, viewer: Viewer, fetch: Callable[[ViewerClient], object]) -> None:
        with self._lock:
            if held.under_way:
                return
            held.under_way = True

        def work() -> None:
            try:
                with held.lock:
                    self._fetch(held, viewer, fetch)
            except IscpError as error:
                log.info("page.refused", extra={"error": str(error)})
            except Exception:
                log.exception("page.fetch_failed")
            finally:
                held.under_way = False

        try:
            self._pool.submit(work)
        except RuntimeError:  # the page is being closed
            held.under_way = False

    def _fetch(self, held: _Held, viewer: Viewer, fetch: Callable[[ViewerClient], object]) -> None:
        """Fetch the answer, or note why it cannot be had. Raises IscpError where there is no former one to show."""
        begun_s = self._clock.monotonic_s()
        try:
            held.answer = HeldAnswer(fetch(self._clients.client(viewer)), self._clock.now_s())
            held.bytes = bytes_of(held.answer)
            self._make_room(held)
        except TemporaryError as error:
            if held.answer is None:
                raise
            held.answer = replace(held.answer, fault=str(error))
        except IscpError:
            held.answer, held.bytes = None, 0  # who may not see it any more is refused by the next page too
            raise
        held.taken_s = self._clock.monotonic_s()
        held.cost_s = held.taken_s - begun_s
