"""Check all that an embedder answers and raises, as it may be other people's code or endpoint.

Whatever it does is the fault of the jobs that use it alone (compare `iscp.consumers.custom.custom_kind`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from iscp.core.settings.embedder_faults import BATCH_MAX, DIMENSION_MAX
from iscp.core.values.errors import ErrorCode, PermanentError, TemporaryError
from iscp.core.values.foreign_errors import is_of_a_job, plain_error
from iscp.core.values.untrusted_values import error_text, exact_float, exact_int, named_error, printable, shown
from iscp.index.embedding.embedder import Embedder, EmbedderBusy, TextsRefusedError, Vectors

BATCH_DEFAULT = 32
"""Texts that an embedder is given at once where neither its definition nor its class (`batch_max`) says how many."""

FINGERPRINT_CHARS_MAX = 4_000
"""Characters of an embedder's fingerprint; an embedder with a longer one is refused."""

RETRY_AFTER_S_MOST = 86_400.0
"""Seconds for which an embedder may put off requests; a longer time counts as this one."""


class CheckedEmbedder:
    """A checked embedder keeps to the contract, or fails by its name.

    `dimension`, `fingerprint` and `batch` are taken once. `revision` becomes a part of the fingerprint, so that
    whoever runs a node can have everything embedded again. Raises PermanentError where the embedder has no dimension
    or fingerprint that can be used, and what the embedder raises, translated.
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
