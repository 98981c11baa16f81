"""Embedders by name: the interface that they implement, the check of all that they return and raise, and the registry
that makes them of entry points and of the node's settings.
"""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

import numpy as np
import numpy.typing as npt

from iscp.model.settings.embedder_config import BATCH_MAX, DIMENSION_MAX, OWN_KINDS, EmbedderConfig, kind_faults
from iscp.model.values.errors import ErrorCode, InvalidRequest, IscpError, PermanentError, TemporaryError, Unavailable
from iscp.model.values.untrusted_values import (
    error_text,
    exact_float,
    exact_int,
    is_of_a_job,
    named_error,
    plain_error,
    printable,
    shown,
)

# --- checked embedders ------------------------------------------------------------------------------------------------

BATCH_DEFAULT = 32
"""Texts that an embedder is given at once where neither its definition nor its class (`batch_max`) says how many."""

FINGERPRINT_CHARS_MAX = 4_000
"""Characters of an embedder's fingerprint; an embedder with a longer one is refused."""

RETRY_AFTER_S_MOST = 86_400.0
"""Seconds for which an embedder may put off requests; a longer time counts as this one."""


class CheckedEmbedder:
    """A checked embedder keeps to the contract, or fails by its name.

    All that an embedder returns and raises is checked, as it may be other people's code or endpoint. Whatever it does
    is the fault of the jobs that use it alone (compare `iscp.consumers.custom.custom_kind`).

    `dimension`, `fingerprint` and `batch` are taken once. `revision` becomes a part of the fingerprint, so that whoever
    runs a node can have everything embedded again. Raises PermanentError where the embedder has no dimension or
    fingerprint that can be used, and what the embedder raises, translated.
    """

    def __init__(self, name: str, embedder: Embedder, *, batch: int = 0, revision: str = "") -> None:
        self.name = name
        self._embedder = embedder
        with self._translate("said what it is"):
            dimension, fingerprint = embedder.dimension, embedder.fingerprint
            own_batch: object = getattr(embedder, "batch_max", BATCH_DEFAULT)
        try:
            self.dimension = exact_int(dimension, "dimension", 1, DIMENSION_MAX)
            self.batch = min(batch or BATCH_MAX, exact_int(own_batch, "batch_max", 1, BATCH_MAX))
        except ValueError as error:
            raise self._broken(str(error)) from error
        if type(fingerprint) is not str or not fingerprint or len(fingerprint) > FINGERPRINT_CHARS_MAX:
            raise self._broken(
                f"its fingerprint is {shown(fingerprint)}, and no text of 1 to {FINGERPRINT_CHARS_MAX} characters"
            )
        self.fingerprint = f"{fingerprint}#{revision}" if revision else fingerprint

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of up to `batch` texts. Raises TemporaryError, or PermanentError also for wrong
        answers.
        """
        with self._translate("embedded texts"):
            answer: object = self._embedder.embed(texts)
        return self._checked(answer, len(texts))

    def _checked(self, answer: object, count: int) -> Vectors:
        if type(answer) is not np.ndarray:
            raise self._broken(f"it answers {shown(answer)}, which is no array of numpy")
        if answer.dtype != np.float32:
            raise self._broken(f"it answers numbers of the type {answer.dtype}, and not float32")
        if answer.ndim != 2 or answer.shape[0] != count:
            raise self._broken(f"it answers an array of the shape {answer.shape} for {count} texts")
        if answer.shape[1] != self.dimension:
            raise self._broken(
                f"it answers vectors of {answer.shape[1]} numbers, and its dimension is {self.dimension}"
            )
        if not np.isfinite(answer).all():
            number = int(np.flatnonzero(~np.isfinite(answer).all(axis=1))[0])
            raise self._broken(f"the vector of text {number + 1} of {count} has a number that is not finite")
        return answer

    @contextmanager
    def _translate(self, doing: str) -> Iterator[None]:
        """Turn whatever the embedder raises, an exit included, into an error that can be stored and shown."""
        try:
            yield
        except EmbedderBusy as error:
            raise EmbedderBusy(f"{self._subject}: {error_text(error)}", retry_after_s=_put_off(error)) from error
        except TextsRefusedError as error:
            raise TextsRefusedError(error_text(error)) from error
        except BaseException as error:
            if is_of_a_job(error):
                found = plain_error(error)
                found.message = f"{self._subject}: {found.message}"
                raise found from error
            raise TemporaryError(
                f"{self._subject} failed when it {doing}: {named_error(error)}", code=ErrorCode.EMBEDDER_FAILED
            ) from error

    @property
    def _subject(self) -> str:
        return f"the embedder {printable(self.name)!r}"

    def _broken(self, what: str) -> PermanentError:
        return PermanentError(
            f"{self._subject} does not keep to its contract: {what}",
            remedy="Set its model and dimension right in embedders of the node's settings, or repair its package",
            code=ErrorCode.EMBEDDER_BROKEN,
        )


def _put_off(error: EmbedderBusy) -> float:
    try:
        return min(exact_float(error.retry_after_s, "retry_after_s", 0.0), RETRY_AFTER_S_MOST)
    except BaseException:  # noqa: BLE001  (attributes of its own making)
        return 0.0


# --- refused texts ----------------------------------------------------------------------------------------------------
# The texts of a batch that an embedder refuses are found, so that the other texts get their vectors.

PROBE_TEXT = "text"
"""A text that every embedder takes; one that refuses it does not refuse others for what they are."""


def embed_apart(
    embed: Callable[[Sequence[str]], Vectors], texts: Sequence[str]
) -> tuple[list[tuple[int, Vectors]], dict[int, str]]:
    """Return vectors with the number of the first text of each part, and what is said of each refused text.

    A refused batch is halved until single texts are left, so that `n` texts with one that is refused take some
    2 log2(n) requests. Raises PermanentError where the embedder refuses any text, PROBE_TEXT too.
    """
    found: list[tuple[int, Vectors]] = []
    refused: dict[int, str] = {}
    parts = [(0, len(texts))]
    while parts:
        start, end = parts.pop()
        try:
            found.append((start, embed(texts[start:end])))
        except TextsRefusedError as error:
            if end - start > 1:
                middle = (start + end) // 2
                parts += [(middle, end), (start, middle)]
                continue
            if not refused:
                _probe(embed)
            refused[start] = error.message
    return found, refused


def _probe(embed: Callable[[Sequence[str]], Vectors]) -> None:
    try:
        embed([PROBE_TEXT])
    except TextsRefusedError as error:
        raise PermanentError(
            f"the embedder refuses every text: {error.message}",
            remedy="Set its url, model and options right in embedders of the node's settings",
            code=ErrorCode.EMBEDDER_BROKEN,
        ) from error


# --- the registry -----------------------------------------------------------------------------------------------------

GROUP = "iscp.embedders"
EMBED_FIELD = "spec.iteration.consumer.options.embed"
_OURS = "iscp.index.embedding."
_MADE_AT_ONCE = frozenset({"hashed", "minilm", "openai"})
_REQUIRED = ("dimension", "fingerprint", "embed")


class EmbedderRegistry:
    """Makes each embedder that this node can run at its first use, and keeps it. Thread-safe.

    Embedders are found by the name that a job gives: those that the node's settings define, and the entry points of the
    group `iscp.embedders`. iscp's own are always there. Code behind anybody else's entry point runs inside the node,
    with all that it may do, so the configuration has to name it (`embedding.allow`).
    """

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


# --- the interface of embedders ---------------------------------------------------------------------------------------
# Embedders implement `Embedder` (docs/embedders.md); by `EmbedderBusy` and `TextsRefusedError` they say more of a
# failure than by other errors.

Vectors = npt.NDArray[np.float32]
"""Vectors of texts, one a row, in the order of the texts."""

Known = Callable[[Sequence[bytes]], Mapping[bytes, Vectors]]
"""A function that returns stored vectors by the hashes of their texts, as far as there are any."""


def text_hash(text: str) -> bytes:
    """Return the 32 bytes by which a text's vector is found again: SHA-256 of its UTF-8."""
    return hashlib.sha256(text.encode()).digest()


class Embedder(Protocol):
    """An embedder turns texts into vectors. Several threads may call it at a time."""

    @property
    def dimension(self) -> int:
        """Return how many numbers a vector has; always the same."""

    @property
    def fingerprint(self) -> str:
        """Return a text that changes whenever the vector of some text could: model, its version or hash, options."""

    def embed(self, texts: Sequence[str], /) -> Vectors:
        """Return the vectors of `texts`: float32, finite, of the shape (len(texts), dimension).

        A text's vector must not depend on the texts beside it, as it is stored and used again. Raises TemporaryError
        where a later attempt may succeed, EmbedderBusy where it may after a time, TextsRefusedError for the texts
        themselves, and PermanentError for what a person has to set right.
        """


class EmbedderBusy(Unavailable):
    """The embedder takes no requests now. `retry_after_s` are the seconds after which it may, 0 if it does not say."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TextsRefusedError(PermanentError):
    """One of the texts, or more, cannot be embedded, and the embedder itself may well be able to embed others."""
