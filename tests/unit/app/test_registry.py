"""Kinds of consumer are found by entry point and loaded once; only those that are allowed, and only what fits.

Custom triggers are found by entry point, run only if they are allowed, and cannot end the node.

A node's embedders are those of its settings, and files without keys are found before it starts.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from iscp.app.registry import (
    TRIGGER_GROUP,
    ConsumerRegistry,
    TriggerRegistry,
    default_embeddings,
    embedder_key_faults,
    embedding_services,
)
from iscp.app.settings import check_files, load_settings, to_toml
from iscp.consumers.custom.custom_kind import CustomKind
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.model.job.iteration import ChangeDetail
from iscp.model.job.start_rule import NotBefore, StartNow, TriggerFacts
from iscp.model.settings.config import JobLogConfig, NodeConfig
from iscp.model.settings.embedder_config import EmbedderConfig, EmbeddingConfig
from iscp.model.spec.spec import TriggerSpec, TriggerType
from iscp.model.values.errors import ConfigurationError, ErrorCode, InvalidRequest, IscpError
from tests.fakes.clock import FakeClock
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
    install(tmp_path, "theirs_for_registry", THEIRS, "iscp.consumers", **entries, replica="Plain")
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


FACTS = TriggerFacts("a", "t", "x", 3, 30.0, 5, 1_000.0, 900.0, 910.0, {"hour": 3})


class AtHour:
    """Starts once the clock has reached an hour of the first day."""

    def validate(self, options: Mapping[str, Any]) -> None:
        if not 0 <= options["hour"] < 24:
            raise ValueError("hour must be 0 to 23")

    def decide(self, facts: TriggerFacts) -> StartNow | NotBefore:
        at_s = facts.options["hour"] * 3_600.0
        return StartNow() if facts.now_s >= at_s else NotBefore(at_s)


class Leaving(AtHour):
    def decide(self, facts: TriggerFacts) -> StartNow | NotBefore:
        sys.exit("enough")


class Unmade(AtHour):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


ENTRIES = [
    EntryPoint(kind.__name__, f"{__name__}:{kind.__name__}", TRIGGER_GROUP) for kind in (AtHour, Leaving, Unmade)
]
ENTRIES.append(EntryPoint("Gone", "no.such.module:Gone", TRIGGER_GROUP))


def custom(name: str, **options: Any) -> TriggerSpec:
    return TriggerSpec(TriggerType.CUSTOM, name=name, options=options)


@pytest.fixture
def registry() -> TriggerRegistry:
    return TriggerRegistry(["AtHour", "Leaving", "Unmade", "Gone", "absent"], ENTRIES)


def test_a_trigger_is_evaluated_with_the_facts(registry: TriggerRegistry) -> None:
    registry.check(custom("AtHour", hour=3))
    assert registry.evaluate("AtHour", FACTS) == NotBefore(10_800.0)


@pytest.mark.parametrize(
    ("allow", "trigger", "field", "words"),
    [
        ([], custom("AtHour", hour=3), "spec.trigger.name", "triggers.allow"),
        (["AtHour"], custom("Leaving"), "spec.trigger.name", "use one of AtHour"),
        (["absent"], custom("absent"), "spec.trigger.name", "there are AtHour, Gone"),
        (["Gone"], custom("Gone"), "spec.trigger.name", "ModuleNotFoundError"),
        (["Unmade"], custom("Unmade"), "spec.trigger.name", "no licence"),
        (["AtHour"], custom("AtHour", hour=30), "spec.trigger.options", "hour must be 0 to 23"),
        (["AtHour"], custom("AtHour"), "spec.trigger.options", "hour"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_at_registration(
    allow: list[str], trigger: TriggerSpec, field: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        TriggerRegistry(allow, ENTRIES).check(trigger)
    assert refused.value.field == field
    assert words in str(refused.value)


def test_iscps_own_triggers_need_no_allowance() -> None:
    for job_type in (TriggerType.DEFAULT, TriggerType.GREEDY, TriggerType.PERIODIC):
        TriggerRegistry([], []).check(TriggerSpec(job_type))


def test_a_trigger_that_fails_or_leaves_does_so_alone(registry: TriggerRegistry) -> None:
    with pytest.raises(IscpError, match="SystemExit: enough") as failed:
        registry.evaluate("Leaving", FACTS)
    assert failed.value.code is ErrorCode.TRIGGER_FAILED
    with pytest.raises(IscpError, match="KeyError"):
        registry.evaluate("AtHour", TriggerFacts("a", "t", "x", 3, 30.0, 5, 1_000.0, 0.0, 0.0, {}))
    with pytest.raises(IscpError, match="is not allowed"):
        registry.evaluate("forbidden since", FACTS)


def test_installed_packages_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nightly_trigger.py").write_text(
        "from iscp.model.job.start_rule import StartNow\n"
        "class Nightly:\n"
        "    def validate(self, options): pass\n"
        "    def decide(self, facts): return StartNow()\n"
    )
    package = tmp_path / "nightly_trigger-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nightly-trigger\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{TRIGGER_GROUP}]\nnightly = nightly_trigger:Nightly\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = TriggerRegistry(["nightly"])
    registry.check(custom("nightly"))
    assert registry.evaluate("nightly", FACTS) == StartNow()


NODE = NodeConfig(node_id="n", log=JobLogConfig(uri="/log"))
SMALL = EmbedderConfig(kind="hashed", dimension=8)
OPENAI = EmbedderConfig(kind="openai", url="https://api.example", model="m", dimension=8)


def test_jobs_find_the_embedders_of_the_settings() -> None:
    services = embedding_services(replace(NODE, embedders={"small": SMALL}), FakeClock())
    found = services.service("small", "acme").embed(["a", "a"])
    assert found.vectors.shape == (2, 8)
    assert services.service("small", "acme").embed(["a"]).counts.from_cache == 1


def test_a_program_without_settings_has_iscps_own() -> None:
    services = default_embeddings()
    assert services.registry.names == ("hashed", "minilm")
    assert services.service("hashed", "default").embed(["a"]).counts.embedded == 1


def test_without_memory_nothing_is_stored() -> None:
    config = replace(NODE, embedding=EmbeddingConfig(cache_mb=0))
    services = embedding_services(config, FakeClock())
    for _ in range(2):
        assert services.service("hashed", "acme").embed(["a"]).counts.embedded == 1


def test_what_is_allowed_and_not_installed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    config = replace(NODE, embedding=EmbeddingConfig(allow=("mislaid",)))
    with caplog.at_level(logging.WARNING):
        embedding_services(config, FakeClock())
    (record,) = (each for each in caplog.records if each.message == "embedders.not_installed")
    assert record.__dict__["names"] == "mislaid"


def test_definitions_are_read_from_a_file_and_written_to_one(tmp_path: Path) -> None:
    file = tmp_path / "iscp.toml"
    file.write_text(
        'node_id = "n"\n[log]\nuri = "/log"\n[embedding]\nallow = ["theirs"]\ncache_mb = 8\n'
        '[embedders.small]\nkind = "hashed"\ndimension = 8\n'
        '[embedders.mine]\nkind = "theirs"\nrequests_per_s = 2\noptions = {size = "5"}\n'
    )
    config = load_settings(file, {})
    mine = EmbedderConfig(kind="theirs", requests_per_s=2.0, options={"size": "5"})
    assert config.embedders == {"small": SMALL, "mine": mine}
    assert config.embedding == EmbeddingConfig(allow=("theirs",), cache_mb=8)
    file.write_text(to_toml(config))
    assert load_settings(file, {}) == config


def test_a_key_in_the_place_of_its_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "iscp.toml"
    file.write_text('node_id = "n"\n[log]\nuri = "/log"\n[embedders.mine]\nkind = "openai"\nkey = "sk-s3cr3t"\n')
    with pytest.raises(ConfigurationError) as refused:
        load_settings(file, {})
    assert "embedders.mine.key" in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


def test_every_file_without_a_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("sk-1\n")
    (tmp_path / "empty").write_text("\n")
    files = {name: replace(OPENAI, key_file=str(tmp_path / name)) for name in ("good", "empty", "absent")}
    config = replace(NODE, embedders={**files, "open": OPENAI})
    assert [each.path for each in embedder_key_faults(config)] == [
        "embedders.empty.key_file",
        "embedders.absent.key_file",
    ]
    with pytest.raises(ConfigurationError, match=r"embedders\.absent\.key_file"):
        check_files(config, {})
