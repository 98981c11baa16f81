"""All accounts share an embedder's pace, and none its cache."""

from __future__ import annotations

import pytest

from iscp.core.settings.embedder_config import EmbedderConfig
from iscp.core.values.errors import InvalidRequest
from iscp.index.embedding.embedder_registry import EmbedderRegistry
from iscp.index.embedding.embedding_services import EmbeddingServices
from tests.fakes.embedders import Bed

SLOW = EmbedderConfig(kind="hashed", dimension=8, requests_per_s=0.5)


def services(bed: Bed) -> EmbeddingServices:
    return EmbeddingServices(EmbedderRegistry(definitions={"slow": SLOW}), bed.cache, bed.patience)


def test_all_jobs_of_a_node_share_the_pace_of_an_embedder() -> None:
    bed = Bed()
    made = services(bed)
    for account in ("acme", "beta", "acme"):
        made.service("slow", account).embed([f"text of {account} at {bed.clock.monotonic_s()}"])
    assert bed.clock.monotonic_s() - 100.0 == pytest.approx(4.0)
    made.service("hashed", "acme").embed(["a"])
    assert bed.clock.monotonic_s() - 100.0 == pytest.approx(4.0), "another embedder has a pace of its own"


def test_jobs_of_an_account_share_what_was_embedded_and_accounts_do_not() -> None:
    made = services(Bed())
    first, second, other = (made.service("slow", account) for account in ("acme", "acme", "beta"))
    assert first.embed(["a"]).counts.embedded == 1
    assert second.embed(["a"]).counts.from_cache == 1
    assert other.embed(["a"]).counts.embedded == 1
    assert second.counts.embedded == 0, "counts are a service's own"


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is not an embedder"):
        services(Bed()).service("nope", "acme")
