"""Finds embedders by the name that a job gives: those that the node's settings define, and entry points.

Entry points are those of the group `iscp.embedders`. iscp's own are always there. Code behind anybody else's entry
point runs inside the node, with all that it may do: it has to be named in the configuration (`embedding.allow`).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from iscp.core.settings.embedder_config import EmbedderConfig
from iscp.core.settings.embedder_faults import OWN_KINDS, kind_faults
from iscp.core.values.errors import ErrorCode, InvalidRequest, IscpError
from iscp.core.values.foreign_errors import plain_error
from iscp.core.values.untrusted_values import named_error, shown
from iscp.index.embedding.checked_embedder import CheckedEmbedder

GROUP = "iscp.embedders"
EMBED_FIELD = "spec.iteration.consumer.options.embed"
_OURS = "iscp.index.embedding."
_MADE_AT_ONCE = frozenset({"hashed", "minilm", "openai"})
_REQUIRED = ("dimension", "fingerprint", "embed")


class EmbedderRegistry:
    """Makes each embedder that this node can run at its first use, and keeps it. Thread-safe."""

    def __init__(
        self,
        allow: Collection[str] = (),
        definitions: Mapping[str, EmbedderConfig] | None = None,
        entries: Iterable[EntryPoint] | None = None,
    ) -> None:
        found = list(entry_points(group=GROUP) if entries is None else entries)
        ours = {entry.name: entry for entry in found if entry.value.startswith(_OURS)}
        # Nobody else's takes the name of one of ours.
        self._entries = {entry.name: entry for entry in found} | ours
        self._allow = {*ours, *allow}
        self._definitions = dict(definitions or {})
        self._made: dict[str, CheckedEmbedder] = {}
        self._lock = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def absent(self) -> tuple[str, ...]:
        """Return the entry points that are allowed or defined, and not installed."""
        named = self._allow | {each.kind for each in self._definitions.values()}
        return tuple(sorted(named - set(self._entries)))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that a job may give."""
        complete = {name for name in self._allow & set(self._entries) if not _lacking(name)}
        return tuple(sorted(complete | set(self._definitions)))

    def definition(self, name: str) -> EmbedderConfig:
        """Return the settings of an embedder, the defaults of its kind where the node has none of its own."""
        return self._definitions.get(name) or EmbedderConfig(kind=name)

    def embedder(self, name: str, field: str = EMBED_FIELD) -> CheckedEmbedder:
        """Return an embedder by its name. Raises InvalidRequest, of `field`, for one that is not there, not allowed
        or cannot be made, and TemporaryError where it may be made later.
        """
        entry = self._entry(name, field)
        with self._lock:
            lock = self._locks[name]
        # Another embedder does not wait for this one, which may load a model.
        with lock:
            if name not in self._made:
                self._made[name] = _make(name, entry, self.definition(name), field)
            return self._made[name]

    def check(self, name: str, field: str = EMBED_FIELD) -> None:
        """Raise InvalidRequest, of `field`, for an embedder that is not there or not allowed.

        One of iscp's own that loads no model when it is made is made too, so that a missing package is found.
        """
        self._entry(name, field)
        if self.definition(name).kind in _MADE_AT_ONCE:
            self.embedder(name, field)

    def _entry(self, name: str, field: str) -> EntryPoint:
        if name not in self._definitions and (name not in self._entries or _lacking(name)):
            lacking = _lacking(name) if name in self._entries else ""
            raise InvalidRequest(
                f"{shown(name)} is an embedder that has no {lacking} here"
                if lacking
                else f"{shown(name)} is not an embedder",
                about=field,
                remedy=f"Use one of {', '.join(self.names)}, or have it defined in embedders of the node's settings",
            )
        kind = self.definition(name).kind
        if kind not in self._allow:
            raise InvalidRequest(
                f"{kind!r} is an embedder that this deployment does not run",
                about=field,
                remedy="If its code is to be trusted, add it to embedding.allow of every node and restart them",
            )
        if kind not in self._entries:
            raise InvalidRequest(
                f"{kind!r} is an embedder that is not installed on this node",
                about=field,
                remedy=f"Install a package that has it as an entry point of {GROUP} on every node, and restart them",
            )
        return self._entries[kind]


def _lacking(name: str) -> str:
    """Return which options an embedder of iscp's own needs that are not given by its defaults."""
    if name not in OWN_KINDS:
        return ""
    faults = kind_faults(name, EmbedderConfig(kind=name), ())
    return " and no ".join(each.path.rpartition(".")[2] for each in faults)


def _make(name: str, entry: EntryPoint, config: EmbedderConfig, field: str) -> CheckedEmbedder:
    try:
        made = entry.load()(config)
        lacking = [each for each in _REQUIRED if not hasattr(made, each)]
    except InvalidRequest as error:
        raise _of_field(error, field) from error
    except BaseException as error:  # whatever its code does, it is no fault of others' jobs
        raise InvalidRequest(
            f"the embedder {name!r} ({entry.value}) cannot be made: {named_error(error)}",
            about=field,
            remedy="Set it right in embedders of the node's settings, or repair its package, and restart the nodes",
            code=ErrorCode.EMBEDDER_BROKEN,
        ) from error
    if lacking:
        raise InvalidRequest(
            f"{name!r} is no embedder: it has no {', '.join(lacking)}",
            about=field,
            remedy=f"Repair its package, which names {entry.value} in {GROUP}, and restart the nodes",
            code=ErrorCode.EMBEDDER_BROKEN,
        )
    try:
        return CheckedEmbedder(name, made, batch=config.batch, revision=config.revision)
    except InvalidRequest as error:
        raise _of_field(error, field) from error


def _of_field(error: IscpError, field: str) -> InvalidRequest:
    plain = plain_error(error)
    return InvalidRequest.from_error(plain, field=field, code=plain.code)
