"""Models in a directory of the node: what is refused, what the fingerprint is of, and how the library is called."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iscp.index.embedding.local_models import (
    LOCAL_CHARS_MAX,
    MODEL_FILES_MAX,
    LocalModel,
    Model2VecEmbedder,
    SentenceTransformersEmbedder,
)
from iscp.model.settings.embedder_config import EmbedderConfig
from iscp.model.values.errors import InvalidRequest

KINDS = [Model2VecEmbedder, SentenceTransformersEmbedder]


@dataclass
class Lengths:
    """A library's model (port Encoding): vectors of float64 with the length of the text in them."""

    lengths: list[int] = field(default_factory=list)
    at_once: int = 0
    busy: int = 0

    def encode(self, texts: Sequence[str]) -> Any:
        self.busy += 1
        self.at_once = max(self.at_once, self.busy)
        time.sleep(0.001)
        self.lengths += [len(text) for text in texts]
        self.busy -= 1
        return np.array([[len(text), 1.0, 0.0] for text in texts], np.float64)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "1_Pooling/config.json").write_text("{}")
    return folder


def made(kind: type[LocalModel], place: Path, model: Lengths | None = None) -> LocalModel:
    return kind(EmbedderConfig(kind=kind.kind, path=str(place)), lambda _: model or Lengths())


@pytest.mark.parametrize("kind", KINDS)
def test_the_dimension_is_that_of_the_model_and_numbers_become_float32(kind: type[LocalModel], place: Path) -> None:
    embedder = made(kind, place)
    vectors = embedder.embed(["four", "a"])
    assert (embedder.dimension, vectors.tolist()) == (3, [[4.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_library_it_is_refused_with_the_remedy(kind: type[LocalModel], place: Path) -> None:
    class Absent(kind):  # type: ignore[misc, valid-type]
        distribution = "iscp-no-such-library"

    with pytest.raises(InvalidRequest) as refused:
        Absent(EmbedderConfig(kind=kind.kind, path=str(place)))
    assert refused.value.message == f"{kind.kind} needs the Python package iscp-no-such-library, which is not installed"
    assert refused.value.remedy == "Run pip install iscp-no-such-library on every node"


@pytest.mark.parametrize("path", ["", "minishlab/potion-base-8M", "model", "/no/such/directory"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_in_a_hub_is_no_model(kind: type[LocalModel], path: str) -> None:
    with pytest.raises(InvalidRequest, match="is no directory") as refused:
        kind(EmbedderConfig(kind=kind.kind, path=path), lambda _: Lengths())
    assert "nothing is downloaded" in refused.value.remedy


def test_the_fingerprint_is_of_all_files_and_not_of_their_place(place: Path) -> None:
    first = made(Model2VecEmbedder, place).fingerprint
    moved = place.rename(place.parent / "moved")
    assert made(Model2VecEmbedder, moved).fingerprint == first
    assert made(SentenceTransformersEmbedder, moved).fingerprint != first
    found = {first}
    (moved / "1_Pooling/config.json").write_text("{ }")
    found.add(made(Model2VecEmbedder, moved).fingerprint)
    (moved / "model.safetensors").rename(moved / "other.safetensors")
    found.add(made(Model2VecEmbedder, moved).fingerprint)
    assert len(found) == 3


def test_a_directory_that_is_no_models_is_not_read_to_its_end(place: Path) -> None:
    for number in range(MODEL_FILES_MAX):
        (place / str(number)).touch()
    with pytest.raises(InvalidRequest, match="more than"):
        made(Model2VecEmbedder, place)


def test_long_texts_are_cut_and_one_thread_computes_at_a_time(place: Path) -> None:
    model = Lengths()
    embedder = made(Model2VecEmbedder, place, model)
    threads = [threading.Thread(target=embedder.embed, args=(["x" * (LOCAL_CHARS_MAX + 1)],)) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert model.lengths[1:] == [LOCAL_CHARS_MAX] * 8
    assert model.at_once == 1
