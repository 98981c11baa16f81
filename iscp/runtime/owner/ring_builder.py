"""Builds the rings on a thread of its own: one of 1,000 nodes takes longer than the owner's loop may pause."""

from __future__ import annotations

import logging
from collections.abc import Callable

from iscp.coordination.membership.preferred_nodes import ring_of
from iscp.core.values.ring import Ring
from iscp.ports.system import Threads
from iscp.runtime.loop.threads import THREADS

log = logging.getLogger(__name__)


class RingBuilder:
    """Build rings on a thread. `on_built` gets the ring that was requested last, from the builder's thread, and
    `on_broken` what went wrong.
    """

    def __init__(
        self, on_built: Callable[[Ring], None], on_broken: Callable[[Exception], None], threads: Threads = THREADS
    ) -> None:
        self._on_built = on_built
        self._on_broken = on_broken
        self._wanted: frozenset[str] = frozenset()
        self._thread = threads.pool("iscp-ring")

    def build(self, nodes: frozenset[str]) -> None:
        """Build the ring of these nodes. Rings that were requested before, and are not begun, are left out."""
        self._wanted = nodes
        self._thread.submit(self._build, nodes)

    def close(self) -> None:
        """Build nothing that is requested from now on."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _build(self, nodes: frozenset[str]) -> None:
        if nodes != self._wanted:
            return
        try:
            self._on_built(ring_of(nodes))
        except Exception as error:
            log.exception("ring.broken")
            self._on_broken(error)
