"""The threads of the operating system, behind the port Threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class SystemThread(threading.Thread):
    """Ends with the process."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        super().__init__(target=run, name=name, daemon=True)

    def is_current(self) -> bool:
        return threading.current_thread() is self


class SystemThreads:
    def thread(self, name: str, run: Callable[[], None]) -> SystemThread:
        return SystemThread(name, run)

    def conditions(self, count: int) -> list[threading.Condition]:
        lock = threading.Lock()
        return [threading.Condition(lock) for _ in range(count)]

    def pool(self, name: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, name)


THREADS = SystemThreads()
