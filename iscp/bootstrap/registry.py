"""Finds the kinds of consumer: the entry points of the group `iscp.consumers`.

iscp's own are always there. Code behind anybody else's entry point runs inside the node, with all that it may do: it
has to be named in the configuration (`consumers.allow`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points

from iscp.bootstrap.index_parts import default_index_services
from iscp.consumers.custom.custom_kind import CustomConsumer, CustomKind
from iscp.consumers.index.index_services import IndexServices
from iscp.core.job.target_state import TargetLog
from iscp.core.values.errors import ErrorCode, InvalidRequest
from iscp.core.values.untrusted_values import named_error, shown
from iscp.ports.consumer import ConsumerKind, Needs

GROUP = "iscp.consumers"
_OURS = "iscp.consumers."
_FIELD = "spec.iteration.consumer.kind"
_REQUIRED_OF_A_KIND = ("name", "shared_target", "needs", "validate", "target_of", "columns", "open")


class ConsumerRegistry:
    """The kinds that this node can run, each loaded at its first use."""

    def __init__(
        self, allowed: Collection[str] = (), services: Callable[[], IndexServices] = default_index_services
    ) -> None:
        self._services = services
        found = list(entry_points(group=GROUP))
        ours = {entry.name: entry for entry in found if entry.value.startswith(_OURS)}
        # Nobody else's takes the name of one of ours.
        self._entries = {entry.name: entry for entry in found} | ours
        self._allowed = {*ours, *allowed}
        self._loaded: dict[str, ConsumerKind] = {}

    @property
    def absent(self) -> tuple[str, ...]:
        """Return the kinds that are allowed, and not installed."""
        return tuple(sorted(self._allowed - set(self._entries)))

    def kind(self, name: str) -> ConsumerKind:
        """Raises InvalidRequest for one that is not there, not allowed, or cannot be loaded."""
        if name not in self._entries:
            raise InvalidRequest(
                f"{name!r} is not a consumer",
                about=_FIELD,
                remedy=f"Use one of {', '.join(sorted(self._allowed & set(self._entries)))}",
                code=ErrorCode.CONSUMER_UNKNOWN,
            )
        if name not in self._allowed:
            raise InvalidRequest(
                f"{name!r} is a consumer that this deployment does not run",
                about=_FIELD,
                remedy="If its code is to be trusted, add it to consumers.allow of every node and restart them",
                code=ErrorCode.CONSUMER_NOT_ALLOWED,
            )
        if name not in self._loaded:
            self._loaded[name] = _load_kind(self._entries[name], self._services)
        return self._loaded[name]


def _load_kind(entry: EntryPoint, services: Callable[[], IndexServices]) -> ConsumerKind:
    try:
        found = entry.load()
        if issubclass(found, CustomConsumer):
            return CustomKind(entry.name, found)
        # Only iscp's own kinds are handed the node's embedders, whose keys are secrets.
        served = entry.value.startswith(_OURS) and getattr(found, "takes_services", False)
        kind: ConsumerKind = found(services()) if served else found()
        lacking = [name for name in _REQUIRED_OF_A_KIND if not hasattr(kind, name)]
        if not lacking and not isinstance(kind, ConsumerKind):
            lacking = ["base class ConsumerKind"]
        if not lacking and not isinstance(kind.needs, Needs):
            raise ValueError(f"its needs are {shown(kind.needs)}, which are no Needs")
        if not lacking and not isinstance(kind.needs.target_log, TargetLog):
            raise ValueError(f"its target has a log {shown(kind.needs.target_log)}, which is no TargetLog")
    except BaseException as error:  # whatever its code does, it is no fault of others' jobs
        raise _unusable(entry, f"cannot be loaded: {named_error(error)}") from error
    if lacking:
        raise _unusable(entry, f"is neither a CustomConsumer nor a ConsumerKind: it has no {', '.join(lacking)}")
    return kind


def _unusable(entry: EntryPoint, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the consumer {entry.name!r} ({entry.value}) {why}",
        about=_FIELD,
        remedy="Repair it by docs/consumers.md, or reinstall its package, on every node, and restart them",
        code=ErrorCode.CONSUMER_BROKEN,
    )
