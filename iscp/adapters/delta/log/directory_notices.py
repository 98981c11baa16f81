"""Notices commits to tables in local directories by the kernel's notifications (port LogNotices)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from iscp.adapters.delta.log.commits import log_of
from iscp.adapters.delta.storage.locations import local_path

log = logging.getLogger(__name__)

DEBOUNCE_MS, STEP_MS = 50, 5
"""Milliseconds for which changes are gathered at the most, and after which nothing more is waited for."""

STOP_WITHIN_MS = 500
"""Milliseconds after which a thread that was stopped ends at the latest."""


REMEDY = "Raise fs.inotify.max_user_watches and max_user_instances; until then commits are found by probes, later"


class DirectoryNotices:
    """Follows the logs of tables in local directories. `on_commit` gets a table's URI, on a thread of its own."""

    def __init__(self, on_commit: Callable[[str], None]) -> None:
        self._on_commit = on_commit
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, table_uris: Collection[str]) -> None:
        self.close()
        tables = {log_of(uri): uri for uri in table_uris if local_path(uri) is not None}
        directories = {place: uri for place, uri in tables.items() if Path(place).is_dir()}
        if not directories:
            return
        self._stop = stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, args=(directories, stop), name="iscp-notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _follow(self, directories: Mapping[str, str], stop: threading.Event) -> None:
        from watchfiles import watch

        try:
            changes = watch(
                *directories,
                watch_filter=None,
                debounce=DEBOUNCE_MS,
                step=STEP_MS,
                stop_event=stop,
                rust_timeout=STOP_WITHIN_MS,
                yield_on_timeout=True,
                raise_interrupt=False,
                recursive=False,
            )
            followed = False
            for found in changes:
                # Whatever was committed before the kernel began to notify of it shows now.
                touched = {str(Path(path).parent) for _, path in found} if followed else set(directories)
                followed = True
                for uri in sorted({directories[place] for place in touched & directories.keys()}):
                    self._on_commit(uri)
        except Exception as error:  # noqa: BLE001  (probes find every commit, only later)
            about = {"directories": len(directories), "error": str(error), "remedy": REMEDY}
            log.error("notices.ended", extra=about)
