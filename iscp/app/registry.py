"""Finds the kinds of consumer: the entry points of the group `iscp.consumers`.

iscp's own are always there. Code behind anybody else's entry point runs inside the node, with all that it may do: it
has to be named in the configuration (`consumers.allow`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points

from iscp.app.index_parts import default_index_services
from iscp.consumers.custom.custom_kind import CustomConsumer, CustomKind
from iscp.consumers.index.index_services import IndexServices
from iscp.model.api.api_views import ConsumerInfo
from iscp.model.job.start_rule import TargetLog
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.model.values.untrusted_values import name_hint, named_error, one_line, shown
from iscp.ports.consumer import ConsumerKind, Needs

GROUP = "iscp.consumers"
_OURS = "iscp.consumers."
_FIELD = "spec.iteration.consumer.kind"
_REQUIRED_OF_A_KIND = ("name", "shared_target", "needs", "validate", "target_of", "columns", "open")


_ABOUT = {
    "changefeed": "Every change of the table, in order, for applications that read them by cursors.",
    "fulltext": "A full-text index: words of text columns, ranked by BM25.",
    "replica": "The table itself, or columns and rows of it, by a key or append-only.",
    "search": "An index of words and vectors together, searched by both.",
    "vector": "An index of vectors: nearest neighbours, by vectors of the table or of an embedder.",
    "view": "The result of a query over one or several tables.",
}
"""What iscp's own kinds do."""

ABOUT_CHARS_MAX = 200
"""Characters of what is shown of a kind and of its package; of a longer text the middle is left out."""


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

    def described(self) -> list[ConsumerInfo]:
        """Return the kinds that are allowed, as far as it is known without loading any."""
        return [self._described(name) for name in sorted(self._allowed)]

    def _described(self, name: str) -> ConsumerInfo:
        entry = self._entries.get(name)
        if entry is None:
            return ConsumerInfo(name, fault="is allowed, and no package brings it: install it on every node")
        own, dist = entry.value.startswith(_OURS), entry.dist
        summary = str(dist.metadata["Summary"] or "") if dist is not None else ""
        about = _ABOUT.get(name, "") if own else one_line(summary, ABOUT_CHARS_MAX)
        package = one_line(f"{dist.name} {dist.version}", ABOUT_CHARS_MAX) if dist is not None else ""
        return ConsumerInfo(name, about, package, own)

    def kind(self, name: str) -> ConsumerKind:
        """Raises InvalidRequest for one that is not there, not allowed, or cannot be loaded."""
        if name not in self._entries:
            raise self._unknown(name)
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

    def _unknown(self, name: str) -> InvalidRequest:
        usable = sorted(self._allowed & set(self._entries))
        sentence, remedy = f"{name!r} is not a consumer", f"Use one of {', '.join(usable)}"
        if name in self._allowed:
            sentence += " that is installed on this node, though consumers.allow names it"
            remedy = (
                f"Install the package with the entry point {name!r} of the group {GROUP} on every node, and restart "
                f"them; or use one of {', '.join(usable)}"
            )
        elif hint := name_hint(name, usable):
            remedy = f"{hint} {remedy}"
        return InvalidRequest(sentence, about=_FIELD, remedy=remedy, code=ErrorCode.CONSUMER_UNKNOWN)


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
