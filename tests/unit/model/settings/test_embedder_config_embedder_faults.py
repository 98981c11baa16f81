"""Which definitions of embedders are refused at a node's start, each fault by its path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from iscp.model.settings.config import JobLogConfig, NodeConfig
from iscp.model.settings.config_faults import faults
from iscp.model.settings.embedder_config import (
    BATCH_MAX,
    DIMENSION_MAX,
    EMBEDDERS_MAX,
    MINILM_BATCH_MAX,
    OPTION_CHARS_MAX,
    OPTIONS_MAX,
    OWN_KINDS,
    WORDS_CHARS_MAX,
    EmbedderConfig,
    EmbeddingConfig,
)

OPENAI = EmbedderConfig(kind="openai", url="https://api.example/v1/embeddings", model="m", dimension=8)
NODE = NodeConfig(node_id="n", log=JobLogConfig(uri="/log"))


def paths(config: EmbedderConfig, name: str = "mine", allow: tuple[str, ...] = ()) -> list[str]:
    node = replace(NODE, embedders={name: config}, embedding=EmbeddingConfig(allow=allow))
    return [each.path.removeprefix(f"embedders.{name}.") for each in faults(node)]


@pytest.mark.parametrize(
    "config",
    [
        OPENAI,
        replace(OPENAI, key_file="/keys/one", batch=100, requests_per_s=0.5, timeout_s=3.0, chars_max=8_000),
        replace(OPENAI, url="http://127.0.0.1:8080", key_file="/keys/one"),
        replace(OPENAI, url="http://[::1]:8080/v1/embeddings", key_file="/keys/one"),
        replace(OPENAI, url="http://models.example/v1/embeddings"),
        EmbedderConfig(kind="hashed", dimension=64, revision="2"),
        EmbedderConfig(kind="minilm", threads=1, batch=MINILM_BATCH_MAX),
        EmbedderConfig(kind="model2vec", path="/models/potion"),
        EmbedderConfig(kind="sentence_transformers", path="/models/e5", batch=4),
    ],
)
def test_complete_definitions_are_valid(config: EmbedderConfig) -> None:
    assert paths(config) == []


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"url": ""}, "url"),
        ({"model": ""}, "model"),
        ({"dimension": 0}, "dimension"),
        ({"dimension": -1}, "dimension"),
        ({"dimension": DIMENSION_MAX + 1}, "dimension"),
        ({"url": "ftp://api.example"}, "url"),
        ({"url": "https://user:pass@api.example"}, "url"),
        ({"url": "http://api.example/v1/embeddings", "key_file": "/k"}, "url"),
        ({"url": "http://127.0.0.1.example/v1", "key_file": "/k"}, "url"),
        ({"batch": BATCH_MAX + 1}, "batch"),
        ({"requests_per_s": -0.5}, "requests_per_s"),
        ({"requests_per_s": float("nan")}, "requests_per_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"model": "m\n"}, "model"),
        ({"revision": "r" * (WORDS_CHARS_MAX + 1)}, "revision"),
        ({"path": "/models"}, "path"),
        ({"threads": 2}, "threads"),
        ({"options": {"a": "b"}}, "options"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, Any], path: str) -> None:
    assert paths(replace(OPENAI, **wrong)) == [path]


@pytest.mark.parametrize("kind", ["model2vec", "sentence_transformers"])
def test_a_model_is_a_directory_and_never_a_name_in_a_hub(kind: str) -> None:
    assert paths(EmbedderConfig(kind=kind)) == ["path"]
    assert paths(EmbedderConfig(kind=kind, path="minishlab/potion-base-8M")) == ["path"]


def test_minilm_takes_no_more_texts_at_once_than_fit_into_memory() -> None:
    assert paths(EmbedderConfig(kind="minilm", batch=MINILM_BATCH_MAX + 1)) == ["batch"]


def test_a_kind_of_others_has_to_be_allowed_and_takes_bounded_options() -> None:
    theirs = EmbedderConfig(kind="theirs", options={"size": "small"}, model="m", path="/p", threads=1)
    assert paths(theirs) == ["kind"]
    assert paths(theirs, allow=("theirs",)) == []
    many = replace(theirs, options={str(number): "" for number in range(OPTIONS_MAX + 1)})
    assert paths(many, allow=("theirs",)) == ["options"]
    long = replace(theirs, options={"a": "x" * (OPTION_CHARS_MAX + 1)})
    assert paths(long, allow=("theirs",)) == ["options.a"]


def test_a_definition_without_a_kind_is_refused() -> None:
    assert paths(EmbedderConfig()) == ["kind"]


@pytest.mark.parametrize("name", ["", "Mine", "my embedder", "-a", "a-", "a" * 65, "1a", "a.b", "a/b"])
def test_names_are_plain(name: str) -> None:
    node = replace(NODE, embedders={name: OPENAI})
    assert [each.path for each in faults(node)] == [f"embedders.{name}"]


@pytest.mark.parametrize("name", OWN_KINDS)
def test_a_name_of_iscp_is_of_its_kind(name: str) -> None:
    other = EmbedderConfig(kind="hashed") if name != "hashed" else EmbedderConfig(kind="minilm")
    assert paths(other, name) == ["kind"]
    assert paths(EmbedderConfig(kind="minilm", threads=1), "minilm") == []


def test_there_are_not_too_many() -> None:
    many = {f"e{number}": OPENAI for number in range(EMBEDDERS_MAX + 1)}
    assert [each.path for each in faults(replace(NODE, embedders=many))] == ["embedders"]


def test_every_fault_is_found_at_once() -> None:
    wrong = {
        "one": EmbedderConfig(kind="openai", batch=-1),
        "two": EmbedderConfig(kind="theirs", path="models"),
    }
    assert {each.path for each in faults(replace(NODE, embedders=wrong))} == {
        *(f"embedders.one.{name}" for name in ("url", "model", "dimension", "batch")),
        *(f"embedders.two.{name}" for name in ("kind", "path")),
    }


def test_a_url_is_not_repeated() -> None:
    node = replace(NODE, embedders={"mine": replace(OPENAI, url="https://u.example/?key=s3cr3t#x")})
    (fault,) = faults(node)
    assert "s3cr3t" not in f"{fault.message} {fault.remedy}"
