"""Finds code by its entry points, and composes what indexes need: kinds of consumers, triggers of the users' own, and
embedders with the searches that use them.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from iscp.consumers.custom.custom_kind import CustomConsumer, CustomKind
from iscp.index.embedding.embedder_registry import EmbedderRegistry
from iscp.index.embedding.embedding_service import EmbeddingServices, IndexServices, Patience, VectorCache
from iscp.model.api.api_requests import ConsumerInfo
from iscp.model.job.start_rule import TargetLog, TriggerFacts
from iscp.model.settings.config import NodeConfig
from iscp.model.settings.embedder_config import EmbeddingConfig
from iscp.model.spec.spec import TriggerSpec, TriggerType
from iscp.model.values.errors import (
    ConfigurationError,
    ErrorCode,
    InvalidRequest,
    IscpError,
    PermanentError,
    TemporaryError,
)
from iscp.model.values.untrusted_values import (
    SettingFault,
    error_text,
    import_name,
    name_hint,
    named_error,
    one_line,
    plain_error,
    shown,
)
from iscp.ports.consumer import ConsumerKind, Needs
from iscp.ports.system import Clock, Failpoints, Trigger
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

if TYPE_CHECKING:
    from iscp.index.embedding.embedding_service import EmbeddingService
    from iscp.model.api.api_requests import SearchAnswer, SearchRequest

log = logging.getLogger(__name__)


# --- embedders --------------------------------------------------------------------------------------------------------


def embedding_services(config: NodeConfig, clock: Clock) -> EmbeddingServices:
    """Return the embedders that jobs of this node may name; none is made yet."""
    registry = EmbedderRegistry(config.embedding.allow, config.embedders)
    if registry.absent:
        log.warning("embedders.not_installed", extra={"names": ", ".join(registry.absent)})
    return _services(registry, config.embedding, clock)


def default_embeddings() -> EmbeddingServices:
    """Return the embedders of a program without settings: iscp's own."""
    return _services(EmbedderRegistry(), EmbeddingConfig(), SystemClock())


def _services(registry: EmbedderRegistry, config: EmbeddingConfig, clock: Clock) -> EmbeddingServices:
    return EmbeddingServices(
        registry, VectorCache(config.cache_mb * 1024**2), Patience(clock, time.sleep, random.random)
    )


def embedder_key_faults(config: NodeConfig) -> Iterator[SettingFault]:
    """Yield a fault for every file that is to hold an embedder's key and does not."""
    from iscp.index.embedding.openai_embedder import read_key

    for name, each in config.embedders.items():
        if each.key_file:
            try:
                read_key(each.key_file, f"embedders.{name}.key_file")
            except ConfigurationError as error:
                yield SettingFault.from_error(error)


# --- indexes, and searches of them ------------------------------------------------------------------------------------


def index_services(config: NodeConfig, clock: Clock, failpoints: Failpoints, *, awaited: bool = False) -> IndexServices:
    """Return what the indexes of a process share. `awaited` as in IndexServices."""
    return IndexServices(embedding_services(config, clock), clock, failpoints, awaited)


def default_index_services() -> IndexServices:
    """Return the same for a program without settings."""
    return IndexServices(default_embeddings(), SystemClock(), EnvironmentFailpoints({}))


@dataclass(frozen=True, slots=True)
class NodeSearch:
    """Carries searches out by the library, with the node's embedders (port IndexSearch).

    The library is loaded for the first search: most nodes have no index.
    """

    indexes: Callable[[], IndexServices]

    def __call__(self, request: SearchRequest, account: str) -> SearchAnswer:
        """Raises IscpError, and PermanentError where the library's packages are not installed."""
        try:
            run = import_name("iscp", "search", "iscp.index.search.search_library", "run_search")
        except ModuleNotFoundError as error:
            raise PermanentError(
                f"this node cannot search: {error}",
                remedy="Install the packages of the extra `search` on every node, and restart them",
            ) from error
        services = self.indexes().embeddings
        answer: SearchAnswer = run(request, lambda name: QueryVectors(services.service(name, account, "text")))
        return answer


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """An embedder of queries that shares the cache, the pace and the retries of the node's jobs."""

    service: EmbeddingService

    @property
    def fingerprint(self) -> str:
        return self.service.fingerprint

    def embed(self, texts: Sequence[str]) -> Any:
        """Return a row of numbers for each text. Raises InvalidRequest for one that the embedder refuses."""
        embedded = self.service.embed(texts)
        for why in embedded.refused.values():
            raise InvalidRequest(f"cannot be embedded: {why}", field="text", remedy="Search for another text")
        return embedded.vectors


# --- kinds of consumers -----------------------------------------------------------------------------------------------
# The kinds are the entry points of the group `iscp.consumers`. iscp's own are always there. Code behind anybody else's
# entry point runs inside the node, with all that it may do: it has to be named in the configuration
# (`consumers.allow`).

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


# --- triggers of the users' own ---------------------------------------------------------------------------------------
# The triggers are the entry points of the group `iscp.triggers` that the configuration allows.

TRIGGER_GROUP = "iscp.triggers"

NAME_FIELD = "spec.trigger.name"


class TriggerRegistry:
    """Each class is loaded when it is first needed. Code of others runs only if `allow` names it."""

    def __init__(self, allow: Collection[str], entries: Iterable[EntryPoint] | None = None) -> None:
        self._allow = frozenset(allow)
        found = entry_points(group=TRIGGER_GROUP) if entries is None else entries
        self._entries = {entry.name: entry for entry in found}
        self._loaded: dict[str, Trigger] = {}

    def check(self, trigger: TriggerSpec) -> None:
        """Refuse what this node cannot evaluate. Raises InvalidRequest."""
        if trigger.job_type is not TriggerType.CUSTOM:
            return
        try:
            self._trigger(trigger.name).validate(trigger.options)
        except InvalidRequest as error:
            raise InvalidRequest.from_error(plain_error(error)) from error
        except BaseException as error:
            raise InvalidRequest(
                f"are refused by the trigger {trigger.name!r}: {named_error(error)}",
                field="spec.trigger.options",
                remedy="Give what that trigger requires",
            ) from error

    def evaluate(self, name: str, facts: TriggerFacts) -> object:
        """Return the answer of the class, whatever that is. Raises IscpError if it cannot be called, or fails."""
        try:
            return self._trigger(name).decide(facts)
        except BaseException as error:  # also SystemExit: foreign code ends no thread of the node
            message = error_text(error) if isinstance(error, IscpError) else named_error(error)
            raise TemporaryError(message, code=ErrorCode.TRIGGER_FAILED) from error

    def _trigger(self, name: str) -> Trigger:
        if name not in self._allow:
            raise InvalidRequest(
                f"{name!r} is not allowed on this node",
                about=NAME_FIELD,
                remedy="Add it to triggers.allow in the node's configuration"
                + (f", or use one of {', '.join(sorted(self._allow))}" if self._allow else ""),
            )
        if name not in self._entries:
            raise InvalidRequest(
                f"{name!r} is not installed on this node",
                about=NAME_FIELD,
                remedy=f"Install a package that has it as an entry point of {TRIGGER_GROUP}; "
                f"there are {', '.join(sorted(self._entries)) or 'none'}",
            )
        if name not in self._loaded:
            try:
                self._loaded[name] = self._entries[name].load()()
            except BaseException as error:
                raise InvalidRequest(
                    f"{name!r} cannot be loaded: {named_error(error)}",
                    about=NAME_FIELD,
                    remedy="Repair its package, and restart the node",
                ) from error
        return self._loaded[name]
