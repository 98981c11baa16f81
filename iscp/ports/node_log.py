"""The port to what a node stores of its own log."""

from __future__ import annotations

from typing import Protocol

from iscp.core.api.log_lines import LogPage, LogQuery


class NodeLog(Protocol):
    """Safe to use from several threads; never waits."""

    def read(self, query: LogQuery) -> LogPage: ...
