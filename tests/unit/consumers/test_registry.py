"""Kinds of consumer are found by entry point and loaded once."""

from __future__ import annotations

import pytest

from iscp.consumers.registry import ConsumerRegistry
from iscp.consumers.replica import Replica
from iscp.core.errors import ErrorCode, InvalidRequest


def test_a_kind_is_loaded_once_and_then_kept() -> None:
    registry = ConsumerRegistry()
    replica = registry.kind("replica")
    assert isinstance(replica, Replica)
    assert registry.kind("replica") is replica


@pytest.mark.parametrize("name", ["", "Replica", "nope"])
def test_an_unknown_kind_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a consumer") as refused:
        ConsumerRegistry().kind(name)
    assert refused.value.field == "spec.iteration.consumer.kind"
    assert refused.value.code is ErrorCode.CONSUMER_UNKNOWN
    assert "replica" in refused.value.remedy


def test_every_kind_goes_by_the_name_of_its_entry_point() -> None:
    registry = ConsumerRegistry()
    assert registry.kind("replica").name == "replica"
