"""Threads that fetch and draw what viewers request, of which no viewer who is known has all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.concurrency import run_in_threadpool

from iscp.page.serving.viewer_calls import Viewer

P = ParamSpec("P")
R = TypeVar("R")

THREADS_MAX = 16
"""Threads that fetch and draw boards; further requests wait for one."""

THREADS_PER_VIEWER_MAX = 6
"""Threads of one viewer among these, as calls may take long; viewers who are not authenticated have all of them."""


class ViewerThreads:
    """The threads of a node's page, used by its event loop alone."""

    def __init__(self) -> None:
        self._limits: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()

    def set_bound(self) -> None:
        """Bound the threads of the running event loop."""
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS_MAX

    async def run(self, viewer: Viewer, work: Callable[P, R], *args: P.args, **given: P.kwargs) -> R:
        """Return what `work` does, in a thread, once the viewer may have one."""
        known = viewer.token or viewer.names
        limit = self._limits.get(viewer.scope)
        if limit is None:
            limit = self._limits[viewer.scope] = CapacityLimiter(THREADS_PER_VIEWER_MAX if known else THREADS_MAX)
        async with limit:
            result: Any = await run_in_threadpool(work, *args, **given)
            return result  # type: ignore[no-any-return]
