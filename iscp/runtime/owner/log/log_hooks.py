"""Whom the job log's writer notifies of what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iscp.coordination.jobs.book_change import BookChange
from iscp.core.values.errors import IscpError


@dataclass(frozen=True, slots=True)
class LogHooks:
    """All are called from the writer's thread.

    `on_committed` after each commit, before its requests are answered, and when a report has moved rows; `on_deposed`
    once, when another owner was seen or an invariant was found broken: everything pending has failed by then;
    `on_written` with the log's version after each of its commits.
    """

    on_committed: Callable[[BookChange], None]
    on_deposed: Callable[[IscpError], None]
    on_written: Callable[[int], None] = lambda version: None
