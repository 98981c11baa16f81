"""Vectors of queries' texts, by the embedder that made those of an index's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from iscp.core.values.errors import InvalidRequest
from iscp.index.embedding.embedder_registry import EmbedderRegistry

_FIELD = "text"


class QueryEmbedder(Protocol):
    """An embedder. Its fingerprint is that of the vectors it makes: only those of one fingerprint compare."""

    @property
    def fingerprint(self) -> str: ...
    def embed(self, texts: Sequence[str], /) -> npt.NDArray[np.float32]: ...


EmbedderOf = Callable[[str], QueryEmbedder]
"""A function of an embedder's name that returns it. Raises InvalidRequest for one that is not there."""


@cache
def _registry() -> EmbedderRegistry:
    return EmbedderRegistry()


def own_embedder(name: str) -> QueryEmbedder:
    """Return an embedder of this process: iscp's own ones, as their settings are without a node."""
    return _registry().embedder(name, _FIELD)


def embedded_query(text: str, name: str, fingerprint: str, embedder_of: EmbedderOf) -> tuple[float, ...]:
    """Return the vector of a query's text. Raises InvalidRequest if the embedder is not the one of the rows."""
    embedder = embedder_of(name)
    if embedder.fingerprint != fingerprint:
        raise InvalidRequest(
            f"cannot be embedded: {name} makes other vectors here than those of the index",
            field=_FIELD,
            remedy="Use the embedder with which the index was made, or give a vector",
        )
    return tuple(map(float, embedder.embed([text])[0]))
