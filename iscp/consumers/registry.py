"""Finds the kinds of consumer: the entry points of the group `iscp.consumers`."""

from __future__ import annotations

from importlib.metadata import entry_points

from iscp.core.errors import ErrorCode, InvalidRequest
from iscp.ports.pipeline import ConsumerKind

GROUP = "iscp.consumers"


class ConsumerRegistry:
    """The kinds that this node can run, each loaded when it is first asked for."""

    def __init__(self) -> None:
        self._entries = {entry.name: entry for entry in entry_points(group=GROUP)}
        self._loaded: dict[str, ConsumerKind] = {}

    def kind(self, name: str) -> ConsumerKind:
        """Raises InvalidRequest naming the kinds there are."""
        if name not in self._entries:
            raise InvalidRequest(
                f"{name!r} is not a consumer",
                field="spec.iteration.consumer.kind",
                remedy=f"Use one of {', '.join(sorted(self._entries))}",
                code=ErrorCode.CONSUMER_UNKNOWN,
            )
        if name not in self._loaded:
            self._loaded[name] = self._entries[name].load()()
        return self._loaded[name]
