"""The tasks of builds, followed in etcd: all of them once, and then each change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from iscp.adapters.etcd.builds.build_keys import BuildKeys
from iscp.adapters.etcd.prefix_watch import PrefixWatch, WatchedStore
from iscp.adapters.etcd.values import WatchEvent
from iscp.coordination.builds.build_state import Change
from iscp.ports.system import Threads


def watch_builds(
    client: WatchedStore,
    keys: BuildKeys,
    on_read: Callable[[Sequence[Change]], None],
    on_changed: Callable[[Sequence[Change]], None],
    threads: Threads,
) -> PrefixWatch:
    """Return the watch, which has begun already; both callbacks are called on one thread."""

    def read() -> int:
        listing = client.list_prefix(keys.prefix)
        on_read(_readable(map(keys.read_change, listing.items)))
        return listing.revision

    def follow(events: Sequence[WatchEvent]) -> None:
        if changes := _readable(map(keys.follow, events)):
            on_changed(changes)

    watch = PrefixWatch(client, keys.prefix, read, follow, "etcd.builds.unreadable", "etcd-builds", threads)
    watch.start()
    return watch


def _readable(changes: Iterable[Change | None]) -> list[Change]:
    return [change for change in changes if change is not None]
