"""Embedders are found by definition or entry point and made once; only those that are allowed, and what fits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from iscp.core.settings.embedder_config import EmbedderConfig
from iscp.core.settings.embedder_faults import OWN_KINDS
from iscp.core.values.errors import ErrorCode, InvalidRequest
from iscp.index.embedding.embedder_registry import EMBED_FIELD, GROUP, EmbedderRegistry
from tests.fakes.packages import install

THEIRS = """
import numpy as np

class Good:
    made = []

    def __init__(self, config):
        self.made.append(config.options)
        self.dimension = int(config.options.get("size", "2"))
        self.fingerprint = f"theirs/{self.dimension}"

    def embed(self, texts):
        return np.zeros((len(texts), self.dimension), np.float32)

class Plain:
    def __init__(self, config): ...

class Exits:
    def __init__(self, config):
        raise SystemExit("gone")

class Refuses:
    def __init__(self, config):
        from iscp.core.values.errors import InvalidRequest
        raise InvalidRequest("needs a size", field="their own", remedy="Give options.size\\x1b")
"""
OPENAI = EmbedderConfig(kind="openai", url="https://api.example", model="m", dimension=8, batch=3, revision="b")


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"good": "Good", "plain": "Plain", "exits": "Exits", "refuses": "Refuses", "absent": "Absent"}
    install(tmp_path, "theirs_for_embedding", THEIRS, GROUP, **entries, hashed="Plain")
    monkeypatch.syspath_prepend(str(tmp_path))


def refused(registry: EmbedderRegistry, name: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        registry.embedder(name)
    assert refusal.value.field == EMBED_FIELD
    assert refusal.value.remedy
    return refusal.value


def test_iscps_own_are_those_that_settings_know() -> None:
    registry = EmbedderRegistry()
    assert registry.absent == ()
    assert registry.names == ("hashed", "minilm")
    assert all(name in OWN_KINDS for name in registry.names)
    assert registry.embedder("hashed").dimension == 256


def test_an_embedder_is_made_once_whoever_comes_first() -> None:
    registry = EmbedderRegistry()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(registry.embedder, ["hashed"] * 64))
    assert {id(each) for each in found} == {id(found[0])}


def test_a_definition_is_an_embedder_of_its_own_name() -> None:
    registry = EmbedderRegistry(definitions={"mine": OPENAI, "small": EmbedderConfig(kind="hashed", dimension=16)})
    assert registry.names == ("hashed", "mine", "minilm", "small")
    mine = registry.embedder("mine")
    assert (mine.name, mine.dimension, mine.batch) == ("mine", 8, 3)
    assert mine.fingerprint.endswith("#b")
    assert registry.embedder("small").dimension == 16
    assert registry.embedder("hashed").dimension == 256


def test_a_definition_gives_one_of_iscps_own_other_defaults() -> None:
    registry = EmbedderRegistry(definitions={"hashed": EmbedderConfig(kind="hashed", dimension=16)})
    assert registry.embedder("hashed").dimension == 16


@pytest.mark.parametrize("name", ["", "Hashed", "nope", "https://evil.example/v1", "/models/x", "x" * 10_000])
def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    refusal = refused(EmbedderRegistry(definitions={"mine": OPENAI}), name)
    assert "is not an embedder" in refusal.message
    assert len(refusal.message) < 300
    assert "hashed, mine, minilm" in refusal.remedy


@pytest.mark.parametrize(
    ("name", "words"),
    [("openai", "has no url and no model and no dimension here"), ("model2vec", "has no path here")],
)
def test_one_that_needs_options_is_refused_without_a_definition(name: str, words: str) -> None:
    refusal = refused(EmbedderRegistry(), name)
    assert words in refusal.message
    assert "embedders of the node's settings" in refusal.remedy


@pytest.mark.usefixtures("theirs")
def test_code_of_others_runs_once_it_is_allowed() -> None:
    registry = EmbedderRegistry(("good",), {"large": EmbedderConfig(kind="good", options={"size": "5"})})
    assert registry.embedder("good").dimension == 2
    assert registry.embedder("large").fingerprint == "theirs/5"
    assert registry.embedder("large").embed(["a"]).shape == (1, 5)


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("name", ["good", "large"])
def test_code_that_is_not_allowed_is_not_loaded(name: str) -> None:
    refusal = refused(EmbedderRegistry(("exits",), {"large": EmbedderConfig(kind="good")}), name)
    assert "does not run" in refusal.message
    assert "embedding.allow" in refusal.remedy


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("step", [1, -1])
def test_nobody_else_takes_the_name_of_one_of_ours(step: int) -> None:
    """In whatever order packages are found."""
    entries = list(entry_points(group=GROUP))[::step]
    assert len([each for each in entries if each.name == "hashed"]) == 2
    assert EmbedderRegistry(("hashed",), entries=entries).embedder("hashed").dimension == 256


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "cannot be made: AttributeError"),
        ("exits", "cannot be made: SystemExit: gone"),
    ],
)
def test_code_that_fails_is_reported_and_ends_nothing(name: str, words: str) -> None:
    refusal = refused(EmbedderRegistry((name,)), name)
    assert refusal.code is ErrorCode.EMBEDDER_BROKEN
    assert words in refusal.message


@pytest.mark.usefixtures("theirs")
def test_a_class_that_is_no_embedder_is_refused() -> None:
    refusal = refused(EmbedderRegistry(("plain",)), "plain")
    assert refusal.code is ErrorCode.EMBEDDER_BROKEN
    assert "'plain' is no embedder: it has no dimension, fingerprint, embed" in refusal.message


@pytest.mark.usefixtures("theirs")
def test_a_class_that_refuses_its_options_says_so_of_the_jobs_option() -> None:
    refusal = refused(EmbedderRegistry(("refuses",)), "refuses")
    assert (refusal.message, refusal.remedy) == ("needs a size", "Give options.size\\x1b")


@pytest.mark.usefixtures("theirs")
def test_one_that_fails_is_made_again_the_next_time() -> None:
    registry = EmbedderRegistry(("exits",))
    for _ in range(2):
        refused(registry, "exits")


@pytest.mark.usefixtures("theirs")
def test_what_is_allowed_or_defined_and_not_installed_can_be_reported() -> None:
    registry = EmbedderRegistry(("good", "mislaid"), {"mine": EmbedderConfig(kind="lost")})
    assert registry.absent == ("lost", "mislaid")
    assert (
        "not installed" in refused(EmbedderRegistry(("lost",), {"mine": EmbedderConfig(kind="lost")}), "mine").message
    )


@pytest.mark.usefixtures("theirs")
def test_a_name_is_checked_without_loading_a_model(tmp_path: Path) -> None:
    """The definition `broken` names a directory that is not there."""
    broken = EmbedderConfig(kind="model2vec", path=str(tmp_path / "absent"))
    registry = EmbedderRegistry(("exits",), {"mine": OPENAI, "broken": broken})
    for name in ("hashed", "minilm", "mine", "broken", "exits"):
        registry.check(name)
    for name in ("nope", "openai", "good"):
        with pytest.raises(InvalidRequest) as refusal:
            registry.check(name, "spec")
        assert refusal.value.field == "spec"
    assert "is no directory" in refused(registry, "broken").message


def test_a_search_has_a_field_of_its_own() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        EmbedderRegistry().embedder("nope", "embed")
    assert refusal.value.field == "embed"
