"""Searches by a node: the library's, with the node's embedders, of the account whose index it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.app.registry import NodeSearch, default_index_services
from iscp.index.embedding.embedder_registry import Known
from iscp.index.lance.row_encoder import EmbeddedTexts
from iscp.model.api.api_requests import SearchRequest
from iscp.model.values.errors import InvalidRequest
from tests.integration.index.search.small_index import SmallIndex

ROWS = [
    {"id": 1, "body": "the quick brown fox"},
    {"id": 2, "body": "a ship in a harbour"},
    {"id": 3, "body": "quick foxes are brown"},
]


def made(place: Path, fingerprint: str = "") -> SmallIndex:
    service = default_index_services().embeddings.service("hashed", "acme")

    def embed(texts: Sequence[str], known: Known | None) -> EmbeddedTexts:
        return service.embed(texts, known=known)

    index = SmallIndex(
        place,
        "vector",
        {"text": "body", "embed": "hashed"},
        [pa.field("body", pa.string())],
        dimension=service.dimension,
        embed=embed,
        fingerprint=fingerprint or service.fingerprint,
    )
    index.commit(ROWS)
    return index


def test_a_text_is_embedded_by_the_nodes_embedder(tmp_path: Path) -> None:
    search = NodeSearch(default_index_services)
    answer = search(SearchRequest(made(tmp_path / "index").uri, "a quick brown fox", k=2), "acme")
    assert [hit.key for hit in answer.hits] == [{"id": 1}, {"id": 3}]
    assert answer.version == 0


def test_an_embedder_that_makes_other_vectors_than_those_of_the_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="makes other vectors here") as refused:
        NodeSearch(default_index_services)(SearchRequest(made(tmp_path / "index", "of another").uri, "fox"), "acme")
    assert refused.value.field == "text"
