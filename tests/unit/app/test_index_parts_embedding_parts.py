"""A node's embedders are those of its settings, and files without keys are found before it starts."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from iscp.app.index_parts import default_embeddings, embedder_key_faults, embedding_services
from iscp.app.settings import check_files, load_settings, to_toml
from iscp.model.settings.config import JobLogConfig, NodeConfig
from iscp.model.settings.embedder_config import EmbedderConfig, EmbeddingConfig
from iscp.model.values.errors import ConfigurationError
from tests.fakes.clock import FakeClock

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
