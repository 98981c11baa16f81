"""Kinds of consumer are found by entry point and loaded once; only those that are allowed, and only what fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.app.registry import GROUP, ConsumerRegistry
from iscp.consumers.custom.custom_kind import CustomKind
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.model.job.iteration import ChangeDetail
from iscp.model.values.errors import ErrorCode, InvalidRequest
from tests.fakes.packages import install

THEIRS = """
from iscp.consumers.custom import CustomConsumer
from iscp.ports.consumer import ConsumerKind, Needs

class Good(CustomConsumer):
    changes = "all"
    def position(self): ...
    def consume(self, context, retriever): ...

class Plain:
    name = "plain"

class Old:
    shared_target, needs = False, Needs()
    name = validate = target_of = columns = open = None

class Odd(ConsumerKind):
    needs = Needs(target_log="lance")
    name = validate = target_of = columns = open = None

class Exits:
    def __init__(self):
        raise SystemExit("gone")
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {name.lower(): name for name in ("Good", "Plain", "Exits", "Absent", "Odd", "Old")}
    install(tmp_path, "theirs_for_registry", THEIRS, GROUP, **entries, replica="Plain")
    monkeypatch.syspath_prepend(str(tmp_path))


def refused(registry: ConsumerRegistry, name: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        registry.kind(name)
    assert refusal.value.field == "spec.iteration.consumer.kind"
    assert refusal.value.remedy
    return refusal.value


def test_a_kind_is_loaded_once_and_then_kept() -> None:
    registry = ConsumerRegistry()
    replica = registry.kind("replica")
    assert isinstance(replica, ReplicaKind)
    assert registry.kind("replica") is replica


@pytest.mark.parametrize("name", ["", "Replica", "nope"])
def test_an_unknown_kind_is_refused_with_those_there_are(name: str) -> None:
    refusal = refused(ConsumerRegistry(allowed=("nope",)), name)
    assert "is not a consumer" in str(refusal)
    assert refusal.code is ErrorCode.CONSUMER_UNKNOWN
    assert "replica" in refusal.remedy


def test_a_kind_that_is_allowed_and_not_installed_is_refused_with_the_entry_point_that_is_missing() -> None:
    refusal = refused(ConsumerRegistry(allowed=("queue",)), "queue")
    assert refusal.message == (
        "'queue' is not a consumer that is installed on this node, though consumers.allow names it"
    )
    assert refusal.remedy.startswith("Install the package with the entry point 'queue' of the group iscp.consumers on")


def test_for_an_unknown_kind_the_one_that_it_is_most_like_is_named() -> None:
    assert refused(ConsumerRegistry(), "replca").remedy.startswith("Did you mean replica? Use one of changefeed, ")


def test_every_kind_goes_by_the_name_of_its_entry_point() -> None:
    registry = ConsumerRegistry()
    assert registry.kind("replica").name == "replica"


@pytest.mark.usefixtures("theirs")
def test_a_class_by_somebody_else_is_a_kind_once_it_is_allowed() -> None:
    kind = ConsumerRegistry(allowed=("good",)).kind("good")
    assert isinstance(kind, CustomKind)
    assert kind.name == "good"
    assert (kind.needs.changes, kind.needs.compares) == (ChangeDetail.ALL, False)


@pytest.mark.usefixtures("theirs")
def test_what_is_not_allowed_is_not_loaded_and_says_what_to_do() -> None:
    refusal = refused(ConsumerRegistry(allowed=("plain",)), "exits")
    assert refusal.code is ErrorCode.CONSUMER_NOT_ALLOWED
    assert "consumers.allow" in refusal.remedy


@pytest.mark.usefixtures("theirs")
def test_nobody_else_takes_the_name_of_one_of_ours() -> None:
    assert isinstance(ConsumerRegistry(allowed=("replica",)).kind("replica"), ReplicaKind)


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("absent", "AttributeError"),
        ("exits", "SystemExit: gone"),
        ("odd", "its target has a log 'lance', which is no TargetLog"),
        ("old", "nor a ConsumerKind: it has no base class ConsumerKind"),
        ("plain", "it has no shared_target, needs"),
    ],
)
def test_code_that_does_not_fit_is_reported_and_ends_nothing(name: str, why: str) -> None:
    refusal = refused(ConsumerRegistry(allowed=(name,)), name)
    assert refusal.code is ErrorCode.CONSUMER_BROKEN
    assert why in str(refusal)


@pytest.mark.usefixtures("theirs")
def test_what_is_allowed_and_not_installed_can_be_reported() -> None:
    assert ConsumerRegistry(allowed=("good", "mislaid")).absent == ("mislaid",)


def test_kinds_are_described_without_loading_any(theirs: None) -> None:
    registry = ConsumerRegistry(["good", "exits", "nowhere"])
    found = {each.name: each for each in registry.described()}
    ours = {"changefeed", "fulltext", "replica", "search", "vector", "view"}
    assert set(found) == {*ours, "good", "exits", "nowhere"}
    assert {name for name, each in found.items() if each.own} == ours
    for name in ours:
        assert found[name].about.endswith(".")
        assert found[name].package.startswith("iscp-delta ")
        assert not found[name].fault
    assert found["good"].package.startswith("theirs")
    assert not found["exits"].fault  # its code was not run
    assert "install it" in found["nowhere"].fault
