"""One thread of a server that ends, again and again, what its clients leave behind or take away from others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

CLIENTS_CHECK_S = 0.5
"""How often a server counts calls that wait for their clients and connections without a call, and checks whether
clients of the gateway have closed theirs.
"""


class ClientWatch:
    """Runs all its checks, one after the other, between `start` and `stop`; a check must not wait."""

    def __init__(self) -> None:
        self._checks: list[Callable[[], None]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="iscp-clients", daemon=True)

    def add(self, check: Callable[[], None]) -> None:
        self._checks.append(check)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(CLIENTS_CHECK_S):
            for check in tuple(self._checks):
                try:
                    check()
                except Exception:  # the other checks go on
                    log.exception("grpc.check_failed")
