"""Embedders implement this interface (docs/embedders.md), and say more than others by these errors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from iscp.model.values.errors import PermanentError, Unavailable

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
