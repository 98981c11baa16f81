"""Find the texts that an embedder refuses among a batch, so that the others get their vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.index.embedding.embedder import TextsRefusedError, Vectors

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
